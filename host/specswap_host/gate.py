"""The gate: ordered proof that the wanted service, and no other process, serves.

Tiers: 0 unit, 1 listener, 2 health, 3 identity, 4 completion, 5 canary, 6 floor; then a soak that repeats 0 to 2. The
unit is looked at in every poll of every tier, and questions over HTTP run beside that loop, so that a crash is a
verdict at the crash and a hung server hides nothing. On the way back to the committed service tiers 5 and 6 are only
told: whatever they say, a service that answers is better than none. All durations are seconds. Budgets: tiers 0 to 2
share `load_s`, since nobody can say in which of them a load is spent; 3 and 4 have `gate_s` each, 5 `canary_s`, 6
`floor_s`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from . import golden as goldens
from .context import Context, Interrupted, Pending
from .engines import Answer, Ask, Engine, GenerateError, Probe
from .faults import classify, error_lines, first_traceback
from .floor import judge_acceptance, judge_speed, load_record
from .golden import REPETITIVE, Canary
from .plan import Service
from .procfs import Listener, in_cgroup
from .systemd import SystemdError, UnitState

TIER_NAMES = ("unit", "listener", "health", "identity", "completion", "canary", "floor")

_TIER_ADVICE = (
    "see why the unit does not become active (systemctl status)",
    "find the process on the port (ss -ltnp); a slow start needs a larger budget load_s",
    "see what the server is doing; a slow load needs a larger budget load_s",
    "another configuration answers than the planned one: compare the evidence with the variant's data",
    "the server is up but does not generate: try the completion by hand",
    "it generates, but not what this model should: check model, release and back-ends; a golden that is itself wrong is"
    " made anew after removing its file",
    "it serves, but not as this variant should: see that its drafts are used and nothing else loads the machine; gate"
    " settings min_accept_length and tok_floor say what is expected",
)

POLL_S = 0.05
SLOW_POLL_S = 0.1
SLOW_AFTER_S = 10.0
LOG_POLL_S = 0.4
IDENTITY_TIMEOUT_S = 2.0
# A speed below the floor is measured again before it counts: other work on the machine comes and goes.
FLOOR_TRIES = 3
PROBE_RETRY_S = 0.1
# systemd may be busy with a reload; longer silence means that nothing can be proven any more.
SYSTEMD_PATIENCE_S = 15.0
IDLE_POLLS = 4


class Note(Protocol):
    """Writes one event into the journal of the job."""

    def __call__(self, event: str, tier: int | None = None, **detail: Any) -> None: ...


@dataclass(frozen=True)
class Failure:
    """Why a service did not get through. `kind` is `crashed`, `tier_failed` or another event name."""

    kind: str
    tier: int | None
    message: str
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        cause = self.report.get("cause")
        return str(cause["fix"]) if cause else str(self.report.get("fix", ""))


@dataclass(frozen=True)
class GateResult:
    """Outcome of one passage; `completed_at` is the monotonic time of tier 4.

    `canary` holds what was generated, None where the settings ask for no canary. `told` has the messages of tiers that
    did not pass and did not count.
    """

    ok: bool
    tiers: tuple[int, ...]
    invocation_id: str
    seconds: float
    completed_at: float | None = None
    failure: Failure | None = None
    canary: Canary | None = None
    told: tuple[str, ...] = ()


class _Stop(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def check_listener(listeners: Sequence[Listener], control_group: str) -> tuple[bool | None, str, dict[str, Any]]:
    """Tier 1 on what was seen: True ours, False a foreigner listens, None nobody (or nobody visible) does."""
    if not listeners:
        return None, "nobody listens on the port yet", {}
    foreign = [one for one in listeners if one.pid is not None and not in_cgroup(one.cgroup, control_group)]
    if foreign:
        message = "another process listens on the port: " + "; ".join(one.describe() for one in foreign)
        return False, message, {"foreign": [one.describe() for one in foreign]}
    unseen = [one for one in listeners if one.pid is None]
    if unseen:
        return None, unseen[0].describe(), {}
    return True, "", {"pids": sorted({one.pid for one in listeners if one.pid}), "address": listeners[0].address}


class Gate:
    """One passage of one service. `invocation_before` is the unit's InvocationID before the start was asked for.

    Not `cancellable` is the way back to the committed service: it goes to its end, and tiers 5 and 6 are only told.
    """

    def __init__(
        self, ctx: Context, service: Service, note: Note, invocation_before: str = "", cancellable: bool = True
    ) -> None:
        self._ctx = ctx
        self._service = service
        self._note = note
        self._before = invocation_before
        self._cancellable = cancellable
        self._way_back = not cancellable
        self._engine: Engine = ctx.engine(service.engine)
        self._start = ctx.clock.mono()
        self._tier_start = self._tier_end = self._start
        self._tier = 0
        self._tiers: list[int] = []
        self._told: list[str] = []
        self._state = UnitState(service.unit)
        self._invocation = ""
        self._idle = 0
        self._blind_since: float | None = None
        self._waiting = ""
        self._probe: Pending[Probe] | None = None
        self._next_probe = 0.0
        self._log: Pending[tuple[list[str], str]] | None = None
        self._cursor = ""
        self._last_line = ""
        self._last_news = self._start
        self._next_log = self._start
        self._stalled = False
        self._phases: set[str] = set()
        self._completed_at: float | None = None
        self._canary: Canary | None = None
        self._fastest: Answer | None = None
        self._floor_tries = 0

    def run(self) -> GateResult:
        """Pass all tiers and the soak, or say at which one and why not. Raises `Interrupted` when cancelled."""
        budgets, settings = self._service.budgets, self._service.gate
        try:
            load_end = self._start + budgets.load_s
            self._pass(0, ("load_s", budgets.load_s), self._tier_unit, load_end)
            self._pass(1, ("load_s", budgets.load_s), self._tier_listener, load_end)
            self._pass(2, ("load_s", budgets.load_s), lambda: self._ask(self._health), load_end)
            self._pass(3, ("gate_s", budgets.gate_s), self._tier_identity)
            self._pass(4, ("gate_s", budgets.gate_s), lambda: self._ask(self._complete))
            self._completed_at = self._ctx.clock.mono()
            self._judge_output(lambda: self._tier_canary(settings.canary, settings.canary_s))
            self._judge_output(lambda: self._pass(6, ("floor_s", settings.floor_s), self._tier_floor))
            self._soak()
        except _Stop as stop:
            failure = stop.failure
            self._note(failure.kind, failure.tier, message=failure.message, **failure.report)
            return GateResult(False, tuple(self._tiers), self._invocation, self._seconds(), None, failure)
        return GateResult(
            True,
            tuple(self._tiers),
            self._invocation,
            self._seconds(),
            self._completed_at,
            canary=self._canary,
            told=tuple(self._told),
        )

    def _seconds(self) -> float:
        return round(self._ctx.clock.mono() - self._start, 3)

    def _pass(
        self,
        tier: int,
        budget: tuple[str, float],
        check: Callable[[], dict[str, Any] | None],
        deadline: float | None = None,
    ) -> None:
        """Poll `check` until it gives evidence; it raises `_Stop` for what waiting cannot change.

        `budget` is name and seconds; without a `deadline` of several tiers they count from here.
        """
        self._tier, self._tier_start = tier, self._ctx.clock.mono()
        self._next_probe, self._waiting = 0.0, ""
        name, seconds = budget
        self._tier_end = deadline if deadline is not None else self._tier_start + seconds
        while True:
            self._watch(tier)
            evidence = check()
            if evidence is not None:
                break
            if self._ctx.clock.mono() >= self._tier_end:
                self._fail(tier, f"not within {seconds:g} s ({name}): {self._waiting or 'no answer'}", timeout=True)
            self._pause()
        self._tiers.append(tier)
        took = round(self._ctx.clock.mono() - self._tier_start, 3)
        self._note(
            "tier_passed",
            tier,
            name=TIER_NAMES[tier],
            seconds=self._seconds(),
            took_s=took,
            budget_s=seconds,
            evidence=evidence,
        )

    def _judge_output(self, tier: Callable[[], None]) -> None:
        """Tier 5 or 6: how well it serves. On the way back a failure is told, no more; a crash still is a verdict."""
        try:
            tier()
        except _Stop as stop:
            failure = stop.failure
            if not self._way_back or failure.kind != "tier_failed":
                raise
            self._probe = None  # a question that is still open must not be taken for the next tier's answer
            self._told.append(failure.message)
            self._note(failure.kind, failure.tier, message=failure.message, told_only=True, **failure.report)

    def _left(self) -> float:
        return self._tier_end - self._ctx.clock.mono()

    def _pause(self) -> None:
        # A long load is watched half as often, so that the watching costs the loading server little.
        pause = POLL_S if self._seconds() < SLOW_AFTER_S else SLOW_POLL_S
        if self._probe is None:
            self._ctx.clock.sleep(pause)
        else:
            # Go on with the answer: each tier that asks would else be late by the rest of a poll.
            self._probe.wait(pause)

    # --- the watch, in every poll of every tier

    def _watch(self, tier: int) -> None:
        if self._cancellable and self._ctx.cancel.is_set():
            raise Interrupted(f"while waiting for tier {tier}")
        now = self._ctx.clock.mono()
        try:
            (self._state,) = self._ctx.systemd.show(self._service.unit)
            self._blind_since = None
        except SystemdError as error:
            self._blind_since = self._blind_since if self._blind_since is not None else now
            if now - self._blind_since > SYSTEMD_PATIENCE_S:
                self._fail(tier, f"systemd does not answer any more: {error}")
            return
        self._judge_unit(tier)
        self._watch_log(now)

    def _judge_unit(self, tier: int) -> None:
        state = self._state
        if not self._invocation and state.invocation_id and state.invocation_id != self._before:
            self._invocation = state.invocation_id
        if not self._invocation:
            # Not started yet: either the start is still queued, or systemd has given up on it.
            if state.job or state.active_state in ("active", "activating", "deactivating"):
                self._idle = 0
                return
            self._idle += 1
            if state.active_state == "failed" or self._idle >= IDLE_POLLS:
                self._crash(tier, f"did not start ({state.load_state}, {state.active_state}/{state.sub_state})")
            return
        if state.invocation_id != self._invocation:
            self._crash(tier, "was started anew while it was being proven: it crashed, or somebody restarted it")
        if state.active_state in ("failed", "inactive") or state.sub_state == "auto-restart":
            self._crash(tier, f"ended with {state.exit_text()}")
        if state.n_restarts > 0:
            self._crash(tier, f"crashed and was restarted {state.n_restarts} times")
        if state.active_state == "deactivating":
            words = f"ended with {state.exit_text()}" if state.exec_main_code else "is being stopped by somebody else"
            self._crash(tier, words)

    def _crash(self, tier: int, what: str) -> None:
        state, clock = self._state, self._ctx.clock
        now = clock.mono()
        delay = round(now - state.main_exit_mono, 3) if state.main_exit_mono else None
        lines = self._all_lines()
        cause = classify(lines)
        traceback = first_traceback(lines)
        lived = f"{now - self._start - (delay or 0.0):.1f} s after the start"
        why = f": {cause.cause} ({cause.line})" if cause else ""
        report: dict[str, Any] = {
            "unit": self._service.unit,
            "exit": state.exit_text(),
            "result": state.result,
            "n_restarts": state.n_restarts,
            "invocation_id": self._invocation,
            "seconds_after_exit": delay,
            "cause": cause.to_dict() if cause else None,
            "traceback": traceback,
            "lines": error_lines(lines),
            "fix": f"read the log: journalctl _SYSTEMD_INVOCATION_ID={self._invocation}",
        }
        raise _Stop(Failure("crashed", tier, f"{self._service.unit} {what} {lived}{why}", report))

    def _all_lines(self) -> list[str]:
        # The journal may lag behind the death of the process that wrote to it; a busy machine has needed 0.3 s.
        lines: list[str] = []
        for _ in range(8):
            try:
                lines, _cursor = self._ctx.systemd.log_lines(self._invocation, last=2000)
            except SystemdError:
                return lines
            if error_lines(lines) and (first_traceback(lines) or classify(lines)):
                return lines
            self._ctx.clock.sleep(0.05)
        return lines

    def _watch_log(self, now: float) -> None:
        if self._log is not None and self._log.done():
            try:
                lines, self._cursor = self._log.result()
            except SystemdError:
                lines = []
            self._log = None
            self._next_log = now + LOG_POLL_S
            self._read_lines(lines, now)
        elif self._log is None and self._invocation and now >= self._next_log:
            invocation, cursor = self._invocation, self._cursor
            self._log = self._ctx.background(lambda: self._ctx.systemd.log_lines(invocation, cursor))
        stall_s = self._service.budgets.stall_s
        if stall_s and not self._stalled and now - self._last_news >= stall_s:
            self._stalled = True
            self._note("stalled", silent_s=round(now - self._last_news, 1), last_line=self._last_line[:300])

    def _read_lines(self, lines: list[str], now: float) -> None:
        if not lines:
            return
        self._last_line, self._last_news, self._stalled = lines[-1], now, False
        for line in lines:
            phase = self._engine.phase(line)
            if phase and phase not in self._phases:
                self._phases.add(phase)
                self._note("phase", name=phase, seconds=self._seconds(), line=line[:200])

    # --- the tiers

    def _fail(self, tier: int, reason: str, timeout: bool = False, **evidence: Any) -> None:
        # A refused connection may be the first sign of a crash: then the crash is the verdict.
        self._ctx.clock.sleep(POLL_S)
        with contextlib.suppress(SystemdError):
            (self._state,) = self._ctx.systemd.show(self._service.unit)
            self._judge_unit(tier)
        lines = self._all_lines()
        cause = classify(lines) if timeout else None
        report: dict[str, Any] = {
            "unit": self._service.unit,
            "name": TIER_NAMES[tier],
            "seconds": self._seconds(),
            "evidence": evidence,
            "cause": cause.to_dict() if cause else None,
            "traceback": first_traceback(lines),
            "lines": [line.rstrip() for line in lines[-8:]],
            "fix": f"{_TIER_ADVICE[tier]}; its log: journalctl _SYSTEMD_INVOCATION_ID={self._invocation}",
        }
        raise _Stop(Failure("tier_failed", tier, f"tier {tier} {TIER_NAMES[tier]}: {reason}", report))

    def _tier_unit(self) -> dict[str, Any] | None:
        state = self._state
        if state.active_state == "active" and state.main_pid and self._invocation:
            evidence = {"main_pid": state.main_pid, "invocation_id": self._invocation, "n_restarts": 0}
            return {**evidence, "fragment": state.fragment, "drop_ins": list(state.drop_ins)}
        self._waiting = f"the unit is {state.active_state}/{state.sub_state}"
        return None

    def _tier_listener(self) -> dict[str, Any] | None:
        slot = self._service.slot
        listeners = self._ctx.procfs.listeners(slot.port, slot.bind)
        ours, self._waiting, evidence = check_listener(listeners, self._state.control_group)
        if ours is False:
            self._fail(1, self._waiting, **evidence)
        return evidence if ours else None

    def _ask(self, question: Callable[[], Probe], tier: int | None = None) -> dict[str, Any] | None:
        """One HTTP question at a time, beside the watch; gives the evidence of a good answer."""
        now = self._ctx.clock.mono()
        if self._probe is None:
            if now < self._next_probe:
                return None
            self._probe = self._ctx.background(question)
        if not self._probe.done():
            return None
        probe, self._probe = self._probe.result(), None
        self._next_probe = self._ctx.clock.mono() + PROBE_RETRY_S
        self._waiting = probe.message
        if probe.ok:
            return probe.evidence
        if probe.final:
            self._fail(self._tier if tier is None else tier, probe.message, **probe.evidence)
        return None

    def _health(self) -> Probe:
        return self._engine.health(self._service, self._engine.health_s)

    def _complete(self) -> Probe:
        return self._engine.complete(self._service, max(1.0, self._left()))

    def _tier_identity(self) -> dict[str, Any] | None:
        live = self._ctx.procfs.cmdline(self._state.main_pid)
        if not live:
            self._waiting = f"pid {self._state.main_pid} has no command line"
            return None
        if not self._engine.argv_matches(self._service, live):
            self._fail(3, "the running command line is not the planned one", live=live, plan=list(self._service.argv))
        evidence = self._ask(lambda: self._engine.identity(self._service, IDENTITY_TIMEOUT_S))
        return None if evidence is None else {"argv": "equals the plan", **evidence}

    def _tier_canary(self, asked: bool, budget_s: float) -> None:
        if not asked:
            self._note("tier_skipped", 5, name=TIER_NAMES[5], reason="the service's gate settings ask for no canary")
            return
        golden = goldens.load(self._ctx.paths, self._service)

        def question() -> Probe:
            probe, canary = goldens.run_canary(self._engine, self._service, golden, self._left)
            if probe.ok:
                self._canary = canary
            return probe

        self._pass(5, ("canary_s", budget_s), lambda: self._ask(question))

    def _tier_floor(self) -> dict[str, Any] | None:
        return self._ask(self._floor)

    def _floor(self) -> Probe:
        """Judge the canary's repetitive answer; one that is too slow is asked for again, and the fastest counts."""
        try:
            answer = self._canary.repetitive if self._canary and not self._floor_tries else self._generate(REPETITIVE)
            self._floor_tries += 1
            if self._fastest is None or answer.tok_per_s > self._fastest.tok_per_s:
                self._fastest = answer
            accepts = judge_acceptance(self._service, answer)
            if not accepts.ok and answer.accept_length is not None:
                # Some kinds of drafting (n-gram maps with long drafts) need more of the repetition before they begin.
                accepts = judge_acceptance(self._service, self._generate(goldens.LONGER))
        except GenerateError as error:
            return Probe(False, f"request {error}", final=error.final)
        if not accepts.ok:
            return accepts
        speed = judge_speed(self._service, self._fastest, load_record(self._ctx.paths, self._service))
        evidence = {**accepts.evidence, **speed.evidence, "tries": self._floor_tries}
        if self._canary is not None:
            self._canary = replace(self._canary, repetitive=self._fastest)
        measured = speed.ok or self._floor_tries >= FLOOR_TRIES
        return Probe(speed.ok, speed.message, evidence, final=measured and not speed.ok)

    def _generate(self, ask: Ask) -> Answer:
        return self._engine.generate(self._service, ask, max(0.5, self._left()))

    def _soak(self) -> None:
        """Repeat tiers 0 to 2 for `soak_s`; at least one health answer must fall into it."""
        soak_s = self._service.budgets.soak_s
        begin = self._ctx.clock.mono()
        passes = polls = 0
        while passes == 0 or self._ctx.clock.mono() - begin < soak_s:
            self._watch(0)
            polls += 1
            if self._tier_listener() is None:
                self._fail(1, f"during the soak: {self._waiting}")
            seen, self._waiting = self._waiting, ""
            if self._ask(self._health, tier=2) is not None:
                passes += 1
            elif self._waiting:
                self._fail(2, f"during the soak: {self._waiting}")
            self._waiting = seen
            self._pause()
        self._watch(0)
        self._note("soak_passed", seconds=round(self._ctx.clock.mono() - begin, 3), polls=polls, health_passes=passes)


@dataclass(frozen=True)
class LiveProof:
    """Tiers 0 to 3, looked at once: `tiers` that hold now, and the first thing that does not."""

    ok: bool
    tiers: tuple[int, ...]
    problem: str
    unit: UnitState
    listeners: tuple[Listener, ...]


def prove_now(ctx: Context, service: Service, timeout_s: float = 1.0, tiers: int = 3) -> LiveProof:
    """Check up to `tiers` on a service that should be serving, without waiting for anything to become true."""
    (state,) = ctx.systemd.show(service.unit)
    listeners = tuple(ctx.procfs.listeners(service.slot.port, service.slot.bind))
    passed: list[int] = []

    def result(problem: str = "") -> LiveProof:
        return LiveProof(not problem, tuple(passed), problem, state, listeners)

    if state.active_state != "active" or not state.main_pid:
        return result(f"{service.unit} is {state.active_state}/{state.sub_state}")
    passed.append(0)
    ours, problem, _ = check_listener(listeners, state.control_group)
    if not ours:
        return result(problem)
    passed.append(1)
    engine = ctx.engine(service.engine)
    probe = engine.health(service, max(timeout_s, engine.health_s)) if tiers >= 2 else Probe(True, "")
    if not probe.ok:
        return result(probe.message)
    if tiers >= 2:
        passed.append(2)
    if tiers >= 3:
        if not engine.argv_matches(service, ctx.procfs.cmdline(state.main_pid)):
            return result("the running command line is not the planned one")
        probe = engine.identity(service, timeout_s)
        if not probe.ok:
            return result(probe.message)
        passed.append(3)
    return result()
