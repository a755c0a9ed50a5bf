"""The real swapper on a simulated host: every block gets a new process, and a request to end is obeyed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from specswap_bench.hostswap import HostSwapper
from specswap_host.journal import Journal
from specswap_host.plan import Plan, Service

from tests.doubles.host_doubles import World, service_dict, swap_plan


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def swapper(world: World) -> HostSwapper:
    plan: Plan = dataclasses.replace(swap_plan(world, "a"), kind="compare", service=None)
    return HostSwapper(plan, Journal(world.paths.journal("smoke")), world.context())


def test_swaps_and_tells_what_is_active(world: World) -> None:
    swap_plan(world, "b")
    subject = swapper(world)
    assert subject.active() is None
    outcome = subject.swap(service_dict(world.paths.root, "a"), fresh=True)
    assert outcome.outcome == "swapped" and outcome.seconds is not None and outcome.downtime_s is None
    active = subject.active()
    assert active is not None and active["variant"] == "a"
    outcome = subject.swap(service_dict(world.paths.root, "b"), fresh=True)
    assert outcome.outcome == "swapped" and outcome.downtime_s is not None and outcome.downtime_s > 0
    assert world.serving_units() == ["llamacpp-b-smoke.service"]


def test_fresh_restarts_the_same_variant_and_otherwise_nothing_is_done(world: World) -> None:
    subject = swapper(world)
    service = service_dict(world.paths.root, "a")
    subject.swap(service, fresh=True)
    first = subject.incarnation(service)
    assert subject.swap(service, fresh=False).outcome == "noop"
    assert subject.incarnation(service) == first
    assert subject.swap(service, fresh=True).outcome == "swapped"
    assert subject.incarnation(service) != first
    names = [event["event"] for event in Journal(world.paths.journal("smoke")).read()]
    assert names.count("stop_started") == 2 and names[-1] == "committed"


def test_request_to_end_and_the_way_back(world: World) -> None:
    swap_plan(world, "b")
    subject = swapper(world)
    a, b = (service_dict(world.paths.root, variant) for variant in "ab")
    subject.swap(a, fresh=True)
    assert not subject.cancelled()
    subject.context.cancel.set()
    assert subject.cancelled()
    assert subject.swap(b, fresh=True).outcome == "interrupted"
    subject.begin_restore()
    assert subject.swap(a, fresh=False).good
    active = subject.active()
    assert active is not None and Service.from_dict(active).variant == "a"


def test_what_the_preflight_refuses_is_not_stopped_for_a_fresh_start(world: World) -> None:
    subject = swapper(world)
    service = service_dict(world.paths.root, "a")
    subject.swap(service, fresh=True)
    first = subject.incarnation(service)
    (world.paths.root / "opt/models/m/specswap-model.json").unlink()
    outcome = subject.swap(service, fresh=True)
    assert outcome.outcome == "refused" and "never verified" in outcome.cause
    assert subject.incarnation(service) == first and world.serving_units() == [service["unit"]]


def test_local_changes_of_the_unit_are_seen(world: World) -> None:
    subject = swapper(world)
    service = service_dict(world.paths.root, "a")
    subject.swap(service, fresh=True)
    assert subject.drop_ins(service) == {}
    path = world.paths.root / "50-slow.conf"
    path.write_text("[Service]\nCPUQuota=20%\n")
    world.drop_ins[service["unit"]] = (str(path), "/gone/60-other.conf")
    found = subject.drop_ins(service)
    assert len(found["50-slow.conf"]) == 12 and "No such file" in found["60-other.conf"]
