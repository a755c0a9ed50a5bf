"""One readable line per event: the same words in the command line and in the plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Detail = Mapping[str, Any]


def narrate(event: Mapping[str, Any]) -> str:
    """`[12.3 s] tier 2 health: HTTP 200 after 1.9 s`; unknown events are shown as they are, never dropped."""
    detail = event.get("detail") or {}
    name = str(event.get("event", "?"))
    elapsed = detail.get("elapsed_s")
    stamp = f"[{elapsed:6.1f} s] " if isinstance(elapsed, (int, float)) else ""
    words = _WORDS.get(name)
    try:
        text = words(event, detail) if words else _plain(name, detail)
    except (KeyError, TypeError, ValueError, AttributeError):
        text = _plain(name, detail)
    return stamp + text


def _plain(name: str, detail: Detail) -> str:
    shown = ", ".join(
        f"{key}={value}" for key, value in detail.items() if key != "elapsed_s" and value not in ("", None)
    )
    return name.replace("_", " ") + (f": {shown}" if shown else "")


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, (int, float)) else "?"


def _list(values: Any) -> str:
    return ", ".join(str(value) for value in values) if values else "nothing"


def _accepted(event: Mapping[str, Any], detail: Detail) -> str:
    who = "@".join(part for part in (detail.get("user"), detail.get("host")) if part)
    what = detail.get("variant") or " and ".join(detail.get("arms") or []) or "the previous variant"
    text = f"job {event['job']}: {detail['kind']} to {what}" + (f", for {who}" if who else "")
    return text + _leftover(detail)


def _leftover(detail: Detail) -> str:
    return f"; the slot's last owner ended without releasing it: {detail['leftover']}" if detail.get("leftover") else ""


def _lock(_: Mapping[str, Any], detail: Detail) -> str:
    return "slot locked" + _leftover(detail)


def _preflight_failed(_: Mapping[str, Any], detail: Detail) -> str:
    findings = [f"{one['message']} -> {one['fix']}" for one in detail["findings"]]
    return "preflight refused, nothing was touched: " + "; ".join(findings)


def _stopped(_: Mapping[str, Any], detail: Detail) -> str:
    killed = f", {_list(detail['killed'])} had to be killed" if detail.get("killed") else ""
    return f"stopped {_list(detail['units'])} in {_seconds(detail['seconds'])}{killed}"


def _golden(evidence: Detail) -> str:
    if evidence["golden"] == "absent":
        return f"no golden to compare with: {evidence['golden_why']}"
    if evidence["golden"] == "equal":
        return f"greedy text equals the golden of {evidence['golden_by']}"
    return f"greedy text equals the golden over {evidence['golden_match']:.0%} before the first difference"


def _floor(evidence: Detail) -> str:
    accepted = evidence["accept_length"]
    drafts = f"{accepted:.2f} tokens per step" if isinstance(accepted, (int, float)) else evidence["accept_length_why"]
    record = evidence["record"]
    usual = f"the record is {record:.1f}" if isinstance(record, (int, float)) else f"record {record}"
    return f"{drafts}; {evidence['tok_per_s']:.1f} tok/s, {usual}"


def _tier_passed(event: Mapping[str, Any], detail: Detail) -> str:
    evidence = detail.get("evidence") or {}
    shown = {
        0: lambda: f"pid {evidence['main_pid']}, no restart{_drop_ins(evidence)}",
        1: lambda: f"port held by pid {_list(evidence['pids'])} of the unit",
        2: lambda: f"HTTP {evidence['status']}",
        3: lambda: f"serves {evidence['identity']}",
        4: lambda: f"{evidence['completion_tokens']} tokens, {evidence['finish_reason']}",
        5: lambda: f"{len(evidence['requests'])} answers, {_golden(evidence)}",
        6: lambda: _floor(evidence),
    }
    tier = event["tier"]
    try:
        text = shown[tier]()
    except KeyError:
        text = "passed"
    return f"tier {tier} {detail['name']}: {text}, after {_seconds(detail['seconds'])}"


def _drop_ins(detail: Detail) -> str:
    return f", CHANGED BY HAND through {_list(detail['drop_ins'])}" if detail.get("drop_ins") else ""


def _crashed(_: Mapping[str, Any], detail: Detail) -> str:
    delay = detail.get("seconds_after_exit")
    seen = f" (seen {delay:.2f} s after it died)" if isinstance(delay, (int, float)) else ""
    lines = detail.get("traceback") or detail.get("lines") or []
    # A known cause says more than its traceback; an unknown one is shown whole.
    known = (detail.get("cause") or {}).get("id") not in (None, "python_traceback")
    return f"CRASHED: {detail['message']}{seen}" + "".join(
        f"\n    {line}" for line in (lines[-12:] if known else lines)
    )


def _finished(_: Mapping[str, Any], detail: Detail) -> str:
    text = f"{str(detail['outcome']).upper()} in {_seconds(detail['seconds'])}"
    if detail.get("downtime_s"):
        text += f", {_seconds(detail['downtime_s'])} without service"
    if detail.get("active"):
        text += f"; active: {detail['active']}" + _drop_ins(detail.get("report") or {})
    if detail.get("cause"):
        text += f"\n    cause: {detail['cause']}"
    if detail.get("advice"):
        text += f"\n    what to do: {detail['advice']}"
    return text


def _rolled_back(_: Mapping[str, Any], detail: Detail) -> str:
    if not detail.get("variant"):
        return str(detail["message"])
    text = f"rolled back: {detail['variant']} serves again, "
    if detail.get("told"):
        return f"{text}proven by tiers 0 to 4 and the soak; told only: {'; '.join(detail['told'])}"
    return f"{text}proven through the gate"


def _tier_failed(_: Mapping[str, Any], detail: Detail) -> str:
    if detail.get("told_only"):
        return f"NOT PASSED, told only on the way back: {detail['message']}"
    return f"FAILED {detail['message']}"


def _committed(_: Mapping[str, Any], detail: Detail) -> str:
    if detail.get("refreshed"):
        done = f"without a restart of {detail['variant']}: {', '.join(detail['refreshed'])}"
        return done + (f"; {detail['warning']}" if detail.get("warning") else "")
    text = f"committed: {detail['variant']} is active"
    text += f"; {detail['warning']}" if detail.get("warning") else " and starts at boot"
    return text + (f"; {_seconds(detail['downtime_s'])} without service" if detail.get("downtime_s") else "")


_WORDS: dict[str, Callable[[Mapping[str, Any], Detail], str]] = {
    "job_accepted": _accepted,
    "lock_taken": _lock,
    "lock_broken": lambda _, d: f"ended by force, its lock broken, by {d['by']}; it was {d['owner']}",
    "settled": lambda _, d: f"settled unfinished job {d['settled_job']}: {d['found']}; {d['did']}",
    "preflight_passed": lambda _, d: f"preflight of {d['variant']} passed in {_seconds(d['seconds'])}",
    "preflight_failed": _preflight_failed,
    "stop_started": lambda _, d: f"stopping {_list(d['units'])}",
    "stopped": _stopped,
    "handover_proven": lambda _, d: (
        f"hand-over proven: port {d['port']} free, no process left"
        + (f", {d['gpu']}" if d.get("gpu") else "")
        + (f", swept {_list(d['swept'])}" if d.get("swept") else "")
    ),
    "handover_failed": lambda _, d: f"hand-over failed: {d['message']}",
    "start_requested": lambda _, d: f"starting {d['unit']}" + (" (unit file written)" if d.get("unit_written") else ""),
    "phase": lambda _, d: f"engine: {d['name']}",
    "stalled": lambda _, d: f"silent for {_seconds(d['silent_s'])}; last line: {d['last_line'] or 'none'}",
    "tier_passed": _tier_passed,
    "tier_skipped": lambda e, d: f"tier {e['tier']} {d['name']} SKIPPED: {d['reason']}",
    "golden_recorded": lambda _, d: f"greedy text of {d['variant']} kept as golden: {d['file']}",
    "tier_failed": _tier_failed,
    "crashed": _crashed,
    "soak_passed": lambda _, d: f"soak passed: {d['polls']} looks in {_seconds(d['seconds'])}",
    "committed": _committed,
    "rollback_started": lambda _, d: f"giving the slot back to {d['to_variant'] or 'nobody'}",
    "rolled_back": _rolled_back,
    "rollback_failed": lambda _, d: f"ROLLBACK FAILED: {d['second_cause']}; port: {_list(d['host'].get('port'))}",
    "job_finished": _finished,
    "block_started": lambda _, d: f"block {d['index'] + 1} of {d['blocks']}, pair {d['pair'] + 1}: {d['arm']}",
    "block_finished": lambda _, d: (
        f"block {d['index'] + 1} of {d['blocks']}: {d['arm']} made {d['e2e_tok_per_s']:.1f} tok/s end to end over "
        f"{d['requests']} requests ({d['failed']} failed) in {_seconds(d['seconds'])}"
    ),
    "block_failed": lambda _, d: f"block {d['index'] + 1} FAILED, {d['arm']}: {d['cause']} -> {d['advice']}",
    "journal_repaired": lambda _, d: f"journal repaired: a torn last line of {d['cut_bytes']} bytes was cut off",
}
