"""The swap: stop the old, prove the hand-over, start the wanted, pass the gate, commit, or give the slot back.

The caller holds the slot's lock. Whatever happens after the old service was asked to stop, the committed one is
brought back through the same gate, once; there is never a third try.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import golden as goldens
from . import state as states
from .atomic import write_text
from .context import Context, Interrupted
from .faults import error_lines, first_traceback
from .floor import note_record
from .gate import Failure, Gate, GateResult, prove_now
from .handover import prove_handover, stop_units
from .journal import Journal, JournalError
from .plan import Plan, Service
from .preflight import file_findings, preflight
from .state import Active, State, StateError
from .systemd import SystemdError

EXIT_CODES = {
    "swapped": 0,
    "noop": 0,
    "compared": 0,
    "rolled_back": 3,
    "rollback_failed": 4,
    "refused": 5,
    "interrupted": 6,
    "compare_failed": 7,
}

_GATE_DROP_IN = "# Written by specswap for the time of the gate: one crash is one crash.\n[Service]\nRestart=no\n"


@dataclass(frozen=True)
class SwapResult:
    """How a swap ended. `downtime_s` is None when nothing served before, or nothing serves now.

    `active` is the variant that serves now, None when none was proven. `report` holds the evidence of a failure.
    """

    outcome: str
    seconds: float
    downtime_s: float | None = None
    cause: str = ""
    advice: str = ""
    active: str | None = None
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def to_detail(self) -> dict[str, Any]:
        """The detail of `job_finished`."""
        return {
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "downtime_s": self.downtime_s,
            "cause": self.cause,
            "advice": self.advice,
            "active": self.active,
            "report": self.report,
        }


def run_swap(plan: Plan, journal: Journal, ctx: Context, fresh: bool = False) -> SwapResult:
    """Carry out a plan of kind `swap` or `rollback`; ends with a result, never with an exception of its own making.

    With `fresh` a wanted service that serves already is stopped and started anew, after its preflight.
    """
    return _Swap(plan, journal, ctx).run(fresh)


def restore_committed(plan: Plan, journal: Journal, ctx: Context, also_stop: Sequence[str] = ()) -> tuple[bool, str]:
    """Bring the committed service of the plan's slot back after a job that broke off; (proven, what was done).

    `also_stop` names units that the broken job may have started.
    """
    return _Swap(plan, journal, ctx).settle(also_stop)


def finalise(ctx: Context, state: State, others: Sequence[str]) -> None:
    """Make boot agree with `state`: enable the active unit, disable `others`, end the gate's drop-ins.

    Safe to repeat; a job that died between commit and here is finished by the next one.
    """
    active = state.active.service.unit if state.active else None
    for unit in sorted({*others, *([active] if active else [])}):
        drop_in = ctx.paths.gate_drop_in(unit)
        with contextlib.suppress(FileNotFoundError):
            drop_in.unlink()
        with contextlib.suppress(OSError):
            drop_in.parent.rmdir()  # unless somebody else has put something there
    try:
        if active:
            ctx.systemd.enable(active)
        for unit in sorted(set(others) - {active}):
            ctx.systemd.disable(unit)
    finally:
        # Also where /etc is full or read-only: without it the gate's drop-in stays in force, and a crash stays a crash.
        ctx.systemd.daemon_reload()


def slot_units(state: State, services: Sequence[Service]) -> list[str]:
    """Every unit that may hold the slot: of the given services, their rivals, the active and the previous one."""
    known = list(services)
    if state.active:
        known.append(state.active.service)
    if state.previous:
        known.append(state.previous)
    return sorted({unit for service in known for unit in (service.unit, *service.rivals)})


class _Refused(Exception):
    def __init__(self, cause: str, advice: str, report: dict[str, Any] | None = None) -> None:
        super().__init__(cause)
        self.cause, self.advice, self.report = cause, advice, report or {}


class _Failed(Exception):
    """The wanted service did not get the slot; the slot must be given back."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Swap:
    def __init__(self, plan: Plan, journal: Journal, ctx: Context) -> None:
        self._plan = plan
        self._journal = journal
        self._ctx = ctx
        self._start = ctx.clock.mono()
        self._touched = False
        self._served_until: float | None = None
        self._lenient = False
        self._state = State(plan.slot)

    # --- the whole

    def run(self, fresh: bool = False) -> SwapResult:
        wanted: Service | None = None
        try:
            self._state = states.load(self._ctx.paths.state(self._plan.slot), self._plan.slot)
            wanted = self._wanted()
            if fresh:
                return self._swap(wanted)
            need = what_is_needed(self._ctx, self._state, wanted)
            if need.kind == "noop":
                report = {"drop_ins": list(need.drop_ins)} if need.drop_ins else {}
                return self._result("noop", active=wanted.variant, downtime_s=0.0, report=report)
            if need.kind == "refresh":
                return self._refresh(wanted, need.changes)
            return self._swap(wanted)
        except _Refused as refused:
            return self._result(
                "refused", cause=refused.cause, advice=refused.advice, active=self._serving(), report=refused.report
            )
        except _Failed as failed:
            assert wanted is not None
            return self._give_back(wanted, failed.failure)
        except Interrupted as error:
            return self._broken_off(
                wanted,
                Failure("interrupted", None, f"asked to end {error}", {"fix": "submit the job again"}),
                "interrupted",
            )
        # Anything may be raised on a host in trouble, and the slot must be given back all the same.
        except Exception as error:
            known = isinstance(error, (StateError, JournalError, SystemdError, OSError))
            report = {} if known else {"traceback": traceback.format_exc().splitlines()[-20:]}
            cause = str(error) if known else f"{type(error).__name__}: {error}"
            failure = Failure("failed", None, cause, {**report, "fix": "remove the cause, then swap again"})
            return self._broken_off(wanted, failure, "refused")

    def _broken_off(self, wanted: Service | None, failure: Failure, untouched: str) -> SwapResult:
        if wanted is None or not self._touched:
            return self._result(
                untouched, cause=failure.message, advice=failure.advice, active=self._serving(), report=failure.report
            )
        return self._give_back(wanted, failure)

    def _wanted(self) -> Service:
        if self._plan.kind == "rollback":
            if self._state.previous is None:
                raise _Refused(
                    f"slot {self._plan.slot} has no variant before the active one",
                    "swap to a named variant instead (specswap-host status lists them)",
                )
            return self._state.previous
        if self._plan.service is None:
            raise _Refused(f"a plan of kind {self._plan.kind} holds no service", "submit a plan of kind swap")
        return self._plan.service

    def _refresh(self, wanted: Service, changes: Sequence[str]) -> SwapResult:
        """Put in force what needs no restart, under the process that serves already: no moment of downtime."""
        assert self._state.active is not None
        active = self._state.active
        units = slot_units(self._state, [wanted])
        if unit_on_disk(self._ctx, wanted.unit) != wanted.unit_text:
            write_text(self._ctx.paths.unit(wanted.unit), wanted.unit_text)
        renewed = Active(wanted, active.since, active.job, active.invocation_id, active.tiers)
        self._state = State(self._plan.slot, renewed, self._state.previous)
        states.save(self._ctx.paths.state(self._plan.slot), self._state)
        warning = self._set_boot(self._state, units)
        self._note(
            "committed",
            variant=wanted.variant,
            unit=wanted.unit,
            downtime_s=0.0,
            refreshed=list(changes),
            warning=warning,
        )
        return self._result("swapped", downtime_s=0.0, active=wanted.variant)

    def _swap(self, wanted: Service) -> SwapResult:
        ctx, units = self._ctx, slot_units(self._state, [wanted])
        began = ctx.clock.mono()
        findings = preflight(ctx, wanted, units)
        if findings:
            listed = [finding.to_dict() for finding in findings]
            self._note("preflight_failed", variant=wanted.variant, findings=listed)
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise _Refused(findings[0].message + more, findings[0].fix, {"findings": listed})
        self._note("preflight_passed", variant=wanted.variant, seconds=round(ctx.clock.mono() - began, 3))
        self._cancel_point("before anything was touched")
        self._stop_all(units, wanted)
        result = self._start_and_prove(wanted, cancellable=True)
        if not result.ok:
            assert result.failure is not None
            raise _Failed(result.failure)
        previous = self._state.active.service if self._state.active else None
        if previous is not None and previous.same_as(wanted):
            previous = self._state.previous
        before = self._state
        warning = self._commit(wanted, previous, result, units)
        lost = self._last_look(wanted, result)
        if lost is not None:
            # Nothing of this was told yet: take the commit back, and give the slot back as after any other failure.
            self._state, self._touched = before, True
            with contextlib.suppress(StateError):
                states.save(ctx.paths.state(self._plan.slot), before)
            self._note(lost.kind, lost.tier, message=lost.message, **lost.report)
            raise _Failed(lost)
        downtime = self._downtime(result)
        self._note("committed", variant=wanted.variant, unit=wanted.unit, downtime_s=downtime, warning=warning)
        return self._result("swapped", downtime_s=downtime, active=wanted.variant)

    # --- steps

    def _stop_all(self, units: Sequence[str], wanted: Service) -> None:
        """Stop whatever unit of the slot runs, and prove that it let go; raises `_Failed`."""
        ctx, budgets = self._ctx, (self._state.active.service if self._state.active else wanted).budgets
        running = [state for state in ctx.systemd.show(*units) if state.running]
        self._served_until = self._still_serving()
        names = [state.unit for state in running]
        self._note("stop_started", units=names, budget_s=budgets.drain_s + budgets.stop_s)
        # From here on the slot is no longer as it was found.
        self._touched = True
        if self._served_until is not None:
            self._served_until = ctx.clock.mono()
        ctx.systemd.reset_failed(units)
        stopped = stop_units(ctx, running, budgets.drain_s + budgets.stop_s)
        if stopped.stuck:
            message = f"{', '.join(stopped.stuck)} still runs {stopped.seconds:g} s after SIGTERM and SIGKILL"
            report = {"stuck": stopped.stuck, "fix": "look for processes in state D (ps axo pid,stat,wchan,cmd)"}
            self._note("handover_failed", left=stopped.stuck, message=message)
            raise _Failed(Failure("handover_failed", None, message, report))
        # Some servers end by killing themselves: `failed` after a stop is no failure of the stopped unit.
        ctx.systemd.reset_failed(names)
        self._note("stopped", units=names, seconds=stopped.seconds, killed=stopped.killed)
        handover = prove_handover(ctx, running, wanted.slot, wanted.budgets.handover_s, wanted.user, stopped.pids)
        if not handover.ok:
            message = f"the slot is not free after {handover.seconds:g} s: {'; '.join(handover.left)}"
            self._note("handover_failed", left=handover.left, seconds=handover.seconds, message=message)
            fix = "stop the named processes, then swap again"
            raise _Failed(Failure("handover_failed", None, message, {"left": handover.left, "fix": fix}))
        self._note(
            "handover_proven",
            seconds=handover.seconds,
            port=wanted.slot.port,
            cgroups_empty=len(running),
            gpu=handover.gpu,
            swept=handover.swept,
        )

    def _still_serving(self) -> float | None:
        """The moment at which the committed service was seen serving (tiers 0 to 2), None when it does not."""
        if self._state.active is None:
            return None
        with contextlib.suppress(SystemdError):
            if prove_now(self._ctx, self._state.active.service, tiers=2).ok:
                return self._ctx.clock.mono()
        return None

    def _start_and_prove(self, service: Service, cancellable: bool) -> GateResult:
        ctx = self._ctx
        if cancellable:
            self._cancel_point("before the start")
        path = ctx.paths.unit(service.unit)
        written = not path.exists() or path.read_text() != service.unit_text
        if written:
            write_text(path, service.unit_text)
        drop_in = ctx.paths.gate_drop_in(service.unit)
        drop_in.parent.mkdir(parents=True, exist_ok=True)
        write_text(drop_in, _GATE_DROP_IN)
        ctx.systemd.daemon_reload()
        ctx.systemd.reset_failed([service.unit])
        (before,) = ctx.systemd.show(service.unit)
        self._note("start_requested", unit=service.unit, variant=service.variant, unit_written=written)
        gate = Gate(ctx, service, self._note, before.invocation_id, cancellable)
        ctx.systemd.start(service.unit)
        return gate.run()

    def _commit(self, wanted: Service, previous: Service | None, result: GateResult, units: Sequence[str]) -> str:
        """Make the wanted service the committed one; gives a warning when the boot could not be set to it."""
        active = Active(wanted, self._ctx.clock.wall(), self._plan.job, result.invocation_id, result.tiers)
        committed = State(self._plan.slot, active, previous)
        states.save(self._ctx.paths.state(self._plan.slot), committed)
        # The rename above is the commit: from here on the wanted variant is the one to come back to.
        self._state = committed
        self._touched, self._lenient = False, True
        boot = self._set_boot(committed, units)
        figures = self._keep_figures(active, result)
        return "; ".join(problem for problem in (boot, figures) if problem)

    def _last_look(self, service: Service, result: GateResult) -> Failure | None:
        """What was lost since the soak, while state and boot were written; None when the proven process serves."""
        ctx = self._ctx
        proof = prove_now(ctx, service, tiers=1)
        problem = proof.problem
        if proof.ok and proof.unit.invocation_id != result.invocation_id:
            problem = f"{service.unit} was started anew after it was proven"
        rivals = [state.unit for state in ctx.systemd.show(*service.rivals) if state.running]
        if not problem and rivals:
            problem = f"{', '.join(rivals)} was started beside it"
        if not problem:
            return None
        lines: list[str] = []
        with contextlib.suppress(SystemdError):
            lines, _ = ctx.systemd.log_lines(result.invocation_id, last=500)
        report = {
            "unit": service.unit,
            "name": "unit",
            "traceback": first_traceback(lines),
            "lines": error_lines(lines),
            "fix": f"read the log: journalctl _SYSTEMD_INVOCATION_ID={result.invocation_id}",
        }
        return Failure("tier_failed", 0, f"passed the gate and was lost right after the soak: {problem}", report)

    def _set_boot(self, state: State, units: Sequence[str]) -> str:
        """`finalise`; what went wrong in words, as the service serves all the same."""
        try:
            finalise(self._ctx, state, units)
        except (SystemdError, OSError) as error:
            return f"serving, but the boot settings could not be written ({error}); swap again to repair them"
        return ""

    def _keep_figures(self, active: Active, result: GateResult) -> str:
        """Keep what the canary said as golden and record, for the gates to come; what went wrong, in words."""
        if result.canary is None:
            return ""
        ctx, service = self._ctx, active.service
        try:
            kept = goldens.record(ctx.paths, service, result.canary, active.job, active.since)
            if kept is not None:
                self._note("golden_recorded", file=str(kept), variant=service.variant)
            note_record(ctx.paths, service, result.canary.repetitive, active.job, active.since)
        # The service is committed: whatever is wrong with files of figures, it is no failure of the swap.
        except Exception as error:
            return f"golden or record not kept ({type(error).__name__}: {error})"
        return ""

    # --- the way back

    def _give_back(self, wanted: Service, failure: Failure) -> SwapResult:
        """Bring the committed service back through the same gate, once."""
        self._lenient = True
        ctx, active = self._ctx, self._state.active
        units = slot_units(self._state, [wanted])
        back_to = active.service.variant if active else None
        self._note("rollback_started", cause=failure.message, from_variant=wanted.variant, to_variant=back_to)
        try:
            second, result = self._restore(units, wanted)
        except Exception as error:  # the second cause is reported beside the first, whatever it is
            second, result = Failure("failed", None, f"{type(error).__name__}: {error}"), None
        with contextlib.suppress(SystemdError, OSError):
            finalise(ctx, self._state, units)
        if second is None and active is not None and result is not None:
            with contextlib.suppress(SystemdError):
                second = self._last_look(active.service, result)
        outcome = "interrupted" if failure.kind == "interrupted" else "rolled_back"
        if second is not None:
            host = self._describe_host(units, wanted)
            cause = f"{failure.message}. And the way back failed: {second.message}"
            self._note("rollback_failed", cause=failure.message, second_cause=second.message, host=host)
            report = {**failure.report, "rollback": second.report, "host": host}
            advice = second.advice or "repair the host, then swap again"
            return self._result("rollback_failed", cause=cause, advice=advice, report=report)
        if active is None:
            self._note("rolled_back", variant=None, message="nothing was committed before: the slot is left empty")
            cause = f"{failure.message}. Nothing was committed before, so the slot is empty now"
            return self._result(outcome, cause=cause, advice=failure.advice, report=failure.report)
        downtime = self._downtime(result)
        told = list(result.told) if result else []
        self._note("rolled_back", variant=back_to, unit=active.service.unit, downtime_s=downtime, told=told)
        return self._result(
            outcome,
            cause=failure.message,
            advice=failure.advice,
            active=back_to,
            downtime_s=downtime,
            report=failure.report,
        )

    def _restore(self, units: Sequence[str], wanted: Service) -> tuple[Failure | None, GateResult | None]:
        ctx, active = self._ctx, self._state.active
        running = [state for state in ctx.systemd.show(*units) if state.running]
        stopped = stop_units(ctx, running, wanted.budgets.drain_s + wanted.budgets.stop_s)
        ctx.systemd.reset_failed(units)
        if stopped.stuck:
            return Failure("failed", None, f"{', '.join(stopped.stuck)} cannot be stopped"), None
        handover = prove_handover(ctx, running, wanted.slot, wanted.budgets.handover_s, wanted.user, stopped.pids)
        if not handover.ok:
            message = f"the slot is not free: {'; '.join(handover.left)}"
            return Failure("failed", None, message, {"fix": "stop the named processes"}), None
        if active is None:
            return None, None
        result = self._start_and_prove(active.service, cancellable=False)
        if result.ok:
            proven = Active(active.service, active.since, active.job, result.invocation_id, result.tiers)
            self._state = State(self._state.slot, proven, self._state.previous)
            # What is committed has not changed, only its invocation: a full disk must not fail the way back.
            with contextlib.suppress(StateError):
                states.save(ctx.paths.state(self._plan.slot), self._state)
        return result.failure, result

    def settle(self, also_stop: Sequence[str]) -> tuple[bool, str]:
        """See `restore_committed`."""
        self._lenient = True
        ctx = self._ctx
        self._state = states.load(ctx.paths.state(self._plan.slot), self._plan.slot)
        active = self._state.active
        units = sorted({*slot_units(self._state, self._plan.all_services()), *also_stop})
        if active is None:
            running = [state for state in ctx.systemd.show(*units) if state.running]
            stopped = stop_units(ctx, running, 30.0)
            finalise(ctx, self._state, units)
            names = ", ".join(state.unit for state in running) or "nothing"
            return not stopped.stuck, f"no variant is committed; stopped {names}"
        service = active.service
        others = [state for state in ctx.systemd.show(*units) if state.running and state.unit != service.unit]
        # The unit file may already hold the text of the variant that the broken job wanted.
        path = ctx.paths.unit(service.unit)
        same_text = path.exists() and path.read_text() == service.unit_text
        if not others and same_text and prove_now(ctx, service).ok:
            finalise(ctx, self._state, units)
            return True, f"{service.variant} serves, as committed"
        cause = "a job broke off in the middle of a swap"
        self._note("rollback_started", cause=cause, from_variant=None, to_variant=service.variant)
        try:
            failure, result = self._restore(units, service)
        finally:
            with contextlib.suppress(SystemdError, OSError):
                finalise(ctx, self._state, units)
        if failure is not None:
            return False, f"{service.variant} could not be brought back: {failure.message}"
        told = f"; told only: {'; '.join(result.told)}" if result and result.told else ""
        return True, f"{service.variant} was brought back through the gate{told}"

    # --- small things

    def _note(self, event: str, tier: int | None = None, **detail: Any) -> None:
        if not self._lenient:
            self._journal.append(self._plan.job, event, tier, **detail)
            return
        try:
            self._journal.append_at_last(self._plan.job, event, tier, **detail)
        except JournalError as error:
            # After the commit and on the way back nothing may stop us, least of all the report about it.
            print(f"{event}: {detail} (not in the journal: {error})", file=sys.stderr)

    def _cancel_point(self, where: str) -> None:
        if self._ctx.cancel.is_set():
            raise Interrupted(where)

    def _serving(self) -> str | None:
        """The committed variant when it serves now, proven by tiers 0 to 3."""
        active = self._state.active
        with contextlib.suppress(SystemdError):
            if active is not None and prove_now(self._ctx, active.service).ok:
                return active.service.variant
        return None

    def _downtime(self, result: GateResult | None) -> float | None:
        if self._served_until is None or result is None or result.completed_at is None:
            return None
        return round(result.completed_at - self._served_until, 3)

    def _describe_host(self, units: Sequence[str], wanted: Service) -> dict[str, Any]:
        """What an operator needs to see when both ways failed."""
        described: dict[str, Any] = {}
        with contextlib.suppress(SystemdError):
            described["units"] = {
                state.unit: f"{state.active_state}/{state.sub_state}, {state.exit_text()}"
                for state in self._ctx.systemd.show(*units)
            }
        listeners = self._ctx.procfs.listeners(wanted.slot.port, wanted.slot.bind)
        described["port"] = [listener.describe() for listener in listeners] or ["nobody listens"]
        return described

    def _result(self, outcome: str, **values: Any) -> SwapResult:
        return SwapResult(outcome, round(self._ctx.clock.mono() - self._start, 3), **values)


@dataclass(frozen=True)
class Need:
    """What brings a slot to a service: `noop`, `refresh` (`changes`, in words, without a restart) or `swap`.

    `drop_ins` are local changes of the unit that serves, which are allowed and must be seen.
    """

    kind: str
    changes: tuple[str, ...] = ()
    drop_ins: tuple[str, ...] = ()


def what_is_needed(ctx: Context, state: State, wanted: Service) -> Need:
    """Look at state and host, touch nothing. A job and `--check` both go by this. Raises `SystemdError`.

    Nothing is needed when the very service is committed, serves now (tiers 0 to 3), alone in its slot, and starts at
    boot. A refresh will do where only the boot setting or lines of the unit that a reload puts in force differ.
    """
    active = state.active.service if state.active else None
    if active is None or (active.unit, active.plan_hash, active.identity) != (
        wanted.unit,
        wanted.plan_hash,
        wanted.identity,
    ):
        return Need("swap")
    texts = {active.unit_text, unit_on_disk(ctx, wanted.unit), wanted.unit_text}
    if len({process_text(text) for text in texts}) != 1:
        return Need("swap")
    proof = prove_now(ctx, wanted)
    # A unit that systemd has not read anew may have been started with other settings than those in its file.
    if not proof.ok or proof.unit.need_daemon_reload or any(unit.running for unit in ctx.systemd.show(*wanted.rivals)):
        return Need("swap")
    # What serves now could not be started again: the swap's own preflight says so, and touches nothing.
    if file_findings(wanted):
        return Need("swap")
    changes = [f"rewrite {wanted.unit}"] if len(texts) > 1 else []
    if not proof.unit.starts_at_boot:
        changes.append(f"enable {wanted.unit} at boot (it is {proof.unit.boot_text()})")
    return Need("refresh" if changes else "noop", tuple(changes), proof.unit.drop_ins)


def process_text(unit_text: str) -> str:
    """The part of a unit that its process depends on: without what a reload alone puts in force."""
    reloadable = ("After=", "Conflicts=", "TimeoutStopSec=")
    return "\n".join(line for line in unit_text.splitlines() if not line.startswith(reloadable))


def unit_on_disk(ctx: Context, unit: str) -> str:
    """Text of the unit file, empty when there is none."""
    path: Path = ctx.paths.unit(unit)
    return path.read_text() if path.exists() else ""
