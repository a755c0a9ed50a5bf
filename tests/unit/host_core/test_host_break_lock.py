"""The lock broken by name, refusals in the moment between submit and job, and masked units."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from host_doubles import World, swap_plan
from specswap_host import job as jobs
from specswap_host.job import Busy, break_lock, submit
from specswap_host.journal import Journal
from specswap_host.lock import Owner, SlotLock, has_open, holder
from specswap_host.narrate import narrate
from specswap_host.plan import Controller
from specswap_host.preflight import preflight
from specswap_host.systemd import UnitState

BY = Controller("eve", "laptop", "specswap-host swap b")
HOLD = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.flock(f,2); print('held',flush=True); sys.stdin.read()"


@pytest.fixture
def owner(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """A live process that holds the lock as job `hung` and does nothing else."""
    path = world.paths.lock("smoke")
    path.parent.mkdir(parents=True)
    path.touch()
    argv = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        path.write_text(json.dumps(asdict(Owner(process.pid, "hung", "ops", "ct200", "swap b", 1.0))))
        yield process
        process.kill()


def events(world: World) -> list[str]:
    return [event["event"] for event in Journal(world.paths.journal("smoke")).read()]


def test_a_refusal_says_how_to_break_the_lock(world: World, owner: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Busy, match=r"job hung of ops@ct200 .* --break-lock hung"):
        submit(swap_plan(world, "a").to_dict(), world.context())


def test_only_the_named_job_is_ended_and_it_is_journaled(world: World, owner: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Busy, match="not held by job other, but by job hung"):
        break_lock(world.context(), "smoke", "other", BY)
    assert owner.poll() is None and events(world) == []
    break_lock(world.context(), "smoke", "hung", BY)
    assert owner.wait(5) == -signal.SIGKILL and holder(world.paths.lock("smoke")) is None
    (event,) = Journal(world.paths.journal("smoke")).read()
    assert (event["event"], event["job"]) == ("lock_broken", "hung")
    assert "eve@laptop" in narrate(event) and "ops@ct200" in narrate(event)


def test_a_record_of_another_process_kills_nobody(world: World, owner: subprocess.Popen[bytes]) -> None:
    path = world.paths.lock("smoke")
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as bystander:
        path.write_text(json.dumps(asdict(Owner(bystander.pid, "hung"))))
        assert not has_open(path, bystander.pid) and has_open(path, owner.pid)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Busy, match="still there"):
            patch.setattr(jobs, "LOCK_PATIENCE_S", 0.1)
            break_lock(world.context(), "smoke", "hung", BY)
        assert bystander.poll() is None
        bystander.kill()


def test_a_free_lock_is_not_broken(world: World) -> None:
    with SlotLock(world.paths.lock("smoke")).acquire(Owner(os.getpid(), "done")):
        pass
    break_lock(world.context(), "smoke", "done", BY)
    assert events(world) == []


def test_a_job_that_does_not_hold_its_lock_yet_is_named_all_the_same(world: World, tmp_path: Path) -> None:
    submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    context = world.context()
    context.systemd.show = lambda *units: [  # type: ignore[method-assign]
        UnitState(unit, active_state="active") for unit in units
    ]
    with pytest.raises(Busy, match="job j1 of ops@") as caught:
        submit(swap_plan(world, "b", "j2").to_dict(), context)
    assert caught.value.owner is not None and caught.value.owner.job == "j1"


def test_the_job_starts_before_the_lock_is_let_go(world: World) -> None:
    context = world.context()
    held: list[Owner | None] = []
    context.systemd.run_transient = lambda *_: held.append(  # type: ignore[method-assign]
        holder(world.paths.lock("smoke"))
    )
    submit(swap_plan(world, "a", "j1").to_dict(), context)
    assert held[0] is not None and held[0].job == "j1"


def test_masked_unit_is_refused(world: World) -> None:
    service = swap_plan(world, "a").service
    assert service is not None
    context = world.context()
    assert preflight(context, service, []) == []
    show = context.systemd.show
    context.systemd.show = lambda *units: [  # type: ignore[method-assign]
        replace(state, unit_file_state="masked") for state in show(*units)
    ]
    (finding,) = preflight(context, service, [])
    assert finding.id == "unit_masked" and "unmask" in finding.fix
