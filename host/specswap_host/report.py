"""What a host says about its slots: status, history, and what a plan would change. Reads only."""

from __future__ import annotations

import difflib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from . import registry as registries
from . import state as states
from .context import Context
from .gate import prove_now
from .history import history, job_line
from .job import broke_off
from .journal import Journal, unfinished
from .loan import lent
from .lock import holder
from .plan import Plan, PlanError, Service
from .preflight import file_findings, preflight
from .procfs import unit_of
from .state import StateError
from .swap import slot_units, unit_on_disk, what_is_needed
from .systemd import SystemdError, job_unit


def slot_status(ctx: Context, slot: str) -> dict[str, Any]:
    """Committed state, live truth, and whether both agree; `reasons` says what does not.

    Keys: slot, wanted, active, previous, live {unit, port, tiers}, agree, reasons, busy, unfinished, registered,
    last_job (as in the history).
    """
    status: dict[str, Any] = {"slot": slot, "active": None, "previous": None, "wanted": None, "registered": []}
    reasons: list[str] = []
    services: list[Service] = []
    try:
        registry = registries.load(ctx.paths, slot)
        services = list(registry.services.values())
        status["registered"], status["wanted"] = sorted(registry.services), registry.wanted
    except registries.RegistryError as error:
        reasons.append(str(error))
    state = states.State(slot)
    try:
        state = states.load(ctx.paths.state(slot), slot)
    except StateError as error:
        reasons.append(str(error))
    live: dict[str, Any] = {"unit": None, "port": [], "tiers": [], "problem": ""}
    place = state.active.service.slot if state.active else (services[0].slot if services else None)
    try:
        units = slot_units(state, services)
        running = [one.unit for one in ctx.systemd.show(*units) if one.running]
        if state.active:
            service = state.active.service
            status["active"] = {
                "variant": service.variant,
                "unit": service.unit,
                "since": state.active.since,
                "job": state.active.job,
                "proven_tiers": list(state.active.tiers),
                "plan_hash": service.plan_hash,
                "identity": service.identity,
                "release": service.release,
            }
            proof = prove_now(ctx, service)
            live.update(tiers=list(proof.tiers), problem=proof.problem)
            live["unit"] = {
                "name": service.unit,
                "active_state": proof.unit.active_state,
                "sub_state": proof.unit.sub_state,
                "main_pid": proof.unit.main_pid,
                "n_restarts": proof.unit.n_restarts,
                "invocation_id": proof.unit.invocation_id,
                "enabled": proof.unit.starts_at_boot,
                # A process that nobody swapped in holds the live tiers at best, never the committed proof.
                "restarted": proof.unit.invocation_id != state.active.invocation_id,
                "drop_ins": list(proof.unit.drop_ins),
            }
            if not proof.ok:
                reasons.append(proof.problem)
            if proof.ok and not proof.unit.starts_at_boot:
                reasons.append(f"{service.unit} is {proof.unit.boot_text()}: it would not start at boot")
            reasons += [f"{one.message}: the next start would fail" for one in file_findings(service)]
            if unit_on_disk(ctx, service.unit) != service.unit_text:
                reasons.append(f"{ctx.paths.unit(service.unit)} differs from what was committed")
            running = [unit for unit in running if unit != service.unit]
        reasons += [f"{unit} runs, but is not the committed variant" for unit in running]
        if place:
            listeners = ctx.procfs.listeners(place.port, place.bind)
            live["port"] = [
                {"pid": one.pid, "unit": unit_of(one.cgroup), "address": one.address, "command": one.command}
                for one in listeners
            ]
            if not state.active and listeners:
                reasons.append(f"port {place.port} is in use, but no variant is committed")
    except SystemdError as error:
        reasons.append(str(error))
    if state.previous:
        status["previous"] = {"variant": state.previous.variant, "plan_hash": state.previous.plan_hash}
    owner = holder(ctx.paths.lock(slot))
    jobs = history(ctx.paths, slot)
    status.update(
        live=live, busy=owner.to_dict() if owner else None, unfinished=None, last_job=jobs[-1] if jobs else None
    )
    if owner is None:
        open_jobs = [job for job in jobs if job["outcome"] is None]
        if open_jobs and not _job_runs(ctx, slot):
            status["unfinished"] = open_jobs[-1]["job"]
            reasons.append(f"job {open_jobs[-1]['job']} was interrupted; the next job settles it")
    status.update(agree=not reasons, reasons=reasons, port=place.port if place else None)
    return status


def _job_runs(ctx: Context, slot: str) -> bool:
    try:
        return ctx.systemd.show(job_unit(slot))[0].running
    except SystemdError:
        return False


def status_text(status: dict[str, Any]) -> str:
    """The status for people."""
    active, live = status["active"], status["live"]
    lines = [f"slot {status['slot']}, port {status['port'] or '?'}"]
    if active:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(active["since"]))
        lines.append(f"  active     {active['variant']} ({active['unit']}), plan {active['plan_hash']}")
        lines.append(f"  since      {since}, job {active['job']}, proven by tiers {_numbers(active['proven_tiers'])}")
        unit = live["unit"]
        if unit:
            boot = "starts at boot" if unit["enabled"] else "does NOT start at boot"
            lines.append(f"  live unit  {unit['active_state']}/{unit['sub_state']}, pid {unit['main_pid']}, {boot}")
            lines += [f"  drop-in    {path}, made by hand" for path in unit["drop_ins"]]
    else:
        lines.append("  active     nothing is committed")
    owners = [f"pid {one['pid']} ({one['unit'] or one['command']})" for one in live["port"]]
    lines.append(f"  port owner {', '.join(owners) or 'nobody listens'}")
    if active:
        again = live["unit"] and live["unit"]["restarted"]
        more = "; the process was started anew since its swap, higher tiers were not proven on it" if again else ""
        lines.append(f"  live proof tiers {_numbers(live['tiers'])} hold now{more}")
    if status["wanted"] and status["wanted"] != (active or {}).get("variant"):
        lines.append(f"  inventory  declares {status['wanted']}")
    if active and not status["registered"]:
        lines.append(f"  inventory  no longer describes this slot; to end it: systemctl disable --now {active['unit']}")
    if status["previous"]:
        lines.append(f"  previous   {status['previous']['variant']}, plan {status['previous']['plan_hash']}")
    lines.append(f"  registered {', '.join(status['registered']) or 'none'}")
    if status["last_job"]:
        lines.append(f"  last job   {job_line(status['last_job'])}")
    if status["busy"]:
        owner = status["busy"]
        what = f"job {owner['job']}" if owner["job"] else owner["command"]
        lines.append(f"  busy       {what} of {owner['user']}@{owner['host']} for {owner['age_s']:.0f} s")
    if status["agree"]:
        verdict = "state and host agree"
    elif job_at_work(status):
        verdict = "a job is changing the slot; state and host can be held together when it has ended"
    else:
        verdict = "STATE AND HOST DISAGREE"
    lines.append(f"  verdict    {verdict}")
    return "\n".join([*lines, *(f"             - {reason}" for reason in status["reasons"])])


def job_at_work(status: dict[str, Any]) -> bool:
    """True while a job holds the slot: what then differs from the committed state is on its way."""
    return bool(status["busy"] and status["busy"]["job"])


def _numbers(tiers: Sequence[int]) -> str:
    return ", ".join(str(tier) for tier in tiers) or "none"


def plan_diff(ctx: Context, plan: Plan) -> dict[str, Any]:
    """What a swap by `plan` would change, stop and cost. Touches nothing.

    Keys: slot, active, wanted, plan_hash_before, plan_hash_after, noop, refresh (what is done in words where nothing
    stops), unit_diff (unified), argv_before, argv_after, stops, starts, expected_downtime_s (median of this slot's
    earlier swaps to the variant, or of all its swaps; null without any), findings (why it would be refused).
    """
    state = states.load(ctx.paths.state(plan.slot), plan.slot)
    if plan.kind == "compare":
        raise PlanError("kind: diff takes plans of kind swap or rollback")
    wanted = plan.service if plan.kind == "swap" else _way_back(ctx, plan.slot, state)
    active = state.active.service if state.active else None
    if wanted is None:
        raise PlanError(f"slot {plan.slot}: no variant was committed before the active one")
    units = slot_units(state, [wanted])
    live = unit_on_disk(ctx, wanted.unit)
    need = what_is_needed(ctx, state, wanted)
    stays = need.kind != "swap"
    running = [one.unit for one in ctx.systemd.show(*units) if one.running]
    before, after = list(active.argv) if active else [], list(wanted.argv)
    diff = difflib.unified_diff(
        live.splitlines(keepends=True),
        wanted.unit_text.splitlines(keepends=True),
        f"{ctx.paths.unit(wanted.unit)} (now)",
        f"{ctx.paths.unit(wanted.unit)} (planned)",
    )
    swaps = [e for e in history(ctx.paths, plan.slot) if e["outcome"] == "swapped"]
    alike = [e for e in swaps if e["variant"] == wanted.variant] or swaps
    return {
        "slot": plan.slot,
        "active": active.variant if active else None,
        "wanted": wanted.variant,
        "plan_hash_before": active.plan_hash if active else None,
        "plan_hash_after": wanted.plan_hash,
        "noop": need.kind == "noop",
        "refresh": list(need.changes),
        "unit_diff": "".join(diff),
        "argv_before": before,
        "argv_after": after,
        "stops": [] if stays else running,
        "starts": None if stays else wanted.unit,
        "expected_downtime_s": 0.0 if stays else _median([e["downtime_s"] for e in alike if e["downtime_s"]]),
        "findings": [] if stays else [finding.to_dict() for finding in preflight(ctx, wanted, units)],
    }


def _way_back(ctx: Context, slot: str, state: states.State) -> Service | None:
    """Where a rollback would end: where settling an unfinished job leads already, else at the previous service."""
    active = state.active.service if state.active else None
    events = Journal(ctx.paths.journal(slot)).read()
    for job in unfinished(events) if holder(ctx.paths.lock(slot)) is None and not _job_runs(ctx, slot) else ():
        before = lent(ctx, slot, job)
        if before is not None and before.active is not None:
            same = active is not None and active.same_as(before.active.service)
            return before.previous if same else before.active.service
        own = [event for event in events if event["job"] == job]
        if active is not None and broke_off(own) and not prove_now(ctx, active).ok:
            return active
    return state.previous


def _median(values: Sequence[Any]) -> float | None:
    figures = [float(value) for value in values if isinstance(value, (int, float))]
    return round(statistics.median(figures), 3) if figures else None
