"""run_swap on a simulated host: every way a swap can go, and what the host looks like afterwards."""

from __future__ import annotations

import errno
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_doubles import LAUNCHER_HASH, Behaviour, World, service_dict, swap_plan
from specswap_host import state as states
from specswap_host.engines import Probe
from specswap_host.journal import Journal, JournalError
from specswap_host.narrate import narrate
from specswap_host.plan import Plan
from specswap_host.preflight import preflight
from specswap_host.procfs import Listener
from specswap_host.swap import SwapResult, restore_committed, run_swap, what_is_needed

A, B = "llamacpp-a-smoke.service", "llamacpp-b-smoke.service"


def swap(world: World, variant: str, job: str = "job", salt: str = "", **changes: Any) -> SwapResult:
    return run_swap(swap_plan(world, variant, job, salt, **changes), journal(world), world.context())


def journal(world: World) -> Journal:
    return Journal(world.paths.journal("smoke"))


def names(world: World, job: str = "job") -> list[str]:
    return [event["event"] for event in journal(world).read(job=job)]


def event(world: World, name: str) -> dict[str, Any]:
    return next(e["detail"] for e in reversed(journal(world).read()) if e["event"] == name)


def committed(world: World) -> str | None:
    state = states.load(world.paths.state("smoke"), "smoke")
    return state.active.service.variant if state.active else None


@pytest.fixture
def serving_a(world: World) -> World:
    """Variant a is committed and serves; its journal is out of the way of the test."""
    assert swap(world, "a", job="before").outcome == "swapped"
    world.calls.clear()
    return world


def assert_a_serves(world: World) -> None:
    """The host is as it was: a serves alone, starts at boot, is committed, and the gate's drop-ins are gone."""
    assert world.serving_units() == [A]
    assert world.enabled == {A}
    assert committed(world) == "a"
    assert not list(world.paths.root.glob("run/systemd/system/*"))
    assert world.paths.unit(A).read_text() == service_dict(world.paths.root, "a")["unit_text"]


def test_first_swap_on_an_empty_slot(world: World) -> None:
    result = swap(world, "a")
    assert (result.outcome, result.exit_code, result.active) == ("swapped", 0, "a")
    assert result.downtime_s is None, "nothing served before, so there was no downtime to measure"
    assert_a_serves(world)


def test_good_swap_passes_every_tier_in_order(serving_a: World) -> None:
    result = swap(serving_a, "b")
    assert result.outcome == "swapped"
    assert result.downtime_s is not None and 0 < result.downtime_s < result.seconds
    wanted = ["preflight_passed", "stop_started", "stopped", "handover_proven", "start_requested"]
    assert names(serving_a) == [*wanted, *["tier_passed"] * 7, "soak_passed", "committed"]
    tiers = [e["tier"] for e in journal(serving_a).read(job="job") if e["event"] == "tier_passed"]
    assert tiers == [0, 1, 2, 3, 4, 5, 6]
    assert serving_a.serving_units() == [B] and serving_a.enabled == {B} and committed(serving_a) == "b"
    assert states.load(serving_a.paths.state("smoke"), "smoke").previous is not None


def test_the_gate_runs_with_restart_off_and_puts_it_back(serving_a: World) -> None:
    seen: list[str] = []
    drop_in = serving_a.paths.gate_drop_in(B)
    serving_a.clock.after(0.3, lambda: seen.append(drop_in.read_text()))
    swap(serving_a, "b")
    assert seen and "Restart=no" in seen[0]
    assert not drop_in.exists()
    assert serving_a.calls.index("daemon-reload") < serving_a.calls.index(f"start {B}")
    assert serving_a.calls[-1] == "daemon-reload", "the removed drop-in is still in force without a reload"


def test_noop_touches_nothing(serving_a: World) -> None:
    result = swap(serving_a, "a")
    assert (result.outcome, result.exit_code, result.downtime_s) == ("noop", 0, 0.0)
    assert serving_a.calls == [] and names(serving_a) == []


def test_local_drop_ins_are_kept_and_told(serving_a: World) -> None:
    path = f"/etc/systemd/system/{A}.d/50-slow.conf"
    serving_a.drop_ins[A] = (path,)
    result = swap(serving_a, "a", job="noop")
    assert (result.outcome, result.report) == ("noop", {"drop_ins": [path]})
    told = narrate({"event": "job_finished", "job": "noop", "detail": result.to_detail()})
    assert f"CHANGED BY HAND through {path}" in told
    assert swap(serving_a, "b", job="away").outcome == "swapped"
    assert swap(serving_a, "a", job="back").outcome == "swapped"
    (tier,) = [e for e in journal(serving_a).read(job="back") if e["tier"] == 0]
    assert tier["detail"]["evidence"]["drop_ins"] == [path] and path in narrate(tier)


@pytest.mark.parametrize("spoil", ["stopped", "disabled", "unit file", "other argv", "rival runs"])
def test_noop_needs_live_proof(serving_a: World, spoil: str) -> None:
    if spoil == "stopped":
        serving_a.units[A].stop_at = serving_a.clock.now
    elif spoil == "disabled":
        serving_a.enabled.clear()
    elif spoil == "unit file":
        serving_a.paths.unit(A).write_text("edited by hand")
    elif spoil == "other argv":
        serving_a.units[A].argv = ["/bin/sh", "something else"]
    else:
        serving_a.argvs[B] = ["/bin/sh"]
        serving_a.start(B)
    assert swap(serving_a, "a").outcome == "swapped"
    assert_a_serves(serving_a)


def test_changed_rivals_are_taken_over_without_a_restart(serving_a: World) -> None:
    text = service_dict(serving_a.paths.root, "a")["unit_text"] + "Conflicts=llamacpp-d-smoke.service\n"
    invocation = serving_a.units[A].invocation
    result = swap(serving_a, "a", unit_text=text)
    assert (result.outcome, result.downtime_s) == ("swapped", 0.0)
    assert serving_a.units[A].invocation == invocation and serving_a.units[A].stop_at is None
    assert serving_a.paths.unit(A).read_text() == text
    assert swap(serving_a, "a", unit_text=text).outcome == "noop"


def test_changed_command_of_the_same_variant_restarts_it(serving_a: World) -> None:
    assert swap(serving_a, "a", salt="2").outcome == "swapped"
    assert "a2" in serving_a.paths.unit(A).read_text()


CRASH_LOG = [
    "loading",
    "Traceback (most recent call last):",
    '  File "x.py", line 1',
    "ModuleNotFoundError: No module named 'xgrammar'",
]


def test_crash_is_a_verdict_at_once_and_rolls_back(serving_a: World) -> None:
    serving_a.behaviours[B] = [Behaviour(load_s=60, exit_s=1.0, log=CRASH_LOG)]
    result = swap(serving_a, "b")
    assert (result.outcome, result.exit_code, result.active) == ("rolled_back", 3, "a")
    crashed = event(serving_a, "crashed")
    assert crashed["seconds_after_exit"] < 0.5
    assert crashed["exit"] == "exit code 1"
    assert crashed["cause"]["id"] == "import_error"
    assert crashed["traceback"][-1].startswith("ModuleNotFoundError")
    assert "xgrammar" in result.cause and "site.yml" in result.advice
    assert result.downtime_s is not None and result.downtime_s > 1.0
    assert_a_serves(serving_a)


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (Behaviour(exit_s=0.05, exit_code=0), "crashed", "exit code 0"),
        (Behaviour(exit_s=0.4, signal=11), "crashed", "SIGSEGV"),
        (Behaviour(hang_completion=True, exit_s=2.0), "crashed", "exit code 1"),
        (Behaviour(exit_s=0.9), "crashed", "exit code 1"),
        (Behaviour(restart_at_s=0.3), "crashed", "started anew"),
        (Behaviour(never_starts=True), "crashed", "did not start"),
        (Behaviour(bind_s=1e9), "tier_failed", "nobody listens"),
        (Behaviour(load_s=1e9), "tier_failed", "HTTP 503"),
        (Behaviour(hang_completion=True), "tier_failed", "gate_s"),
        (Behaviour(served="somebody"), "tier_failed", "do not contain"),
        (Behaviour(argv=["/bin/sh", "old"]), "tier_failed", "command line"),
        (Behaviour(completion=Probe(False, "no usage", final=True)), "tier_failed", "no usage"),
        (Behaviour(health_dies_s=0.9), "tier_failed", "during the soak"),
    ],
)
def test_every_failure_gives_the_slot_back(serving_a: World, behaviour: Behaviour, kind: str, words: str) -> None:
    serving_a.behaviours[B] = [behaviour]
    result = swap(serving_a, "b")
    assert result.outcome == "rolled_back"
    assert words in result.cause
    assert kind in names(serving_a)
    assert result.advice
    assert "committed" not in names(serving_a)
    assert_a_serves(serving_a)


def test_final_answers_do_not_wait_for_the_budget(serving_a: World) -> None:
    serving_a.behaviours[B] = [Behaviour(served="somebody")]
    assert swap(serving_a, "b").seconds < 4.0


def test_foreign_listener_beside_the_new_unit_is_named(serving_a: World) -> None:
    other = Listener("127.0.0.1", 30001, 5, 77, "/user.slice/session-1.scope", "python old_server.py")
    serving_a.behaviours[B] = [Behaviour(bind_s=1e9)]
    serving_a.clock.after(0.5, lambda: serving_a.foreign.append(other))
    serving_a.clock.after(2.0, serving_a.foreign.clear)
    result = swap(serving_a, "b")
    assert result.outcome == "rolled_back"
    assert "pid 77" in result.cause and "old_server.py" in result.cause
    assert_a_serves(serving_a)


def test_foreign_port_is_refused_before_anything_stops(serving_a: World) -> None:
    serving_a.foreign.append(Listener("0.0.0.0", 30001, 5, 77, "/user.slice/x.scope", "python old_server.py"))
    invocation = serving_a.units[A].invocation
    result = swap(serving_a, "b")
    # A server that shares its port with a foreigner is not proven to serve.
    assert (result.outcome, result.exit_code, result.active) == ("refused", 5, None)
    assert "pid 77" in result.cause and "old_server.py" in result.cause
    assert names(serving_a) == ["preflight_failed"]
    assert serving_a.calls == [] and serving_a.units[A].invocation == invocation


def test_all_findings_come_at_once(serving_a: World) -> None:
    plan = swap_plan(
        serving_a,
        "b",
        user="nobody-like-this",
        release_path=str(serving_a.paths.root / "missing"),
        models={"target": {"name": "m", "path": str(serving_a.paths.root / "missing/m"), "sha256": "ab", "size": 3}},
        launcher={"name": "l", "path": str(serving_a.paths.root / "missing/serve.py")},
    )
    serving_a.verify_output = f"{B}: Command /x is not executable: No such file or directory"
    result = run_swap(plan, journal(serving_a), serving_a.context())
    assert result.outcome == "refused"
    found = {finding["id"] for finding in result.report["findings"]}
    assert found == {"release_missing", "launcher_missing", "user_missing", "model_missing", "unit_invalid"}
    assert all(finding["fix"] for finding in result.report["findings"])
    assert_a_serves(serving_a)


def test_edited_stamps_and_sizes_are_refused(serving_a: World) -> None:
    plan = swap_plan(serving_a, "b")
    root = serving_a.paths.root
    (root / "opt/envs/e-1/specswap-release.json").write_text('{"release": "e-2"}')
    (root / "opt/models/m/m.gguf").write_text("longer than planned")
    result = run_swap(plan, journal(serving_a), serving_a.context())
    assert {f["id"] for f in result.report["findings"]} == {"release_other", "model_size"}


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "# one more line\n")


def _other_byte(path: Path) -> None:
    path.write_text("abd")


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("opt/envs/e-1/lib.py", _append, "release_changed"),
        ("opt/envs/e-1/lib.py", Path.unlink, "release_changed"),
        ("opt/envs/e-1/added.py", Path.touch, "release_changed"),
        ("opt/envs/e-1/lib.py", lambda path: path.chmod(0o666), "release_changed"),
        ("opt/envs/e-1/specswap-files.txt", _append, "release_changed"),
        ("opt/envs/e-1/specswap-files.txt", Path.unlink, "release_changed"),
        (f"opt/engines/serve-{LAUNCHER_HASH}/serve.py", _append, "launcher_changed"),
        (f"opt/engines/serve-{LAUNCHER_HASH}/more.py", Path.touch, "launcher_changed"),
        ("opt/models/m/m.gguf", _other_byte, "model_changed"),
        ("opt/models/m/m.gguf", lambda path: path.chmod(0o666), "model_writable"),
    ],
)
def test_what_was_changed_by_hand_is_not_served(
    serving_a: World, name: str, change: Callable[[Path], None], finding: str
) -> None:
    plan = swap_plan(serving_a, "b")
    change(serving_a.paths.root / name)
    result = run_swap(plan, journal(serving_a), serving_a.context())
    assert (result.outcome, result.active) == ("refused", "a")
    assert [one["id"] for one in result.report["findings"]] == [finding]
    assert serving_a.calls == [] and serving_a.serving_units() == [A]


def test_a_model_with_another_time_and_the_same_content_serves(serving_a: World) -> None:
    digest = hashlib.sha256(b"abc").hexdigest()
    plan = swap_plan(serving_a, "b")
    root, data = serving_a.paths.root, plan.to_dict()
    data["service"]["models"]["target"]["sha256"] = digest
    (root / "opt/models/m/specswap-model.json").write_text(json.dumps({"sha256": digest, "mtime_ns": 1}))
    assert run_swap(Plan.from_dict(data), journal(serving_a), serving_a.context()).outcome == "swapped"


def test_the_preflight_of_a_large_release_is_quick(world: World) -> None:
    """Thousands of files; the bound is several times the aim of 0.3 s, for busy machines."""
    plan = swap_plan(world, "a")
    release = world.paths.root / "opt/envs/e-1"
    lines = [(release / "specswap-files.txt").read_text()]
    for folder in range(100):
        (release / f"pkg{folder}").mkdir()
        for number in range(30):
            path = release / f"pkg{folder}/m{number}.py"
            path.touch()
            lines.append(f"{'0' * 64} 0 {path.stat().st_mtime_ns} pkg{folder}/m{number}.py\n")
    text = "".join(lines)
    (release / "specswap-files.txt").write_text(text)
    stamp = json.loads((release / "specswap-release.json").read_text())
    stamp["files_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (release / "specswap-release.json").write_text(json.dumps(stamp))
    assert plan.service is not None
    start = time.monotonic()
    assert preflight(world.context(), plan.service, []) == []
    assert time.monotonic() - start < 1.5


def test_failure_on_an_empty_slot_leaves_it_empty(world: World) -> None:
    world.behaviours[A] = [Behaviour(exit_s=0.5)]
    result = swap(world, "a")
    assert (result.outcome, result.active) == ("rolled_back", None)
    assert "empty" in result.cause
    assert world.serving_units() == [] and world.enabled == set() and committed(world) is None


def test_both_ways_fail_and_there_is_no_third_try(serving_a: World) -> None:
    serving_a.behaviours[B] = [Behaviour(exit_s=0.5)]
    serving_a.behaviours[A] = [Behaviour(exit_s=0.3, signal=9)]
    result = swap(serving_a, "b")
    assert (result.outcome, result.exit_code, result.active) == ("rollback_failed", 4, None)
    assert "exit code 1" in result.cause and "SIGKILL" in result.cause
    assert result.report["host"]["port"] == ["nobody listens"]
    assert [call for call in serving_a.calls if call.startswith("start")] == [f"start {B}", f"start {A}"]
    assert committed(serving_a) == "a", "what is committed does not change by a failure"


def test_unit_that_ignores_everything_fails_the_handover(serving_a: World) -> None:
    serving_a.units[A].behaviour = Behaviour(stop_s=1e9, ignores_kill=True)
    result = swap(serving_a, "b")
    assert result.outcome == "rollback_failed"
    assert "SIGKILL" in result.cause
    assert "handover_failed" in names(serving_a)
    assert f"start {B}" not in serving_a.calls, "nothing may start while the old process lives"


def test_slow_unit_is_killed_after_its_budget(serving_a: World) -> None:
    serving_a.units[A].behaviour = Behaviour(stop_s=1e9)
    result = swap(serving_a, "b")
    assert result.outcome == "swapped"
    assert event(serving_a, "stopped")["killed"] == [A]


def test_processes_left_in_the_cgroup_are_waited_for_and_named(serving_a: World) -> None:
    serving_a.units[A].behaviour = Behaviour(leftover_s=1.5)
    assert swap(serving_a, "b").outcome == "swapped"
    assert event(serving_a, "handover_proven")["seconds"] >= 1.4
    serving_a.units[B].behaviour = Behaviour(leftover_s=100.0)
    result = swap(serving_a, "a", job="second")
    assert "is still in /system.slice/llamacpp-b-smoke.service" in result.cause


def test_rivals_that_nobody_committed_are_stopped_too(world: World) -> None:
    world.argvs[B] = ["/bin/sh"]
    world.start(B)
    assert swap(world, "a").outcome == "swapped"
    assert_a_serves(world)


def test_rollback_goes_to_the_one_before_and_back(serving_a: World) -> None:
    swap(serving_a, "b", job="to-b")
    plan = Plan.from_dict({"schema": 1, "kind": "rollback", "job": "back", "slot": "smoke", "controller": {}})
    assert run_swap(plan, journal(serving_a), serving_a.context()).outcome == "swapped"
    assert_a_serves(serving_a)
    assert run_swap(plan, journal(serving_a), serving_a.context()).active == "b"


def test_rollback_without_a_past_is_refused(serving_a: World) -> None:
    plan = Plan.from_dict({"schema": 1, "kind": "rollback", "job": "back", "slot": "smoke", "controller": {}})
    result = run_swap(plan, journal(serving_a), serving_a.context())
    assert result.outcome == "refused" and result.advice
    assert serving_a.calls == []


def test_request_to_end_gives_the_slot_back(serving_a: World) -> None:
    serving_a.behaviours[B] = [Behaviour(load_s=15)]
    context = serving_a.context()
    serving_a.clock.after(2.0, context.cancel.set)
    result = run_swap(swap_plan(serving_a, "b"), journal(serving_a), context)
    assert (result.outcome, result.exit_code, result.active) == ("interrupted", 6, "a")
    assert_a_serves(serving_a)


def test_request_to_end_before_the_stop_touches_nothing(serving_a: World) -> None:
    context = serving_a.context()
    context.cancel.set()
    result = run_swap(swap_plan(serving_a, "b"), journal(serving_a), context)
    assert result.outcome == "interrupted"
    assert serving_a.calls == []


class FullJournal(Journal):
    """A journal on a disk that fills up before `event` can be written."""

    full_at = ""

    def append(self, job: str, event: str, tier: int | None = None, **detail: Any) -> dict[str, Any]:
        if event == self.full_at:
            type(self).full_at = "*"
        if self.full_at == "*":
            raise JournalError(f"{self.path}: cannot append (No space left on device); free some space there")
        return super().append(job, event, tier, **detail)


@pytest.mark.parametrize("full_at", ["preflight_passed", "stop_started"])
def test_disk_full_before_the_stop_touches_nothing(
    serving_a: World, full_at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    FullJournal.full_at = full_at
    plan = swap_plan(serving_a, "b")
    result = run_swap(plan, FullJournal(serving_a.paths.journal("smoke")), serving_a.context())
    assert result.outcome == "refused"
    assert "No space left" in result.cause
    assert serving_a.calls == []


@pytest.mark.parametrize("full_at", ["stopped", "start_requested", "tier_passed", "soak_passed"])
def test_disk_full_in_mid_swap_gives_the_slot_back(
    serving_a: World, full_at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    FullJournal.full_at = full_at
    plan = swap_plan(serving_a, "b")
    result = run_swap(plan, FullJournal(serving_a.paths.journal("smoke")), serving_a.context())
    assert result.outcome == "rolled_back"
    assert "No space left" in result.cause
    assert "rolled_back" in capsys.readouterr().err, "what the journal cannot hold goes to stderr"
    assert_a_serves(serving_a)


def test_state_that_cannot_be_written_gives_the_slot_back(serving_a: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(states, "write_json", full)
    result = swap(serving_a, "b")
    assert result.outcome == "rolled_back"
    assert "No space left" in result.cause
    assert_a_serves(serving_a)


def test_boot_settings_that_fail_after_the_commit_are_a_warning(serving_a: World) -> None:
    serving_a.fail["enable"] = "Read-only file system"
    result = swap(serving_a, "b")
    assert result.outcome == "swapped" and committed(serving_a) == "b"
    assert "Read-only" in event(serving_a, "committed")["warning"]


def test_refused_start_rolls_back(serving_a: World) -> None:
    serving_a.fail[f"start {B}"] = "Unit is masked."
    result = swap(serving_a, "b")
    assert result.outcome == "rolled_back" and "masked" in result.cause
    assert_a_serves(serving_a)


def test_silence_is_told_with_the_last_line(serving_a: World) -> None:
    serving_a.behaviours[B] = [Behaviour(load_s=12, log=["loading", "Capturing CUDA graphs: 3/48"])]
    assert swap(serving_a, "b").outcome == "swapped"
    assert event(serving_a, "stalled")["last_line"] == "Capturing CUDA graphs: 3/48"
    assert event(serving_a, "phase")["name"] == "loading model"


def test_defect_of_ours_still_gives_the_slot_back(serving_a: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("specswap_host.gate.Gate._tier_identity", broken)
    result = swap(serving_a, "b")
    # The way back meets the same defect: the outcome must say so instead of claiming a proof.
    assert result.outcome == "rollback_failed"
    assert "a defect" in result.cause


def test_unreadable_state_is_refused_by_name(serving_a: World) -> None:
    serving_a.paths.state("smoke").write_text('{"schema": 99}')
    result = swap(serving_a, "b")
    assert result.outcome == "refused"
    assert "state.json" in result.cause and "newer" in result.cause
    assert serving_a.calls == []


def test_restore_after_a_broken_job(serving_a: World) -> None:
    serving_a.units[A].stop_at = serving_a.clock.now
    plan = swap_plan(serving_a, "b")
    serving_a.start(B)
    proven, did = restore_committed(plan, journal(serving_a), serving_a.context())
    assert proven and "brought back" in did
    assert_a_serves(serving_a)


def test_restore_leaves_a_serving_variant_alone(serving_a: World) -> None:
    invocation = serving_a.units[A].invocation
    drop_in = serving_a.paths.gate_drop_in(A)
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text("[Service]\nRestart=no\n")
    proven, _ = restore_committed(swap_plan(serving_a, "b"), journal(serving_a), serving_a.context())
    assert proven and serving_a.units[A].invocation == invocation
    assert_a_serves(serving_a)


def _at_commit(world: World, change: Callable[[], None]) -> None:
    """Something happens while the boot settings are written: after the soak, before the end is told."""
    enable, done = world.calls.append, []

    class Calls(list[str]):
        def append(self, call: str) -> None:
            enable(call)
            super().append(call)
            if call.startswith("enable llamacpp-b") and not done:
                done.append(call)
                change()

    world.calls = Calls(world.calls)


@pytest.mark.parametrize("loss", ["died", "restarted", "rival"])
def test_what_is_lost_between_soak_and_end_is_no_swap(serving_a: World, loss: str) -> None:
    world = serving_a
    unit = "llamacpp-b-smoke.service"

    def change() -> None:
        if loss == "rival":
            world.start("llamacpp-a-smoke.service")
        elif loss == "died":
            world.units[unit].behaviour = Behaviour(exit_s=0.0, exit_code=1)
        else:
            world.units[unit].invocation += "-again"

    _at_commit(world, change)
    result = run_swap(swap_plan(world, "b"), journal(world), world.context())
    assert result.outcome == "rolled_back", result
    assert result.active == "a"
    assert "right after the soak" in result.cause
    names = [event["event"] for event in journal(world).read()]
    assert "rolled_back" in names
    state = states.load(world.paths.state("smoke"), "smoke")
    assert state.active is not None and state.active.service.variant == "a"


def test_a_unit_that_only_the_rescue_target_starts_does_not_start_at_boot(serving_a: World) -> None:
    serving_a.boot_target = "rescue.target"
    state = states.load(serving_a.paths.state("smoke"), "smoke")
    wanted = swap_plan(serving_a, "a").service
    assert wanted is not None
    need = what_is_needed(serving_a.context(), state, wanted)
    assert need.kind == "refresh" and "rescue.target" in need.changes[0]


def test_a_variant_that_could_not_start_again_is_no_noop(serving_a: World) -> None:
    plan = swap_plan(serving_a, "a")
    (serving_a.paths.root / "opt/models/m/m.gguf").unlink()
    result = run_swap(plan, journal(serving_a), serving_a.context())
    assert (result.outcome, result.active) == ("refused", "a")
    assert "m.gguf" in result.cause
