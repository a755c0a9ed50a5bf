"""Jobs on a simulated host: taken in, refused, carried out, broken off, settled."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_doubles import Behaviour, World, swap_plan
from specswap_host import job as jobs
from specswap_host import state as states
from specswap_host.job import Busy, broke_off, open_job, run, submit
from specswap_host.journal import Journal, JournalError
from specswap_host.loan import borrow
from specswap_host.lock import Owner, SlotLock
from specswap_host.narrate import narrate
from specswap_host.plan import Plan, PlanError
from specswap_host.report import plan_diff
from specswap_host.state import Active, State
from specswap_host.systemd import SystemdError

A, B = "llamacpp-a-smoke.service", "llamacpp-b-smoke.service"


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def journal(world: World) -> Journal:
    return Journal(world.paths.journal("smoke"))


def do(world: World, variant: str, job: str) -> int:
    submit(swap_plan(world, variant, job).to_dict(), world.context())
    return run("smoke", job, world.context())


def finished(world: World, job: str) -> dict[str, Any]:
    (event,) = [e for e in journal(world).read(job=job) if e["event"] == "job_finished"]
    return dict(event["detail"])


def events(world: World, job: str) -> list[str]:
    return [e["event"] for e in journal(world).read(job=job)]


def test_a_job_from_submit_to_its_end(world: World) -> None:
    submitted = submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    assert submitted.to_dict() == {"job": "j1", "slot": "smoke", "after": 0}
    assert events(world, "j1") == ["job_accepted"]
    assert any(
        call.startswith("run_transient specswap-job-smoke.service") and "--job j1" in call for call in world.calls
    )
    plan_file = world.paths.plan("smoke", "j1")
    assert stat.S_IMODE(plan_file.stat().st_mode) == 0o600
    assert run("smoke", "j1", world.context()) == 0
    assert events(world, "j1")[:2] == ["job_accepted", "lock_taken"]
    assert events(world, "j1")[-1] == "job_finished"
    assert set(finished(world, "j1")) >= {"outcome", "exit_code", "seconds", "downtime_s", "cause", "advice"}
    assert world.paths.lock("smoke").read_text() == ""


def test_exit_code_is_the_outcome(world: World) -> None:
    assert do(world, "a", "j1") == 0
    world.behaviours[B] = [Behaviour(exit_s=0.5)]
    assert do(world, "b", "j2") == 3
    assert do(world, "a", "j3") == 0 and finished(world, "j3")["outcome"] == "noop"


def test_same_job_again_is_followed_not_repeated(world: World) -> None:
    do(world, "a", "j1")
    calls = list(world.calls)
    again = submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    assert again.after == 0
    assert world.calls == calls
    assert run("smoke", "j1", world.context()) == 0
    assert events(world, "j1").count("job_finished") == 1


def test_busy_slot_is_refused_with_its_owner(world: World) -> None:
    owner = Owner(os.getpid(), "j0", "ann", "desk", "swap.yml", 1.0)
    with SlotLock(world.paths.lock("smoke")).acquire(owner):
        with pytest.raises(Busy) as caught:
            submit(swap_plan(world, "a", "j1").to_dict(), world.context())
        assert caught.value.owner == owner and "ann@desk" in str(caught.value)
    assert journal(world).read() == []
    assert not world.paths.plan("smoke", "j1").exists()


def test_run_against_a_held_lock_ends_as_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LOCK_PATIENCE_S", 0.1)
    submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    with SlotLock(world.paths.lock("smoke")).acquire(Owner(os.getpid(), "j0")):
        assert run("smoke", "j1", world.context()) == 5
    assert finished(world, "j1")["outcome"] == "refused"


def test_job_that_cannot_be_started_has_an_end(world: World) -> None:
    world.fail["run_transient"] = "Failed to start transient service unit"
    with pytest.raises(SystemdError):
        submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    assert finished(world, "j1")["outcome"] == "refused"


def test_bad_plan_leaves_no_trace(world: World) -> None:
    with pytest.raises(PlanError):
        submit({**swap_plan(world, "a").to_dict(), "extra": 1}, world.context())
    assert not world.paths.journal("smoke").exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the job catches it."""


def kill_in_mid_swap(world: World, variant: str, job: str, at_s: float) -> None:
    submit(swap_plan(world, variant, job).to_dict(), world.context())

    def die() -> None:
        raise Killed

    world.clock.after(at_s, die)
    with pytest.raises(Killed):
        run("smoke", job, world.context())
    assert "job_finished" not in events(world, job)


def assert_serves(world: World, unit: str) -> None:
    assert world.serving_units() == [unit] and world.enabled == {unit}
    assert not list(world.paths.root.glob("run/systemd/system/*/*"))


@pytest.mark.parametrize("at_s", [0.05, 0.25, 0.5, 1.0])
def test_next_job_settles_a_killed_one(world: World, at_s: float) -> None:
    do(world, "a", "j1")
    kill_in_mid_swap(world, "b", "j2", at_s)
    assert do(world, "c", "j3") == 0
    assert_serves(world, "llamacpp-c-smoke.service")
    assert finished(world, "j2")["outcome"] == "interrupted"
    (settled,) = [e["detail"] for e in journal(world).read(job="j3") if e["event"] == "settled"]
    assert settled["settled_job"] == "j2" and "a" in settled["did"] and settled["ok"]
    previous = states.load(world.paths.state("smoke"), "smoke").previous
    assert previous is not None and previous.variant == "a", "b was never committed"


def test_same_job_run_again_after_a_kill_settles_itself_and_goes_on(world: World) -> None:
    do(world, "a", "j1")
    kill_in_mid_swap(world, "b", "j2", 0.5)
    assert submit(swap_plan(world, "b", "j2").to_dict(), world.context()).after == len(events(world, "j1"))
    assert run("smoke", "j2", world.context()) == 0
    assert_serves(world, B)
    assert events(world, "j2").count("job_accepted") == 1
    assert finished(world, "j2")["outcome"] == "swapped"


def test_job_killed_between_commit_and_end_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    do(world, "a", "j1")
    submit(swap_plan(world, "b", "j2").to_dict(), world.context())

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("specswap_host.swap.finalise", die)
        with pytest.raises(Killed):
            run("smoke", "j2", world.context())
    assert world.enabled == {A}, "the boot still belongs to a"
    assert do(world, "b", "j3") == 0
    assert_serves(world, B)


def test_job_that_never_ran_is_ended_without_touching_anything(world: World) -> None:
    do(world, "a", "j1")
    submit(swap_plan(world, "b", "j2").to_dict(), world.context())
    invocation = world.units[A].invocation
    assert do(world, "a", "j3") == 0
    assert finished(world, "j2")["outcome"] == "interrupted"
    assert world.units[A].invocation == invocation


def test_killed_first_job_leaves_an_empty_slot_to_the_next(world: World) -> None:
    kill_in_mid_swap(world, "b", "j1", 0.5)
    assert do(world, "a", "j2") == 0
    assert_serves(world, A)


def test_failed_settling_is_told_and_the_new_job_still_tries(world: World) -> None:
    do(world, "a", "j1")
    kill_in_mid_swap(world, "b", "j2", 0.5)
    world.behaviours[A] = [Behaviour(exit_s=0.2)]
    assert do(world, "c", "j3") == 0
    (settled,) = [e["detail"] for e in journal(world).read(job="j3") if e["event"] == "settled"]
    assert not settled["ok"] and "could not be brought back" in settled["did"]


def test_sigterm_ends_the_job_as_interrupted(world: World) -> None:
    do(world, "a", "j1")
    world.behaviours[B] = [Behaviour(load_s=15)]
    submit(swap_plan(world, "b", "j2").to_dict(), world.context())
    world.clock.after(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run("smoke", "j2", world.context()) == 6
    assert finished(world, "j2")["active"] == "a"
    assert_serves(world, A)


def test_defect_outside_the_swap_still_ends_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(jobs, "settle", broken)
    assert do(world, "a", "j1") == 6
    detail = finished(world, "j1")
    assert "a defect" in detail["cause"] and detail["report"]["traceback"]


def compare(world: World, runner: list[str], job: str = "cmp") -> dict[str, Any]:
    services = {arm: swap_plan(world, arm).to_dict()["service"] for arm in ("a", "b")}
    return {
        "schema": 1,
        "kind": "compare",
        "job": job,
        "slot": "smoke",
        "arms": ["a", "b"],
        "services": services,
        "pairs": 1,
        "quick": True,
        "suite": {},
        "request": {},
        "runner": runner,
        "controller": {},
    }


RUNNER = """
import sys, json
from pathlib import Path
from specswap_host.journal import Journal
from specswap_host.loan import borrow
from specswap_host.lock import holder
plan = Path(sys.argv[sys.argv.index("--plan") + 1])
data = json.loads(plan.read_text())
slot = plan.parents[2]
assert holder(slot / "lock").job == data["job"], "the lock is not held"
Journal(slot / "journal.jsonl").append(data["job"], "block_started", session="s-1", arm="a")
"""


@pytest.mark.parametrize(
    ("tail", "code", "outcome"),
    [("", 0, "compared"), ("sys.exit(7)", 7, "compare_failed"), ("1/0", 7, "compare_failed")],
)
def test_comparison_runs_as_a_child_under_the_same_lock(world: World, tail: str, code: int, outcome: str) -> None:
    submit(compare(world, [sys.executable, "-c", RUNNER + tail]), world.context())
    assert run("smoke", "cmp", world.context()) == code
    detail = finished(world, "cmp")
    assert (detail["outcome"], detail["session"]) == (outcome, "s-1")
    assert bool(detail["cause"]) == (code != 0)


def test_comparison_without_its_environment_says_so(world: World) -> None:
    submit(compare(world, ["/nonexistent-runner"]), world.context())
    assert run("smoke", "cmp", world.context()) == 7
    assert "site.yml" in finished(world, "cmp")["advice"]


def test_runner_that_dies_in_a_swap_is_cleaned_up_after(world: World) -> None:
    do(world, "a", "j1")
    world.units[A].stop_at = world.clock.now
    died = 'Journal(slot / "journal.jsonl").append(data["job"], "stop_started"); import os; os.kill(os.getpid(), 9)'
    submit(compare(world, [sys.executable, "-c", RUNNER + died]), world.context())
    assert run("smoke", "cmp", world.context()) == 7
    assert_serves(world, A)
    assert "settled" in events(world, "cmp")


LEFT_AN_ARM = """
from specswap_host import state
from specswap_host.plan import Service
found = state.load(slot / "state.json", "smoke")
arm = state.Active(Service.from_dict(data["services"]["b"]), 0.0, "cmp", "x", (0, 1, 2, 3, 4))
state.save(slot / "state.json", state.State("smoke", arm, found.active.service))
"""


@pytest.mark.parametrize("tail", ["import os; os.kill(os.getpid(), 9)", ""])
def test_a_comparison_gives_the_slot_back_as_it_was(world: World, tail: str) -> None:
    do(world, "b", "j0")
    do(world, "a", "j1")
    path = world.context().paths.state("smoke")
    before = states.load(path, "smoke")
    submit(compare(world, [sys.executable, "-c", RUNNER + LEFT_AN_ARM + tail]), world.context())
    run("smoke", "cmp", world.context())
    assert_serves(world, A)
    after = states.load(path, "smoke")
    assert after.active is not None and before.active is not None
    assert after.active.service == before.active.service
    assert after.previous == before.previous, "rollback would go to an arm"


def test_the_next_job_gives_back_what_a_killed_comparison_borrowed(world: World) -> None:
    do(world, "a", "j1")
    ctx = world.context()
    path = ctx.paths.state("smoke")
    submit(compare(world, [sys.executable]), ctx)
    borrow(ctx, "smoke", "cmp")
    # An arm was committed, then the machine lost its power.
    arm = Active(swap_plan(world, "b").all_services()[0], 0.0, "cmp", "x", (0, 1, 2, 3, 4))
    states.save(path, State("smoke", arm))
    journal(world).append("cmp", "committed", variant="b")
    assert do(world, "a", "j2") == 0
    assert events(world, "j2").count("settled") == 1
    assert finished(world, "cmp")["outcome"] == "interrupted"
    assert finished(world, "j2")["outcome"] == "noop", "the settlement itself must bring a back"
    assert_serves(world, A)


def test_open_job_gives_what_a_step_needs(world: World) -> None:
    submit(compare(world, [sys.executable]), world.context())
    opened = open_job("smoke", "cmp", world.context())
    assert opened.plan.kind == "compare" and opened.plan.swap_to(opened.plan.services["b"]).job == "cmp"
    assert opened.journal.last_seq() == 1
    with pytest.raises(PlanError, match="never submitted"):
        open_job("smoke", "other", world.context())


@pytest.mark.parametrize(
    ("names", "open_"),
    [
        (["job_accepted", "lock_taken"], False),
        (["lock_taken", "stop_started"], True),
        (["stop_started", "start_requested", "committed"], False),
        (["stop_started", "committed", "block_started", "stop_started"], True),
        (["stop_started", "rollback_started", "start_requested"], True),
        (["stop_started", "rolled_back", "job_finished"], False),
    ],
)
def test_broke_off(names: list[str], open_: bool) -> None:
    assert broke_off([{"event": name} for name in names]) is open_


def test_every_event_of_these_jobs_is_narrated(world: World) -> None:
    do(world, "a", "j1")
    world.behaviours[B] = [
        Behaviour(load_s=9, exit_s=8.0, log=["loading", "Traceback (most recent call last):", "X: y"])
    ]
    do(world, "b", "j2")
    world.behaviours[A] = [Behaviour(exit_s=0.2)]
    do(world, "b", "j3")
    lines = [narrate(event) for event in journal(world).read()]
    text = "\n".join(lines)
    assert all(line.startswith("[") and "{" not in line for line in lines), text
    for words in ("tier 2 health: HTTP 200", "CRASHED", "rolled back: a serves again", "ROLLBACK FAILED", "SWAPPED in"):
        assert words in text
    assert json.loads(json.dumps(journal(world).read())) == journal(world).read()


def test_unknown_and_maimed_events_are_shown_as_they_are() -> None:
    assert narrate({"event": "new_thing", "job": "j", "tier": None, "detail": {"x": 1}}) == "new thing: x=1"
    assert narrate({"event": "stopped", "job": "j", "tier": None, "detail": {"odd": 1}}) == "stopped: odd=1"
    assert narrate({"event": "job_finished"}) == "job finished"


def test_lock_file_of_a_dead_owner_is_told(world: World) -> None:
    path = world.paths.lock("smoke")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"pid": 1, "job": "dead", "user": "ann", "host": "desk", "command": "c", "started": 1.0})
    )
    do(world, "a", "j1")
    accepted = journal(world).read(job="j1")[0]
    assert "ann@desk" in accepted["detail"]["leftover"] and "ann@desk" in narrate(accepted)


def test_paths_are_below_the_slot(world: World, tmp_path: Path) -> None:
    assert world.paths.plan("smoke", "j").relative_to(tmp_path) == Path("var/lib/specswap/smoke/jobs/j/plan.json")


def test_a_job_on_a_disk_that_fills_up_ends_in_the_journal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is written to the space that was kept free for it: who follows it learns what happened."""
    assert do(world, "a", "j1") == 0
    reserve = world.paths.journal("smoke").with_name("journal.reserve")
    write, full = Journal._write, []

    def limited(self: Journal, fd: int, record: dict[str, Any]) -> None:
        full.append(record["event"] == "start_requested")
        if any(full) and reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, fd, record)

    monkeypatch.setattr(Journal, "_write", limited)
    assert do(world, "b", "j2") == 3
    end = finished(world, "j2")
    assert (end["outcome"], end["active"]) == ("rolled_back", "a") and "No space left" in end["cause"]
    assert "rolled_back" in events(world, "j2")
    monkeypatch.undo()
    assert do(world, "b", "j3") == 0 and reserve.exists()


def test_a_plan_that_cannot_be_stored_leaves_no_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jobs, "write_json", full)
    with pytest.raises(JournalError, match="No space left"):
        submit(swap_plan(world, "a", "j1").to_dict(), world.context())
    assert not world.paths.plan("smoke", "j1").parent.exists()


def test_a_rollback_stops_where_settling_a_killed_comparison_has_led_already(world: World) -> None:
    """It was announced as one step back; going on to the variant before would be two."""
    do(world, "b", "j0")
    do(world, "a", "j1")
    ctx = world.context()
    path = ctx.paths.state("smoke")
    before = states.load(path, "smoke")
    submit(compare(world, [sys.executable]), ctx)
    borrow(ctx, "smoke", "cmp")
    arm = Active(swap_plan(world, "b").all_services()[0], 0.0, "cmp", "x", (0, 1, 2, 3, 4))
    states.save(path, State("smoke", arm, before.previous))
    journal(world).append("cmp", "committed", variant="b")
    back = {"schema": 1, "kind": "rollback", "job": "back", "slot": "smoke", "controller": {}}
    assert plan_diff(ctx, Plan.from_dict(back))["wanted"] == "a", "what --check announces"
    submit(back, ctx)
    assert run("smoke", "back", ctx) == 0
    end = finished(world, "back")
    assert (end["outcome"], end["active"]) == ("noop", "a")
    assert "settling the unfinished job cmp was the way back already" in end["cause"]
    assert_serves(world, A)
    assert plan_diff(ctx, Plan.from_dict({**back, "job": "more"}))["wanted"] == "b"
    submit({**back, "job": "more"}, ctx)
    assert run("smoke", "more", ctx) == 0 and finished(world, "more")["active"] == "b"


def test_a_rollback_after_a_swap_that_broke_off_stops_there_too(world: World) -> None:
    do(world, "b", "j0")
    do(world, "a", "j1")
    submit(swap_plan(world, "b", "j2").to_dict(), world.context())
    journal(world).append("j2", "stop_started", units=[A])
    world.units[A].stop_at = world.clock.now
    back = {"schema": 1, "kind": "rollback", "job": "back", "slot": "smoke", "controller": {}}
    assert plan_diff(world.context(), Plan.from_dict(back))["wanted"] == "a"
    submit(back, world.context())
    assert run("smoke", "back", world.context()) == 0
    assert (finished(world, "back")["outcome"], finished(world, "back")["active"]) == ("noop", "a")
    assert_serves(world, A)


def test_a_rollback_after_a_job_that_moved_nothing_goes_on(world: World) -> None:
    do(world, "b", "j0")
    do(world, "a", "j1")
    submit(swap_plan(world, "b", "j2").to_dict(), world.context())
    back = {"schema": 1, "kind": "rollback", "job": "back", "slot": "smoke", "controller": {}}
    submit(back, world.context())
    assert run("smoke", "back", world.context()) == 0
    assert (finished(world, "back")["outcome"], finished(world, "back")["active"]) == ("swapped", "b")
