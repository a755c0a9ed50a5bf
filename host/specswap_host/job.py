"""Jobs: a plan taken in, carried out by a transient unit, journaled to its end, settled when it broke off."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from . import state as states
from .atomic import read_json, write_json
from .context import Context
from .journal import Event, Journal, JournalError
from .loan import borrow, give_back
from .lock import LockBusy, Owner, SlotLock, has_open, holder
from .plan import Controller, Plan, PlanError
from .swap import EXIT_CODES, SwapResult, restore_committed, run_swap
from .systemd import SystemdError, job_unit

REFUSED = EXIT_CODES["refused"]
# The submitting process lets go of the lock just before the job takes it.
LOCK_PATIENCE_S = 5.0

_BEGAN = ("stop_started", "start_requested")
_ENDED = ("committed", "rolled_back", "rollback_failed", "settled")


class Busy(Exception):
    """The slot has a job; `owner` says whose, as far as it is known."""

    def __init__(self, message: str, owner: Owner | None) -> None:
        super().__init__(message)
        self.owner = owner


@dataclass(frozen=True)
class Submitted:
    """A job that was taken in; follow its events after `after`."""

    job: str
    slot: str
    after: int

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class OpenJob:
    """What a step of a job works with; `plan` is the job's own."""

    journal: Journal
    ctx: Context
    plan: Plan


def open_job(slot: str, job: str, ctx: Context | None = None, catch_signals: bool = False) -> OpenJob:
    """Journal, context and plan of a job whose lock the caller, or the caller's parent, holds.

    With `catch_signals`, SIGTERM and SIGINT set `ctx.cancel`: a running swap then gives the slot back and ends as
    `interrupted`. Raises `PlanError` when the job has no usable plan.
    """
    ctx = ctx or Context()
    if catch_signals:
        _catch_signals(ctx.cancel.set)
    return OpenJob(Journal(ctx.paths.journal(slot)), ctx, load_plan(ctx, slot, job))


def load_plan(ctx: Context, slot: str, job: str) -> Plan:
    """The stored plan of a job; raises `PlanError` that names the file."""
    path = ctx.paths.plan(slot, job)
    try:
        return Plan.from_dict(read_json(path))
    except FileNotFoundError as error:
        raise PlanError(f"{path}: job {job} was never submitted on this host") from error
    except (OSError, PlanError, ValueError) as error:
        raise PlanError(f"{path}: {error}") from error


# --- submit


def submit(data: Any, ctx: Context) -> Submitted:
    """Take a plan in and start its job as a transient unit, which outlives this process and its login.

    A job id that is already known is not an error: it can be followed, and is started again when its process is
    gone before its end. Raises `PlanError`, `Busy` (nothing was touched), `JournalError` or `SystemdError`.
    """
    plan = Plan.from_dict(data)
    journal = Journal(ctx.paths.journal(plan.slot))
    known = journal.read(job=plan.job)
    after = int(known[0]["seq"]) - 1 if known else 0
    if known and (known[-1]["event"] == "job_finished" or alive(ctx, plan.slot, plan.job)):
        return Submitted(plan.job, plan.slot, after)
    unit = job_unit(plan.slot)
    owner = _owner(plan)
    lock = SlotLock(ctx.paths.lock(plan.slot))
    try:
        lock.acquire(owner)
    except LockBusy as busy:
        raise Busy(str(busy), busy.owner) from busy
    except OSError as error:
        raise JournalError(f"{lock.path}: {error.strerror or error}; run as root, or make room there") from error
    with lock:
        (state,) = ctx.systemd.show(unit)
        if state.running:
            # A job that has just been started, or is about to end, does not hold the lock: its record is the journal.
            first = _accepted_last(journal)
            raise Busy(f"the slot is busy: {first.describe() if first else f'{unit} is {state.active_state}'}", first)
        path = ctx.paths.plan(plan.slot, plan.job)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, plan.to_dict(), 0o600)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            raise JournalError(f"{path}: cannot be written ({error.strerror or error}); free space there") from error
        if not known:
            # Taking the lock has replaced the record of an owner that died; the journal keeps it.
            detail = _accepted_detail(plan)
            if lock.leftover is not None:
                detail["leftover"] = lock.leftover.describe()
            # From here on, so that a repair of the journal by this very event is told, too.
            after = journal.last_seq()
            journal.append(plan.job, "job_accepted", **detail)
        package = Path(__file__).resolve().parent
        argv = [sys.executable, "-m", package.name, "run", "--slot", plan.slot, "--job", plan.job]
        # The job keeps the toolkit it was started with, even if `current` is switched meanwhile.
        env = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            # Still under the lock, which the job waits for: nobody else can come in between.
            ctx.systemd.run_transient(unit, argv, f"specswap job {plan.job} on slot {plan.slot}", env)
        except SystemdError as error:
            result = SwapResult("refused", 0.0, None, f"the job could not be started: {error}", "submit it again")
            journal.append(plan.job, "job_finished", **result.to_detail())
            raise
    return Submitted(plan.job, plan.slot, after)


def alive(ctx: Context, slot: str, job: str) -> bool:
    """True while the process of an unfinished job exists, or is just being started."""
    owner = holder(ctx.paths.lock(slot))
    if owner is not None and owner.job:  # one without a job lets go in a moment
        return owner.job == job
    (state,) = ctx.systemd.show(job_unit(slot))
    return state.running


def _accepted_last(journal: Journal) -> Owner | None:
    """Who asked for the last accepted job that has no end yet."""
    open_jobs: dict[str, Owner] = {}
    for event in journal.read():
        detail, job = event["detail"], event["job"]
        if event["event"] == "job_accepted":
            user, host, command = (str(detail.get(key, "")) for key in ("user", "host", "command"))
            open_jobs[job] = Owner(0, job, user, host, command, float(event["t_wall"]))
        elif event["event"] == "job_finished":
            open_jobs.pop(job, None)
    return list(open_jobs.values())[-1] if open_jobs else None


def break_lock(ctx: Context, slot: str, job: str, by: Controller) -> None:
    """End the job that holds the slot's lock by force, if it is the one called `job`; the next job settles it.

    For an owner that lives and hangs: one that died holds nothing, and then nothing is done here. Who did it is in the
    journal before anything is. Raises `Busy` when another job holds the lock or this one cannot be ended,
    `JournalError` (nothing was done) and `SystemdError`.
    """
    path = ctx.paths.lock(slot)
    owner = holder(path)
    if owner is None:
        return
    if owner.job != job:
        raise Busy(f"the lock was not broken: it is not held by job {job}, but by {owner.describe()}", owner)
    who = f"{by.user or '?'}@{by.host or '?'} ({by.command or '?'})"
    Journal(ctx.paths.journal(slot)).append(job, "lock_broken", by=who, owner=owner.describe())
    ctx.systemd.kill(job_unit(slot))
    # Normally that was all; a submit that hangs holds the lock outside of the job's unit.
    if has_open(path, owner.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while (left := holder(path)) is not None or ctx.systemd.show(job_unit(slot))[0].running:
        if time.monotonic() >= deadline:
            raise Busy(f"job {job} was killed and is still there after {LOCK_PATIENCE_S:g} s", left)
        time.sleep(0.05)


def _accepted_detail(plan: Plan) -> dict[str, Any]:
    detail: dict[str, Any] = {"kind": plan.kind, **plan.controller.to_dict()}
    if plan.service is not None:
        detail.update(variant=plan.service.variant, unit=plan.service.unit, plan_hash=plan.service.plan_hash)
    if plan.arms:
        detail.update(arms=list(plan.arms), pairs=plan.pairs)
    return detail


def _owner(plan: Plan) -> Owner:
    asked = plan.controller
    return Owner(os.getpid(), plan.job, asked.user, asked.host, asked.command or plan.kind, time.time())


# --- run


def run(slot: str, job: str, ctx: Context) -> int:
    """Carry a submitted job out; returns its exit code. Always ends with the event `job_finished`."""
    child: list[subprocess.Popen[bytes]] = []

    def asked_to_end() -> None:
        ctx.cancel.set()
        for process in child:
            process.send_signal(signal.SIGTERM)

    _catch_signals(asked_to_end)
    plan = load_plan(ctx, slot, job)
    journal = Journal(ctx.paths.journal(slot))
    finished = [event for event in journal.read(job=job) if event["event"] == "job_finished"]
    if finished:
        return int(finished[0]["detail"]["exit_code"])
    began = ctx.clock.mono()
    lock = SlotLock(ctx.paths.lock(slot))
    extra: dict[str, Any] = {}
    try:
        _acquire(lock, _owner(plan))
        try:
            # Read before anything of this process is in it: the journal may end in a broken run of this very job.
            before = journal.read()
            journal.reserve()
            _note(journal, job, "lock_taken", leftover=lock.leftover.describe() if lock.leftover else None)
            settled = settle(plan, journal, ctx, before)
            moved = next((one for one in settled if one.moved), None)
            if plan.kind == "rollback" and moved is not None:
                # Whoever asked to go back meant this: one step more would go further than anybody announced.
                seconds = round(ctx.clock.mono() - began, 3)
                cause = f"settling the unfinished job {moved.job} was the way back already: {moved.did}"
                advice = "roll back once more to go on to the variant before that one"
                result = SwapResult("noop", seconds, None, cause, advice, _committed_variant(ctx, slot))
            elif plan.kind == "compare":
                result, extra = _run_child(plan, journal, ctx, lock, child)
            else:
                result = run_swap(plan, journal, ctx)
        except Exception as error:
            # A defect of ours must not leave a job without an end; what it began is settled by the next job.
            import traceback

            report = {"traceback": traceback.format_exc().splitlines()[-20:]}
            seconds = round(ctx.clock.mono() - began, 3)
            cause = f"{type(error).__name__}: {error}"
            result = SwapResult("interrupted", seconds, None, cause, "run any job: it settles this one", None, report)
        # The end is written under the lock, so that no successor takes this job for a broken one.
        _note(journal, job, "job_finished", **{**result.to_detail(), **extra})
    except LockBusy as busy:
        result = SwapResult(
            "refused", round(ctx.clock.mono() - began, 3), None, str(busy), "wait for it, then try again"
        )
        _note(journal, job, "job_finished", **result.to_detail())
    finally:
        lock.release()
    return result.exit_code


def _acquire(lock: SlotLock, owner: Owner) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            lock.acquire(owner)
            return
        except LockBusy:
            if time.monotonic() >= deadline:
                raise


def _note(journal: Journal, job: str, event: str, **detail: Any) -> None:
    try:
        journal.append_at_last(job, event, **detail)
    except JournalError as error:
        # The swap itself decides what a full disk means; the frame around it only reports.
        print(f"{event}: {detail} (not in the journal: {error})", file=sys.stderr)


def _catch_signals(action: Callable[[], None]) -> None:
    def handler(_number: int, _frame: FrameType | None) -> None:
        action()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)


def _run_child(
    plan: Plan, journal: Journal, ctx: Context, lock: SlotLock, child: list[subprocess.Popen[bytes]]
) -> tuple[SwapResult, dict[str, Any]]:
    """Run a comparison's runner as a child that shares the lock, and clean up after it if it broke off."""
    began = ctx.clock.mono()
    argv = [*plan.runner, "--plan", str(ctx.paths.plan(plan.slot, plan.job))]
    package = Path(__file__).resolve().parent
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    borrow(ctx, plan.slot, plan.job)
    try:
        process = subprocess.Popen(argv, env=env, pass_fds=(lock.fileno(),), stdin=subprocess.DEVNULL)
    except OSError as error:
        cause = f"{plan.runner[0]}: {error.strerror}"
        return SwapResult("compare_failed", 0.0, None, cause, "run site.yml: it builds the benchmark environment"), {}
    child.append(process)
    if ctx.cancel.is_set():
        process.send_signal(signal.SIGTERM)
    code = process.wait()
    child.clear()
    events = journal.read(job=plan.job)
    extra = {"session": next((e["detail"]["session"] for e in events if e["detail"].get("session")), None)}
    if broke_off(events):
        proven, did = restore_committed(plan, journal, ctx)
        _note(
            journal, plan.job, "settled", settled_job=plan.job, found="the runner ended in a swap", did=did, ok=proven
        )
    # The runner puts the variant back itself; after one that died, and for the way back from there, this does.
    asked = ctx.cancel.is_set()
    ctx.cancel.clear()
    restored, did = give_back(ctx, journal, plan, plan.job)
    if did:
        _note(journal, plan.job, "settled", settled_job=plan.job, found="the runner left an arm", did=did, ok=restored)
    seconds = round(ctx.clock.mono() - began, 3)
    if not restored:
        return SwapResult("compare_failed", seconds, None, did, "swap to the variant that the slot should hold"), extra
    if code == 0:
        return SwapResult("compared", seconds), extra
    if asked:
        return SwapResult("interrupted", seconds, None, "asked to end", "run the comparison again"), extra
    failed = [e["detail"] for e in events if e["event"] == "block_failed"]
    cause = str(failed[0].get("cause") or failed[0]) if failed else f"{plan.runner[0]} ended with exit code {code}"
    advice = f"read its output: journalctl -u {job_unit(plan.slot)}"
    return SwapResult("compare_failed", seconds, None, cause, advice), extra


# --- settle


def broke_off(events: Sequence[Event]) -> bool:
    """True when the events of a job end in the middle of a swap: something was stopped or started, nothing decided."""
    open_swap = False
    for event in events:
        if event["event"] in _BEGAN:
            open_swap = True
        elif event["event"] in _ENDED:
            open_swap = False
    return open_swap


@dataclass(frozen=True)
class Settled:
    """What settling one unfinished job did; `moved` when the slot was given back to another process by it."""

    job: str
    did: str
    moved: bool


def settle(plan: Plan, journal: Journal, ctx: Context, before: Sequence[Event]) -> list[Settled]:
    """End every job in the events `before` that has no `job_finished`, except the plan's own; tells what was done.

    Where one broke off in a swap, the committed service is brought back through the gate first.
    """
    jobs: dict[str, list[Event]] = {}
    for event in before:
        jobs.setdefault(event["job"], []).append(event)
    settled = []
    for job, events in jobs.items():
        names = [event["event"] for event in events]
        if "job_finished" in names or "job_accepted" not in names:
            continue
        broken = broke_off(events)
        if job == plan.job:
            # The same job run again, after its own process was killed.
            if broken:
                _settle_one(plan, journal, ctx, job, names, broken)
            continue
        settled.append(_settle_one(plan, journal, ctx, job, names, broken))
        seconds = round(float(events[-1]["t_wall"]) - float(events[0]["t_wall"]), 3)
        result = SwapResult("interrupted", seconds, None, f"its process ended after {names[-1]}", "submit it again")
        _note(journal, job, "job_finished", **result.to_detail(), settled_by=plan.job)
    return settled


def _settle_one(plan: Plan, journal: Journal, ctx: Context, job: str, names: Sequence[str], broken: bool) -> Settled:
    found = f"it ended after {names[-1]}"
    last = journal.last_seq()
    did, proven = "nothing to do", True
    if broken or "committed" in names:
        also_stop: list[str] = []
        try:
            for service in load_plan(ctx, plan.slot, job).all_services():
                also_stop += [service.unit, *service.rivals]
        except PlanError:
            pass  # its plan is gone: the units that this plan and the state name are looked at all the same
        proven, did = restore_committed(plan, journal, ctx, also_stop)
    if proven:
        proven, put_back = give_back(ctx, journal, plan, job)
        did = put_back or did
    # Both ways of giving a slot back start a service and pass it through the gate.
    started = any(event["event"] == "start_requested" for event in journal.read(last, plan.job))
    _note(journal, plan.job, "settled", settled_job=job, found=found, did=did, ok=proven)
    return Settled(job, did, started and proven)


def _committed_variant(ctx: Context, slot: str) -> str | None:
    active = states.load(ctx.paths.state(slot), slot).active
    return active.service.variant if active else None
