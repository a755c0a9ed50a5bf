"""What the host keeps of the inventory: written under the slot's lock, and who holds that without a job."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from host_doubles import World, service_dict
from specswap_host.job import alive
from specswap_host.lock import Owner, SlotLock, in_passing
from specswap_host.registry import RegistryError, load, set_benchmark
from specswap_host.report import slot_status, status_text
from specswap_host.systemd import UnitState

SETTINGS: dict[str, Any] = {"pairs": 6, "suite": {"name": "story"}, "request": {}, "runner": ["/bin/true"]}


@pytest.fixture
def registered(world: World) -> World:
    world.paths.registry_dir.mkdir(parents=True)
    services = {"a": service_dict(world.paths.root, "a")}
    data = {"schema": 1, "slot": "smoke", "wanted": "a", "services": services}
    world.paths.registry("smoke").write_text(json.dumps(data))
    return world


def test_compare_settings_stand_beside_the_services(registered: World) -> None:
    paths = registered.paths
    assert set_benchmark(paths, "smoke", SETTINGS, check=True) is None
    assert load(paths, "smoke").benchmark == {}, "check mode writes nothing"
    assert set_benchmark(paths, "smoke", SETTINGS) is None
    assert set_benchmark(paths, "smoke", {**SETTINGS, "pairs": 8}) == SETTINGS
    kept = load(paths, "smoke")
    assert kept.benchmark["pairs"] == 8 and list(kept.services) == ["a"] and kept.wanted == "a"


def test_compare_settings_wait_for_no_job_and_name_it(registered: World) -> None:
    paths = registered.paths
    set_benchmark(paths, "smoke", SETTINGS)
    with SlotLock(paths.lock("smoke")).acquire(Owner(os.getpid(), "j1", "ann", "desk", "swap.yml")):
        assert set_benchmark(paths, "smoke", SETTINGS) == SETTINGS, "the same settings need no lock"
        with pytest.raises(RegistryError, match=r"slot smoke: .*job j1 of ann@desk"):
            set_benchmark(paths, "smoke", {**SETTINGS, "pairs": 8})
    assert load(paths, "smoke").benchmark == SETTINGS


@pytest.mark.parametrize(("text", "words"), [(None, "never provisioned"), ("{", "not valid JSON"), ("[]", "no")])
def test_compare_settings_without_a_registry(world: World, text: str | None, words: str) -> None:
    if text is not None:
        world.paths.registry_dir.mkdir(parents=True)
        world.paths.registry("smoke").write_text(text)
    with pytest.raises(RegistryError, match=rf"smoke\.json.*{words}.*site\.yml"):
        set_benchmark(world.paths, "smoke", SETTINGS)


def test_a_job_lives_though_a_play_holds_its_lock_for_a_moment(registered: World) -> None:
    context = registered.context()
    show = context.systemd.show
    context.systemd.show = lambda *units: [  # type: ignore[method-assign]
        UnitState(unit, active_state="active") if unit == "specswap-job-smoke.service" else show(unit)[0]
        for unit in units
    ]
    with SlotLock(registered.paths.lock("smoke")).acquire(in_passing("site.yml, writing units")):
        assert alive(context, "smoke", "j1"), "it has been started and waits for its lock"
        status = slot_status(context, "smoke")
    assert "busy       site.yml, writing units of " in status_text(status)
