"""One job, whole: who, what, why, phases with seconds, evidence per tier, outcome, downtime. Reads the journal only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from .context import Paths
from .history import entry_of, figure, table, who
from .journal import Event, Journal
from .plan import PlanError

# event that ends a phase -> the phase's name; it began with the event before it
_STEPS = {
    "lock_taken": "lock",
    "settled": "settle",
    "preflight_passed": "preflight",
    "preflight_failed": "preflight",
    "stopped": "stop",
    "handover_proven": "hand-over",
    "handover_failed": "hand-over",
    "soak_passed": "soak",
    "committed": "commit",
}


def find_job(paths: Paths, slots: Sequence[str], job: str | None) -> tuple[str, str]:
    """(slot, job) of `job`, or of the job that was accepted last; raises `PlanError` with what there is."""
    found: dict[str, tuple[float, str]] = {}
    for slot in slots:
        for event in Journal(paths.journal(slot)).read():
            if event["event"] == "job_accepted":
                found[event["job"]] = (float(event["t_wall"]), slot)
    if not found:
        raise PlanError("no jobs yet: nothing to explain")
    if job is None:
        job = max(found, key=lambda name: found[name][0])
    if job not in found:
        recent = sorted(found, key=lambda name: found[name][0])[-5:]
        raise PlanError(f"no job {job} in the journal (the last: {', '.join(recent)}); see specswap-host history")
    return found[job][1], job


def explain(paths: Paths, slot: str, job: str) -> dict[str, Any]:
    """The job as its events tell it; raises `PlanError` when the journal does not hold it.

    Keys beside those of a history entry: advice, events, steps [{name, seconds}], passages [{variant, unit, why, steps,
    phases [{name, seconds}], tiers [{tier, name, result, took_s, budget_s, message, evidence}]}], failure (the first
    one's message, cause, traceback and lines, or null). A passage is one start of a service with its gate.
    """
    events = Journal(paths.journal(slot)).read(job=job)
    entry = entry_of(slot, job, events)
    if entry is None:
        raise PlanError(f"slot {slot}: no job {job} in the journal; see specswap-host history")
    end: dict[str, Any] = next((e["detail"] for e in events if e["event"] == "job_finished"), {})
    return {
        **entry,
        "advice": end.get("advice") or None,
        "events": len(events),
        "steps": _steps(events),
        "passages": _passages(events),
        "failure": _failure(events),
    }


def _at(event: Event) -> float:
    return float(event["detail"].get("elapsed_s", 0.0))


def _steps(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Phases around the starts: what ended when, in seconds since the event before it."""
    steps = []
    for before, event in zip(events, events[1:]):
        name = _STEPS.get(event["event"])
        if name is not None:
            took = event["detail"].get("seconds")
            seconds = took if isinstance(took, (int, float)) else round(_at(event) - _at(before), 3)
            steps.append({"name": name, "seconds": seconds})
    return steps


def _passages(events: Sequence[Event]) -> list[dict[str, Any]]:
    passages: list[dict[str, Any]] = []
    back = False
    for event in events:
        name, detail = event["event"], event["detail"]
        if name == "rollback_started":
            back = True
        elif name == "start_requested":
            passages.append(
                {
                    "variant": detail.get("variant"),
                    "unit": detail.get("unit"),
                    "why": "way back" if back else "wanted",
                    "phases": [],
                    "tiers": [],
                }
            )
        elif passages and name == "phase":
            passages[-1]["phases"].append({"name": detail.get("name"), "seconds": detail.get("seconds")})
        elif passages and name in ("tier_passed", "tier_failed", "tier_skipped", "crashed"):
            passages[-1]["tiers"].append(
                {
                    "tier": event["tier"],
                    "name": detail.get("name"),
                    "result": _tier_result(name, detail),
                    "took_s": detail.get("took_s"),
                    "budget_s": detail.get("budget_s"),
                    "message": detail.get("message") or detail.get("reason"),
                    "evidence": detail.get("evidence") or {},
                }
            )
        elif name in ("committed", "rolled_back"):
            back = False
    return passages


def _tier_result(name: str, detail: dict[str, Any]) -> str:
    if detail.get("told_only"):
        return "told only"
    return name[len("tier_") :] if name.startswith("tier_") else name


def _failure(events: Sequence[Event]) -> dict[str, Any] | None:
    names = ("crashed", "tier_failed", "handover_failed", "preflight_failed")
    counting = (event for event in events if not event["detail"].get("told_only"))
    first = next((event for event in counting if event["event"] in names), None)
    if first is None:
        return None
    detail = first["detail"]
    findings = [f"{one['message']} -> {one['fix']}" for one in detail.get("findings", [])]
    return {
        "event": first["event"],
        "tier": first["tier"],
        "message": detail.get("message") or "; ".join(findings),
        "cause": detail.get("cause"),
        "traceback": detail.get("traceback") or [],
        "lines": detail.get("lines") or [],
    }


def explain_text(told: dict[str, Any]) -> str:
    """The explanation for people."""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(told["started_at"])))
    lines = [
        f"job {told['job']} on slot {told['slot']}",
        f"  what      {told['kind']} to {told['variant'] or 'the previous variant'}",
        f"  who       {who(told) or 'unknown'}" + (f", by: {told['command']}" if told["command"] else ""),
        f"  started   {started}",
        f"  outcome   {_outcome(told)}",
        f"  downtime  {figure(told['downtime_s'])} s" if told["downtime_s"] is not None else "  downtime  not measured",
        f"  active    {told['active'] or 'nothing was proven'}",
    ]
    if told["cause"]:
        lines.append(f"  why       {told['cause']}")
    if told["advice"]:
        lines.append(f"  to do     {told['advice']}")
    if told["steps"]:
        lines.append("  steps     " + ", ".join(f"{one['name']} {_short(one['seconds'])}" for one in told["steps"]))
    for passage in told["passages"]:
        lines += ["", f"  start of {passage['variant']} ({passage['unit']}), {passage['why']}"]
        if passage["phases"]:
            phases = ", ".join(f"{one['name']} at {_short(one['seconds'])}" for one in passage["phases"])
            lines.append(f"    engine: {phases}")
        rows = [("tier", "name", "result", "took", "of", "evidence")]
        for tier in passage["tiers"]:
            rows.append(
                (
                    "-" if tier["tier"] is None else str(tier["tier"]),
                    tier["name"] or "",
                    tier["result"],
                    _short(tier["took_s"]),
                    _short(tier["budget_s"]),
                    tier["message"] or evidence_text(tier["evidence"]),
                )
            )
        if len(rows) > 1:
            lines += [f"    {line}" for line in table(rows)]
    failure = told["failure"]
    if failure:
        lines += ["", f"  failure: {failure['message']}"]
        if failure["cause"]:
            lines.append(f"    cause: {failure['cause']['cause']} ({failure['cause']['id']})")
            lines.append(f"    fix:   {failure['cause']['fix']}")
        lines += [f"    | {line}" for line in failure["traceback"] or failure["lines"]]
    return "\n".join(lines)


def _outcome(told: dict[str, Any]) -> str:
    if told["outcome"] is None:
        return "unfinished (it runs, or the next job settles it)"
    return f"{told['outcome']} in {figure(told['seconds'])} s"


def _short(seconds: Any) -> str:
    return f"{seconds:.2f} s" if isinstance(seconds, (int, float)) else "-"


def evidence_text(evidence: dict[str, Any], limit: int = 160) -> str:
    """Evidence in one line: what is long (texts of answers) is left to --json."""
    parts = []
    for key, value in evidence.items():
        if value in (None, "", [], {}) or key in ("requests", "settings", "golden_file", "text"):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{key}={text}")
    line = ", ".join(parts)
    return line if len(line) <= limit else line[: limit - 3] + "..."
