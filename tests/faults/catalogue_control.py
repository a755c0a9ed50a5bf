"""Faults of controllers, operators and jobs: killed, cut off, rebooted, in each other's way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from fault_case import Fault, Told, Truth
from fault_host import NAME, SLOT, STATE_DIR, FaultHost, job_of

SLOW = ("--bind-delay-s", "2.5")
#: A comparison whose runner only waits: what matters here is the lock.
RUNNER = "#!/bin/sh\nexec sleep 60\n"


def together(first: Told, second: Told) -> Told:
    """Two commands as one story: the outcome of the first, the events of both."""
    seconds = round(first.seconds + second.seconds, 3)
    return Told(first.outcome, first.exit_code, first.text, [*first.events, *second.events], seconds)


def ended_as(events: Sequence[dict[str, Any]], job: str) -> str | None:
    ends = [e["detail"]["outcome"] for e in events if e["event"] == "job_finished" and e["job"] == job]
    return str(ends[-1]) if ends else None


def settle_with(host: FaultHost, first: Told, back: str, job: str) -> Told:
    """The next command: it settles the broken job, says so, and finds the slot as it wants it."""
    second = host.swap(back)
    assert second.outcome == "noop", f"the next command ended as {second.outcome}: {second.cause[-600:]}"
    settled = [e["detail"] for e in second.events if e["event"] == "settled"]
    assert settled and settled[0]["settled_job"] == job and settled[0]["ok"], f"settled: {settled}"
    assert ended_as(host.truth().events, job) == "interrupted", "the broken job was not given an end"
    return together(first, second)


def killed(back: str) -> Callable[[FaultHost], Told]:
    """The job dies at the event of the hook; the next command settles it."""

    def act(host: FaultHost) -> Told:
        first = host.swap("b")
        assert first.exit_code == 6, f"the killed job's command ended with {first.exit_code}: {first.text[-400:]}"
        host.unhook()
        return settle_with(host, first, back, job_of(first.text))

    return act


def killed_twice(host: FaultHost) -> Told:
    """The job dies, and so does the job that settles it; the third command settles both."""
    first = host.swap("b")
    host.hook(at="rollback_started")
    second = host.swap("a")
    assert second.exit_code == 6, second.text[-400:]
    host.unhook()
    third = host.swap("a")
    assert third.outcome == "noop", f"the third command ended as {third.outcome}: {third.cause[-600:]}"
    events = host.truth().events
    for one in (first, second):
        assert ended_as(events, job_of(one.text)) == "interrupted", "a broken job was not given an end"
    return together(first, third)


def killed_in_submit(host: FaultHost) -> Told:
    """The operator's command dies right after the job was accepted, before its unit was started."""
    script = f"PYTHONPATH={host.tree} exec python3 -B -m specswap_host swap b --json"
    done = host.sandbox.exec(NAME, ["sh", "-c", script])
    assert done.returncode in (137, -9), f"not killed: {done.returncode} {done.stdout}{done.stderr}"
    host.unhook()
    job = host.truth().events[-1]["job"]
    first = Told("interrupted", 6, f"job {job}", [], 0.0)
    return settle_with(host, first, "a", job)


def kill_at(event: str, tier: int | None = None, back: str = "a", nth: int = 1, **more: Any) -> Fault:
    where = f"{event} {tier}" if tier is not None else event
    name = f"kill_at_{event}" + (f"_{tier}" if tier is not None else "")
    name += "_of_the_way_back" if nth > 1 or ("server" in more and event == "tier_passed") else ""
    when = "of the way back" if "server" in more else "of a good swap"
    command = "swap" if event == "job_accepted" else "run"
    return Fault(
        name,
        "control",
        f"the job is killed by SIGKILL at `{where}` {when}; the next command asks for {back}",
        "interrupted",
        "settlement",
        back,
        inject=lambda host: host.hook(at=event, tier=tier, nth=nth, command=command),
        act=more.pop("act", killed(back)),
        **more,
    )


def reboot_at(event: str, tier: int | None = None, back: str = "a", nth: int = 1, **more: Any) -> Fault:
    """The host loses power at the event: the job is stopped there, so that the moment is exact."""

    def act(host: FaultHost) -> Told:
        began = time.monotonic()
        host.later(lambda: host.swap("b"))
        if event == "state_saved":
            host.wait_event("soak_passed", count=2)
            host.wait(lambda: "T" in host.run("ps", "-o", "stat=", "-p", host.job_pid()), "the job stopped")
        else:
            host.wait_event(event, tier, count=nth + _earlier(event, tier))
        job = host.truth().events[-1]["job"]
        host.reboot()
        status = json.loads(host.specswap("status", "--json").text.splitlines()[0])["slots"][SLOT]
        assert status["unfinished"] == job, f"status after the boot does not name the broken job: {status['reasons']}"
        assert not status["agree"], "status after the boot says that all is well"
        first = Told("interrupted", 6, f"job {job}", [], time.monotonic() - began)
        return settle_with(host, first, back, job)

    def _earlier(name: str, number: int | None) -> int:
        """How often the swap that proved `a` wrote the event."""
        return 0 if name in ("crashed", "rollback_started", "preflight_failed") else 1

    words = f"`{event} {tier}`" if tier is not None else f"`{event}`"
    return Fault(
        f"reboot_at_{event}" + (f"_{tier}" if tier is not None else ""),
        "control",
        f"the host loses power at {words} and boots again; the next command asks for {back}",
        "interrupted",
        "settlement",
        back,
        inject=lambda host: host.hook(at=event, tier=tier, nth=nth, do="stop"),
        act=act,
        **more,
    )


# --- operators


def second_operator(host: FaultHost) -> Told:
    """While one swap runs another is asked for; the first goes on undisturbed."""
    running = host.later(lambda: host.swap("b"))
    host.wait_event("start_requested", count=2)
    refused = host.swap("c")
    assert refused.outcome == "refused" and refused.seconds < 2, f"{refused.outcome} after {refused.seconds:.1f} s"
    for words in ("specswap-host swap b", "pid ", " s"):
        assert words in refused.text, f"the refusal does not say {words!r}: {refused.text}"
    first: Told = running.result()
    assert first.outcome == "swapped", f"the first one ended as {first.outcome}"
    return Told(refused.outcome, refused.exit_code, refused.text, [], refused.seconds)


def at_once(host: FaultHost) -> Told:
    """Two operators at the same instant: one is served, one is refused."""
    calls = [host.later(lambda v=v: host.swap(v)) for v in ("b", "c")]
    said: list[Told] = [call.result() for call in calls]
    outcomes = sorted(one.outcome for one in said)
    assert outcomes == ["refused", "swapped"], f"outcomes: {outcomes}"
    winner = [one for one in said if one.outcome == "swapped"][-1]
    if winner.finished["active"] == "c":
        back = host.swap("b")
        assert back.outcome == "swapped", back.text[-300:]
    return next(one for one in said if one.outcome == "refused")


def _compare(host: FaultHost) -> str:
    host.sh("printf '%s' '" + RUNNER + "' >/usr/local/bin/fault-runner; chmod 755 /usr/local/bin/fault-runner")
    plan = {
        "schema": 1, "kind": "compare", "job": "compare-1", "slot": SLOT, "arms": ["a", "b"],
        "services": {arm: host.services[arm] for arm in ("a", "b")}, "pairs": 1, "quick": True,
        "suite": {}, "request": {}, "runner": ["/usr/local/bin/fault-runner"],
        "controller": {"user": "ops", "host": "laptop", "command": "ansible-playbook compare.yml"},
    }  # fmt: skip
    return json.dumps(plan)


def during_compare(host: FaultHost) -> Told:
    """An operator swaps while a comparison holds the slot, and is told whose it is; then the comparison is ended."""
    taken = host.specswap("submit", stdin=_compare(host))
    assert taken.exit_code == 0, taken.text
    host.wait_event("lock_taken", count=2)
    refused = host.swap("b")
    assert "compare.yml" in refused.text and "ops@laptop" in refused.text, refused.text
    host.run("systemctl", "stop", f"specswap-job-{SLOT}")
    assert ended_as(host.truth().events, "compare-1") == "interrupted", "the comparison has no end"
    return Told(refused.outcome, refused.exit_code, refused.text, [], refused.seconds)


def compare_during_swap(host: FaultHost) -> Told:
    running = host.later(lambda: host.swap("b"))
    host.wait_event("start_requested", count=2)
    refused = host.specswap("submit", stdin=_compare(host))
    first: Told = running.result()
    assert first.outcome == "swapped", first.text[-300:]
    return Told(refused.outcome, refused.exit_code, refused.text, [], refused.seconds)


def runner_killed(host: FaultHost) -> Told:
    """The whole comparison is killed by SIGKILL; the next command settles it."""
    host.specswap("submit", stdin=_compare(host))
    host.wait_event("lock_taken", count=2)
    host.run("systemctl", "kill", "--signal=KILL", f"specswap-job-{SLOT}")
    host.wait(lambda: host.truth().data["job_unit"] != "active", "the end of the comparison")
    return settle_with(host, Told("interrupted", 6, "compare-1", [], 0.0), "a", "compare-1")


def stale_record(host: FaultHost) -> None:
    """A lock file whose owner died long ago."""
    owner = {"pid": 1999999, "job": "long-gone", "user": "eve", "host": "old", "command": "swap x", "started": 1.0}
    host.run("sh", "-c", f"cat >{STATE_DIR}/lock", stdin=json.dumps(owner))


def _takeover_is_said(_: FaultHost, after: Truth) -> None:
    words = [e["detail"].get("leftover") or "" for e in after.events if e["event"] == "job_accepted"]
    assert any("long-gone" in one and "eve@old" in one for one in words), f"nothing is said of the dead owner: {words}"


def broken_lock(host: FaultHost) -> Told:
    """A job is frozen and keeps its lock: refused, refused under a wrong name, taken under the right one."""
    frozen = host.later(lambda: host.swap("b"))
    host.wait_event("start_requested", count=2)
    host.unhook()
    job = host.truth().events[-1]["job"]
    plain = host.swap("c")
    assert plain.outcome == "refused" and f"--break-lock {job}" in plain.text, f"plain: {plain.text}"
    wrong = host.swap("c", "--break-lock", "20260101T000000Z-000000")
    assert wrong.outcome == "refused" and job in wrong.text, f"wrong name: {wrong.text}"
    taken = host.swap("c", "--break-lock", job)
    assert taken.outcome == "swapped", taken.text[-600:]
    gone: Told = frozen.result()
    assert gone.exit_code == 6, f"the frozen job's command: {gone.text[-300:]}"
    events = host.truth().events
    broken = [e for e in events if e["event"] == "lock_broken"]
    assert len(broken) == 1 and broken[0]["job"] == job and broken[0]["detail"]["by"], f"audit: {broken}"
    assert ended_as(events, job) == "interrupted", "the frozen job was not given an end"
    return taken


def break_nothing(host: FaultHost) -> Told:
    """Nobody holds the lock: --break-lock is no way around anything, and breaks nothing."""
    return host.swap("b", "--break-lock", "20260101T000000Z-000000")


def _no_audit(_: FaultHost, after: Truth) -> None:
    assert not [e for e in after.events if e["event"] == "lock_broken"], "a lock was broken that nobody held"


def ended_by_systemctl(host: FaultHost) -> Told:
    running = host.later(lambda: host.swap("b"))
    host.wait_event("start_requested", count=2)
    host.run("systemctl", "stop", f"specswap-job-{SLOT}")
    told: Told = running.result()
    return told


def command_killed(host: FaultHost) -> Told:
    """The operator's terminal dies with its command; the job goes on to its end."""
    host.later(lambda: host.swap("b"))
    host.wait_event("start_requested", count=2)
    host.sh("pkill -KILL -f '[s]wap b --json'")
    job = host.truth().events[-1]["job"]
    followed = host.specswap("follow", "--slot", SLOT, "--job", job)
    ends = followed.finished
    return Told(str(ends["outcome"]), int(ends["exit_code"]), followed.text, followed.events, followed.seconds)


def submitted_twice(host: FaultHost) -> Told:
    """The same plan arrives twice, as after a lost answer: one job, both can follow it."""
    plan = host.plan("b", "twice-1")
    answers = [host.specswap("submit", stdin=plan) for _ in range(2)]
    assert [one.exit_code for one in answers] == [0, 0], [one.text for one in answers]
    followed = host.specswap("follow", "--slot", SLOT, "--job", "twice-1")
    again = host.specswap("submit", stdin=plan)
    assert again.exit_code == 0, again.text
    starts = [e for e in host.truth().events if e["job"] == "twice-1" and e["event"] == "lock_taken"]
    assert len(starts) == 1, f"the job ran {len(starts)} times"
    ends = followed.finished
    return Told(str(ends["outcome"]), int(ends["exit_code"]), followed.text, followed.events, followed.seconds)


# --- the controller, through the real plays


def _ended(host: FaultHost, job: str, seconds: float) -> Told:
    followed = host.specswap("follow", "--slot", SLOT, "--job", job)
    ends = followed.finished
    return Told(str(ends["outcome"]), int(ends["exit_code"]), followed.text, followed.events, seconds)


def controller_killed(host: FaultHost) -> Told:
    began = time.monotonic()
    play = host.play("b")
    host.wait_event("start_requested", count=2, timeout_s=60)
    play.kill()
    job = host.truth().events[-1]["job"]
    return _ended(host, job, time.monotonic() - began)


def cut_and_healed(cut_s: float) -> Callable[[FaultHost], Told]:
    def act(host: FaultHost) -> Told:
        play = host.play("b")
        host.wait_event("start_requested", count=2, timeout_s=60)
        job = host.truth().events[-1]["job"]
        host.sandbox.cut(NAME)
        try:
            time.sleep(cut_s)
        finally:
            host.sandbox.heal(NAME)
        code, text, seconds = play.result()
        assert code == 0, f"swap.yml ended with {code}:\n{text[-1500:]}"
        assert "committed: b is active" in text, f"the play did not tell the end:\n{text[-1500:]}"
        return _ended(host, job, seconds)

    return act


def crash_told_by_play(host: FaultHost) -> Told:
    play = host.play("b")
    code, text, seconds = play.result()
    assert code != 0, "swap.yml ended well though the new server crashed"
    for words in ("rolled_back", "ModuleNotFoundError", "Serving now: a"):
        assert words in text, f"the play does not say {words!r}:\n{text[-1500:]}"
    return _ended(host, host.truth().events[-1]["job"], seconds)


# --- files


def torn_line(host: FaultHost) -> None:
    host.sh(f'printf \'{{"schema": 1, "seq": 99, "ev\' >>{STATE_DIR}/journal.jsonl')


def zero_block(host: FaultHost) -> None:
    host.sh(f"head -c 4096 /dev/zero >>{STATE_DIR}/journal.jsonl")


def _journal_is_whole(host: FaultHost, _: Truth) -> None:
    lines = host.run("cat", f"{STATE_DIR}/journal.jsonl").splitlines()
    sequence = [json.loads(line)["seq"] for line in lines]
    assert sequence == list(range(1, len(lines) + 1)), f"seq has gaps: {sequence}"


def _state(text: str) -> Callable[[FaultHost], None]:
    def inject(host: FaultHost) -> None:
        host.sh(f"python3 - <<'E'\nimport json\np='{STATE_DIR}/state.json'\ns=json.load(open(p))\n{text}\nE")

    return inject


def newer_plan(host: FaultHost) -> Told:
    return host.specswap("submit", stdin=host.plan("b", "newer-1", schema=99))


def _unreadable_state(fault_words: str, text: str, says: Sequence[str]) -> dict[str, Any]:
    return {"kind": "control", "injected": fault_words, "outcome": "refused", "noticed_by": "state", "serves": "a",
            "untouched": True, "inject": _state(text), "says": says, "agrees": False}  # fmt: skip


BROKEN = ("--import-error",)
FAULTS = [
    kill_at("job_accepted", act=killed_in_submit),
    kill_at("lock_taken"),
    kill_at("preflight_passed"),
    kill_at("stop_started"),
    kill_at("stopped", fast=True),
    kill_at("handover_proven"),
    kill_at("start_requested"),
    kill_at("phase"),
    *(kill_at("tier_passed", tier) for tier in (0, 1, 2, 3, 4, 5, 6)),
    kill_at("soak_passed"),
    kill_at("state_saved", back="b", fast=True),
    kill_at("committed", back="b"),
    kill_at("crashed", server=BROKEN),
    kill_at("rollback_started", server=BROKEN),
    kill_at("start_requested", nth=2, server=BROKEN),
    kill_at("tier_passed", 4, server=BROKEN),
    kill_at("rolled_back", server=BROKEN),
    Fault("killed_while_settling", "control", "the job is killed, and the job that settles it is killed as well",
          "interrupted", "settlement", "a", inject=lambda host: host.hook(at="start_requested"), act=killed_twice),
    reboot_at("lock_taken"),
    reboot_at("stopped"),
    reboot_at("start_requested"),
    reboot_at("tier_passed", 2),
    reboot_at("soak_passed"),
    reboot_at("state_saved", back="b"),
    reboot_at("committed", back="b"),
    reboot_at("rollback_started", server=BROKEN),
    Fault("two_operators", "control", "a second swap is asked for while one runs", "refused", "lock", "b",
          server=SLOW, act=second_operator, fast=True),
    Fault("two_at_once", "control", "two swaps are asked for at the same instant", "refused", "lock", "b", act=at_once),
    Fault("operator_during_compare", "control", "a swap is asked for while a comparison holds the slot", "refused",
          "lock", "a", act=during_compare),
    Fault("compare_during_swap", "control", "a comparison is asked for while a swap runs", "refused", "lock", "b",
          server=SLOW, act=compare_during_swap),
    Fault("compare_killed", "control", "a comparison is killed by SIGKILL with its runner", "interrupted", "settlement",
          "a", act=runner_killed),
    Fault("stale_lock_record", "control", "the lock file names an owner that died long ago", "swapped", "lock record",
          "b", inject=stale_record, after=_takeover_is_said, fast=True),
    Fault("frozen_owner", "control", "the owner of the lock is frozen; --break-lock names it, wrongly and rightly",
          "swapped", "settlement", "c", inject=lambda host: host.hook(at="start_requested", do="stop"),
          act=broken_lock, fast=True),
    Fault("break_lock_of_nobody", "control", "--break-lock though nobody holds the lock", "swapped", "gate", "b",
          act=break_nothing, after=_no_audit),
    Fault("job_ended_by_systemctl", "control", "the job's unit is stopped by systemctl in the middle of the swap",
          "interrupted", "signal", "a", server=SLOW, act=ended_by_systemctl),
    Fault("command_killed", "control", "the operator's command is killed in the middle of the swap", "swapped", "gate",
          "b", server=SLOW, act=command_killed),
    Fault("submitted_twice", "control", "the same plan is submitted three times", "swapped", "gate", "b",
          act=submitted_twice),
    Fault("controller_killed", "control", "ansible-playbook swap.yml is killed by SIGKILL in the middle of the swap",
          "swapped", "gate", "b", server=SLOW, act=controller_killed, fast=True),
    Fault("ssh_cut_short", "control", "the host's network is cut for 3 s while swap.yml follows the job", "swapped",
          "gate", "b", server=SLOW, act=cut_and_healed(3)),
    Fault("ssh_cut_long", "control", "the network is cut until the connection is dead (20 s), then healed", "swapped",
          "gate", "b", server=SLOW, act=cut_and_healed(20)),
    Fault("crash_told_by_play", "control", "swap.yml asks for a server that crashes at import", "rolled_back", "crash",
          "a", server=BROKEN, act=crash_told_by_play),
    Fault("journal_torn", "control", "the journal's last line is torn", "swapped", "journal", "b", inject=torn_line,
          after=_journal_is_whole, fast=True),
    Fault("journal_zero_block", "control", "the journal ends in a block of zeros, as after a power loss", "swapped",
          "journal", "b", inject=zero_block, after=_journal_is_whole),
    Fault("state_newer", **_unreadable_state("state.json was written by a newer version",
          "s['schema']=99\njson.dump(s,open(p,'w'))", ["newer"])),
    Fault("state_garbage", committed=None, **_unreadable_state("state.json holds half of itself",
          "t=json.dumps(s)\nopen(p,'w').write(t[:len(t)//2])", ["move it away"])),
    Fault("state_of_other_slot", **_unreadable_state("state.json belongs to another slot",
          "s['slot']='other'\njson.dump(s,open(p,'w'))", ["other"])),
    Fault("plan_newer", "control", "a newer controller sends a plan of an unknown schema", "usage", "schema", "a",
          untouched=True, act=newer_plan, says=["site.yml"]),
]  # fmt: skip
