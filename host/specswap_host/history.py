"""What a slot has done: its jobs, from the journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .context import Paths
from .job import broke_off
from .journal import Event, Journal


def history(paths: Paths, slot: str) -> list[dict[str, Any]]:
    """Jobs of a slot, oldest first; `outcome` is None while one runs or when it broke off."""
    jobs: dict[str, list[Event]] = {}
    for event in Journal(paths.journal(slot)).read():
        jobs.setdefault(event["job"], []).append(event)
    found = (entry_of(slot, job, events) for job, events in jobs.items())
    return [entry for entry in found if entry is not None]


def entry_of(slot: str, job: str, events: Sequence[Event]) -> dict[str, Any] | None:
    """One job in short, from its events; None when they do not start with its acceptance."""
    accepted = next((e for e in events if e["event"] == "job_accepted"), None)
    if accepted is None:
        return None
    start = accepted["detail"]
    end: dict[str, Any] = next((e["detail"] for e in events if e["event"] == "job_finished"), {})
    arms = start.get("arms") or []
    return {
        "job": job,
        "slot": slot,
        "kind": start.get("kind"),
        "variant": start.get("variant") or " vs ".join(arms) or None,
        "plan_hash": start.get("plan_hash"),
        "user": start.get("user", ""),
        "host": start.get("host", ""),
        "command": start.get("command", ""),
        "started_at": accepted["t_wall"],
        "outcome": end.get("outcome"),
        "seconds": end.get("seconds"),
        "downtime_s": end.get("downtime_s"),
        "active": end.get("active"),
        "cause": end.get("cause") or None,
        "broke_off": not end and broke_off(events),
    }


def history_text(jobs: Sequence[dict[str, Any]]) -> str:
    """The history as a table for people; a job's cause stands in a line of its own below it."""
    if not jobs:
        return "no jobs yet"
    rows = [("started", "slot", "job", "kind", "to", "plan", "outcome", "seconds", "downtime", "by")]
    for entry in jobs:
        rows.append(
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(entry["started_at"]))),
                entry["slot"],
                entry["job"],
                str(entry["kind"]),
                entry["variant"] or "(previous)",
                entry["plan_hash"] or "-",
                entry["outcome"] or "unfinished",
                figure(entry["seconds"]),
                figure(entry["downtime_s"]),
                who(entry) or "-",
            )
        )
    lines = table(rows)
    text = [lines[0]]
    for entry, line in zip(jobs, lines[1:]):
        text.append(line)
        if entry["cause"]:
            text.append(f"    cause: {entry['cause'][:200]}")
    return "\n".join(text)


def job_line(entry: dict[str, Any]) -> str:
    """One job in a few words: `20261201T... swap to ngram: swapped in 3.2 s, 1.1 s without service`."""
    end = f"{entry['outcome']} in {figure(entry['seconds'])} s" if entry["outcome"] else "unfinished"
    down = f", {figure(entry['downtime_s'])} s without service" if entry["downtime_s"] else ""
    return f"{entry['job']} {entry['kind']} to {entry['variant'] or 'the previous variant'}: {end}{down}"


def who(entry: dict[str, Any]) -> str:
    return "@".join(part for part in (entry["user"], entry["host"]) if part)


def figure(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, (int, float)) else "-"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
