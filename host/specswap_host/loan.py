"""A comparison borrows its slot: what was committed before is noted first and put back at the end.

Its blocks commit arms on the way, so neither the committed state nor `previous` says any more what the operator had.
"""

from __future__ import annotations

from pathlib import Path

from . import state as states
from .context import Context
from .journal import Journal
from .plan import Plan
from .state import State
from .swap import run_swap


def _note_path(ctx: Context, slot: str, job: str) -> Path:
    return ctx.paths.plan(slot, job).with_name("before.json")


def borrow(ctx: Context, slot: str, job: str) -> None:
    """Note the committed state durably, unless an earlier process of the same job did; raises `StateError`."""
    path = _note_path(ctx, slot, job)
    if not path.exists():
        states.save(path, states.load(ctx.paths.state(slot), slot))


def lent(ctx: Context, slot: str, job: str) -> State | None:
    """What job `job` borrowed the slot from, None when it borrowed nothing; raises `StateError`."""
    path = _note_path(ctx, slot, job)
    return states.load(path, slot) if path.exists() else None


def give_back(ctx: Context, journal: Journal, plan: Plan, borrower: str) -> tuple[bool, str]:
    """Put back what job `borrower` found: the active variant through the gate, `previous` by the state alone.

    Gives whether it holds now, and what was done in words (empty where nothing was). `plan` names the job that
    reports. A slot on which nothing was committed before keeps what it has.
    """
    found = lent(ctx, plan.slot, borrower)
    if found is None or found.active is None:
        return True, ""
    did = ""
    now = states.load(ctx.paths.state(plan.slot), plan.slot)
    if now.active is None or not now.active.service.same_as(found.active.service):
        result = run_swap(plan.swap_to(found.active.service), journal, ctx)
        if result.exit_code != 0:
            return False, f"{found.active.service.variant} could not be put back: {result.cause}"
        did = f"{found.active.service.variant} was put back as before the comparison"
        now = states.load(ctx.paths.state(plan.slot), plan.slot)
    if now.previous != found.previous:
        states.save(ctx.paths.state(plan.slot), State(plan.slot, now.active, found.previous))
    return True, did
