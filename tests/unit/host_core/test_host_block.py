"""A block on a simulated host: under the lock, on a proven service, and thrown away when that did not stay so."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_doubles import World, service_dict, swap_plan
from specswap_host import cli
from specswap_host.block import BlockError, as_user, base_url, measure_block
from specswap_host.job import Busy
from specswap_host.journal import Journal
from specswap_host.lock import Owner, SlotLock, holder
from specswap_host.plan import Controller, Slot
from specswap_host.swap import run_swap

A = "llamacpp-a-smoke.service"
ORDER = {"suite": {"name": "story"}, "request": {"max_tokens": 8}}


@pytest.fixture
def serving(world: World) -> World:
    result = run_swap(swap_plan(world, "a"), Journal(world.paths.journal("smoke")), world.context())
    assert result.outcome == "swapped"
    return world


def measure(world: World, during: Callable[[], Any] = lambda: None, answer: tuple[int, str] = (0, "{}")) -> Any:
    calls: list[tuple[list[str], Any, str]] = []

    def runner(argv: list[str], order: str, user: str) -> tuple[int, str]:
        calls.append((argv, json.loads(order), user))
        during()
        return answer

    result = measure_block(world.context(), "smoke", "/opt/bench", ORDER, Controller("ann", "desk"), runner)
    return result, calls


def test_a_block_names_the_variant_that_was_proven(serving: World) -> None:
    owners = []
    result, calls = measure(serving, lambda: owners.append(holder(serving.paths.lock("smoke"))), (0, '{"figures": 1}'))
    service = service_dict(serving.paths.root, "a")
    assert result["block"] == {"figures": 1}
    assert (result["variant"], result["plan_hash"]) == ("a", service["plan_hash"])
    assert result["tiers"] == [0, 1, 2, 3] and result["invocation_id"] == "inv1"
    ((argv, order, user),) = calls
    assert argv == ["/opt/bench/bin/python", "-m", "specswap_bench", "block", "--stdin"] and user == service["user"]
    assert order == {**ORDER, "url": "http://127.0.0.1:30001", "model": service["identity"], "engine": "llamacpp"}
    assert owners[0] is not None and owners[0].user == "ann", "nobody can swap during the block"
    assert holder(serving.paths.lock("smoke")) is None


def test_a_busy_slot_is_refused_with_its_owner(serving: World) -> None:
    with (
        SlotLock(serving.paths.lock("smoke")).acquire(Owner(os.getpid(), "j0", "bob", "desk", "swap.yml", time.time())),
        pytest.raises(Busy, match="job j0 of bob@desk") as caught,
    ):
        measure(serving)
    assert caught.value.owner is not None and caught.value.owner.job == "j0"


def test_what_does_not_serve_is_not_measured(serving: World) -> None:
    serving.units[A].behaviour.served = "somebody-else"
    with pytest.raises(BlockError, match="a is committed, but does not serve now: served names") as caught:
        measure(serving, lambda: pytest.fail("the client ran"))
    assert not caught.value.touched


def test_an_empty_slot_is_not_measured(world: World) -> None:
    with pytest.raises(BlockError, match="serves nothing"):
        measure(world)


@pytest.mark.parametrize("change", ["restarted", "other variant", "gone"])
def test_figures_of_another_process_are_dropped(serving: World, change: str) -> None:
    def during() -> None:
        if change == "restarted":
            serving.start(A)
            serving.clock.sleep(1.0)
        elif change == "other variant":
            serving.units[A].behaviour.served = "m@smoke.b.123"
        else:
            serving.units[A].stop_at = serving.clock.now

    with pytest.raises(BlockError, match="nothing is kept") as caught:
        measure(serving, during)
    assert caught.value.touched


@pytest.mark.parametrize("answer", [(1, "{}"), (0, "no json")])
def test_a_client_that_fails_gives_no_figures(serving: World, answer: tuple[int, str]) -> None:
    with pytest.raises(BlockError, match="block") as caught:
        measure(serving, answer=answer)
    assert caught.value.touched


@pytest.mark.parametrize(
    ("bind", "url"),
    [("127.0.0.1", "http://127.0.0.1:8"), ("0.0.0.0", "http://127.0.0.1:8"), ("::1", "http://[::1]:8")],
)
def test_base_url(bind: str, url: str) -> None:
    assert base_url(Slot("smoke", 8, bind)) == url


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_the_client_is_the_services_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the caller")
    code = "import os, sys; print(os.getuid(), os.getgroups(), 'SECRET' in os.environ, sys.stdin.read())"
    status, out = as_user(["/usr/bin/python3", "-c", code], "order", "nobody")
    uid = __import__("pwd").getpwnam("nobody").pw_uid
    assert (status, out) == (0, f"{uid} [] False order\n")
    with pytest.raises(BlockError, match=r"/nonexistent.*site\.yml"):
        as_user(["/nonexistent"], "", "nobody")


def test_the_command(serving: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_context", lambda args: serving.context())
    monkeypatch.setenv("SPECSWAP_ROOT", str(serving.paths.root))
    orders = []

    def client(argv: list[str], order: str, user: str) -> tuple[int, str]:
        orders.append(json.loads(order))
        return 0, "{}"

    monkeypatch.setattr("specswap_host.block.measure_block.__defaults__", (client,))
    assert cli.main(["block", "--release", "/opt/bench", "--max-tokens", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["variant"] == "a"
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"name": "own", "prompts": []}'))
    assert cli.main(["block", "--slot", "smoke", "--release", "/opt/bench", "--suite-stdin"]) == 0
    assert [order["suite"]["name"] for order in orders] == ["story", "own"]
    assert orders[0]["request"] == {"max_tokens": 8}
    serving.units[A].stop_at = serving.clock.now
    assert cli.main(["block", "--release", "/opt/bench"]) == 5
    assert "does not serve now" in capsys.readouterr().err
