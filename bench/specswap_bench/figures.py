"""What the three reports show, as rows of text: one source for Markdown, HTML and terminal."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

NONE = "–"


@dataclass(frozen=True)
class Row:
    """One figure of both arms; `change` is candidate / baseline where that makes sense; `note` explains a NONE."""

    name: str
    baseline: str
    candidate: str
    change: str
    note: str = ""


def number(value: object, digits: int = 1, scale: float = 1.0, unit: str = "") -> str:
    """A number as text, NONE for null: what was not measured is never shown as 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NONE
    return f"{value * scale:.{digits}f}{' ' + unit if unit else ''}"


def change(ratio: object) -> str:
    """A ratio as signed percent: 1.241 -> "+24.1 %"."""
    if not isinstance(ratio, (int, float)):
        return NONE
    return f"{(ratio - 1.0) * 100.0:+.1f} %"


def block_line(summary: Mapping[str, Any]) -> str:
    """The figures of one block in one line; what was not measured says why."""

    def figure(key: str, unit: str, scale: float = 1.0) -> str:
        value = summary[key]
        return f"not measured ({summary[f'{key}_reason']})" if value is None else f"{value * scale:.1f} {unit}"

    drafts = "" if summary["draft_n"] is None else f"{summary['draft_n_accepted']} of {summary['draft_n']} drafts, "
    return (
        f"end to end {figure('e2e_tok_per_s', 'tok/s')}, decode {figure('decode_tok_per_s', 'tok/s')}, "
        f"first token {figure('ttft_s', 'ms', 1000)}, {drafts}"
        f"{summary['requests']} requests, {summary['failed']} failed"
    )


def moment(epoch_s: object) -> str:
    """UTC time of an epoch in seconds."""
    if not isinstance(epoch_s, (int, float)):
        return NONE
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(epoch_s))


def names(c: Mapping[str, Any]) -> tuple[str, str]:
    """(baseline, candidate)."""
    verdict = c["verdict"]
    return str(verdict["baseline"]), str(verdict["candidate"])


def interval_text(c: Mapping[str, Any]) -> str:
    """The ratio with its interval or the reason why there is none."""
    verdict = c["verdict"]
    if verdict["ratio"] is None:
        return str(verdict.get("ratio_reason", "no figure"))
    text = change(verdict["ratio"])
    if verdict["ci_low"] is not None:
        return f"{text} [{change(verdict['ci_low'])}, {change(verdict['ci_high'])}], 95 % interval"
    return f"{text} (no interval: {verdict['ci_reason']})"


def arm_rows(c: Mapping[str, Any]) -> list[Row]:
    """Figures per arm."""
    base, cand = (c["arms"][name] for name in names(c))
    rows: list[Row] = []

    def add(name: str, key: str, digits: int = 1, scale: float = 1.0, ratio: bool = False) -> None:
        one, two = base.get(key), cand.get(key)
        quotient = (
            two / one if ratio and isinstance(one, (int, float)) and isinstance(two, (int, float)) and one else None
        )
        if key == "e2e_tok_per_s":
            quotient = c["verdict"]["ratio"]
        found = {arm: c["arms"][arm].get(f"{key}_reason") for arm in names(c)}
        note = "; ".join(f"{arm}: {reason}" for arm, reason in found.items() if reason)
        rows.append(Row(name, number(one, digits, scale), number(two, digits, scale), change(quotient), str(note)))

    add("end to end, tok/s", "e2e_tok_per_s", ratio=True)
    add("decode, tok/s", "decode_tok_per_s", ratio=True)
    add("first token, ms", "ttft_s", scale=1000, ratio=True)
    add("per token, ms", "tpot_s", digits=2, scale=1000, ratio=True)
    add("drafts accepted, %", "draft_acceptance", scale=100)
    rows[-1] = replace(rows[-1], note="; ".join(filter(None, [rows[-1].note, _drafted(c)])))
    rows.append(
        Row(
            "drafted / accepted tokens",
            f"{number(base.get('draft_n'), 0)} / {number(base.get('draft_n_accepted'), 0)}",
            f"{number(cand.get('draft_n'), 0)} / {number(cand.get('draft_n_accepted'), 0)}",
            NONE,
        )
    )
    if base.get("accept_length_tokens") is not None or cand.get("accept_length_tokens") is not None:
        add("tokens per verify step", "accept_length_tokens", digits=2, ratio=True)
    add("completion tokens", "completion_tokens", digits=0)
    rows.append(
        Row(
            "requests / failed",
            f"{base['requests']} / {base['failed']}",
            f"{cand['requests']} / {cand['failed']}",
            NONE,
        )
    )
    add("swap, s (mean)", "swap_s", digits=2)
    add("downtime of a swap, s (mean)", "swap_downtime_s", digits=2)
    return rows


def _drafted(c: Mapping[str, Any]) -> str:
    """On how many prompts the candidate drafted: a share of accepted drafts says nothing about the other prompts."""
    drafted = sum(1 for row in c["prompts"] if row["candidate_draft_n"])
    return f"{names(c)[1]}: drafted on {drafted} of {len(c['prompts'])} prompts" if drafted else ""


def match_lines(c: Mapping[str, Any]) -> list[str]:
    """Equal replies between the arms and inside each arm."""
    match = c["match"]
    base, cand = names(c)

    def line(name: str, found: Mapping[str, Any]) -> str:
        if not found["compared"]:
            return f"{name}: {NONE} ({found.get('match_rate_reason', 'nothing to compare')})"
        text = f"{name}: {found['equal']} of {found['compared']} replies equal"
        if found["diverged"]:
            first = min(found["diverged"], key=lambda item: item["first_divergence_char"])
            text += f"; first divergence at character {first['first_divergence_char']} ({first['key']})"
        return text

    return [
        line(f"{cand} against {base}", match["between_arms"]),
        line(f"{base} against itself", match["within_arm"][base]),
        line(f"{cand} against itself", match["within_arm"][cand]),
    ]


def notes(c: Mapping[str, Any]) -> list[str]:
    """Everything a reader must know before believing the figures."""
    out = [str(note) for note in c.get("notes", [])]
    for failure in c.get("failures", []):
        out.append(f"block {failure['index']} ({failure['arm']}) does not count: {failure['cause']}")
    if c.get("aborted"):
        out.append(f"ended early: {c['aborted']}")
    restored = c.get("restored") or {}
    if restored and not restored.get("ok", True):
        out.append(f"the slot was NOT given back: {restored.get('text')}: {restored.get('cause', '')}")
    loads = [load for block in c["blocks"] for load in block.get("load_average", [])]
    cores = max((block.get("machine", {}).get("cores") or 0 for block in c["blocks"]), default=0)
    if loads and cores and max(loads) > cores:
        out.append(f"the machine was busy: load average up to {max(loads):.1f} on {cores} cores")
    return out


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested JSON as dotted keys and texts."""
    if isinstance(value, Mapping):
        out: dict[str, str] = {}
        for key in sorted(value):
            out.update(flatten(value[key], f"{prefix}.{key}" if prefix else str(key)))
        return out
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return {prefix: text if len(text) <= 300 else text[:300] + "..."}


def fingerprint_rows(c: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(key, baseline, candidate, differs), differing rows first."""
    base, cand = (flatten(c["arms"][name]["fingerprint"]) for name in names(c))
    keys = sorted(set(base) | set(cand))
    rows = [(key, base.get(key, NONE), cand.get(key, NONE), base.get(key) != cand.get(key)) for key in keys if key]
    return [row for row in rows if row[3]] + [row for row in rows if not row[3]]


def repeat_lines(c: Mapping[str, Any]) -> list[str]:
    """Commands that repeat the comparison; with the pairs that a verdict still needs."""
    wanted = c["verdict"].get("pairs_needed") or c["pairs"]
    given: dict[str, object] = {
        "arms": ",".join(names(c)),
        "slot": c["slot"],
        "suite": c["suite"],
        "pairs": max(int(wanted), 1),
    }
    command = str(c.get("controller", {}).get("command") or "")
    words = _playbook_words(command)
    for word in words[len(_start(words)) :]:
        # The suite may be a file: then its path is what finds it again, not its name.
        if word.startswith("suite="):
            given["suite"] = word.removeprefix("suite=")
    words = [*_start(words), *(word for key in given for word in ("-e", f"{key}={given[key]}"))]
    return [shlex.join(words), *([f"# this comparison was: {command}"] if command else [])]


def _playbook_words(command: str) -> list[str]:
    """The words of `command` if it is an `ansible-playbook` (inventories, host, playbook); else what is usual."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if len(words) < 2 or words[0] != "ansible-playbook" or not all(word.isprintable() for word in words):
        return ["ansible-playbook", "compare.yml"]
    return words


def _start(words: list[str]) -> list[str]:
    """Everything before the first `-e`."""
    return words[: words.index("-e")] if "-e" in words else words
