"""Stopping the old service, and the proof that it has let go: empty cgroup, free port, GPU memory back at base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .context import Context
from .gpus import GpuError
from .plan import Slot
from .procfs import in_cgroup
from .systemd import UnitState

POLL_S = 0.05
KILL_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Stopped:
    """How the stop went; `killed` are units that had to be killed, `stuck` those that still run.

    `pids` are the processes that the units had before.
    """

    seconds: float
    killed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Handover:
    """Whether the place is free; `left` names every process that still holds a part of it.

    `swept` are leftovers of dead processes that were removed, `gpu` says what was found out about the GPUs.
    """

    ok: bool
    seconds: float
    left: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    gpu: str = ""


def stop_units(ctx: Context, states: Sequence[UnitState], budget_s: float) -> Stopped:
    """Stop `states`' units together; after `budget_s` kill what is left, and wait a little for the kernel."""
    start = ctx.clock.mono()
    units = [state.unit for state in states]
    if not units:
        return Stopped(0.0)
    pids = tuple(pid for state in states for pid in ctx.procfs.members(state.control_group))
    ctx.systemd.stop(units)
    killed: list[str] = []
    deadline = start + budget_s
    while True:
        running = [state.unit for state in ctx.systemd.show(*units) if state.running]
        now = ctx.clock.mono()
        if not running:
            return Stopped(round(now - start, 3), killed, pids=pids)
        if now >= deadline:
            if killed:
                return Stopped(round(now - start, 3), killed, running, pids)
            killed = running
            for unit in running:
                ctx.systemd.kill(unit)
            deadline = now + KILL_PATIENCE_S
        ctx.clock.sleep(POLL_S)


def prove_handover(
    ctx: Context,
    states: Sequence[UnitState],
    slot: Slot,
    budget_s: float,
    user: str = "",
    old_pids: Sequence[int] = (),
) -> Handover:
    """Wait up to `budget_s` until cgroups are empty, nobody listens on the port, and the slot's GPUs are at base.

    `states` and `old_pids` are from before the stop: a stopped unit no longer names its cgroup. Then what dead
    processes of `user` left in shared memory is removed.
    """
    start = ctx.clock.mono()
    groups = [state.control_group for state in states if state.control_group]
    while True:
        left = [
            f"{ctx.procfs.describe(pid)} is still in {group}" for group in groups for pid in ctx.procfs.members(group)
        ]
        for listener in ctx.procfs.listeners(slot.port, slot.bind):
            if not any(in_cgroup(listener.cgroup, group) for group in groups):
                left.append(f"{listener.describe()} listens on the slot's port")
            elif not left:
                left.append(listener.describe())
        gpu = ""
        if not left:
            # Last, as it asks a program that takes its time.
            left, gpu = _gpus(ctx, slot, old_pids)
        seconds = round(ctx.clock.mono() - start, 3)
        if not left:
            return Handover(True, seconds, swept=ctx.sweep(user) if user else [], gpu=gpu)
        if seconds >= budget_s:
            return Handover(False, seconds, left)
        ctx.clock.sleep(POLL_S)


def _gpus(ctx: Context, slot: Slot, old_pids: Sequence[int]) -> tuple[list[str], str]:
    try:
        report = ctx.gpus.report(slot.gpus, old_pids)
    except GpuError as error:
        return [f"the GPUs of the slot cannot be looked at: {error}"], ""
    return list(report.left), report.note or f"GPUs {', '.join(str(gpu) for gpu in slot.gpus)} at base"
