"""Reports of a comparison: Markdown, HTML and a terminal table. Pure; needs nothing but the package itself."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import (
    NONE,
    arm_rows,
    change,
    fingerprint_rows,
    interval_text,
    match_lines,
    moment,
    names,
    notes,
    number,
    repeat_lines,
)
from .report_html import render_html

__all__ = ["render_html", "render_markdown", "render_table"]

_WIDTH = 96


def _cell(text: object) -> str:
    """Text that stays inside its Markdown table cell and is no markup."""
    out = _printable(text).replace("\\", "\\\\")
    for sign in "|`*_<>[]":
        out = out.replace(sign, "\\" + sign)
    return " ".join(out.split())


def _md_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(_cell(cell) for cell in head) + " |"]
    lines.append("|" + "---|" + "---:|" * (len(head) - 1))
    lines.extend("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)
    return lines


def render_markdown(c: Mapping[str, Any]) -> str:
    """The comparison as a Markdown page; `c` is the content of `comparison.json`."""
    base, cand = names(c)
    verdict = c["verdict"]
    out = [f"# {_cell(cand)} against {_cell(base)}: {verdict['word']}", "", _cell(verdict["text"]), ""]
    out.append(
        f"Host {_cell(c['host'])}, slot {_cell(c['slot'])}, suite {_cell(c['suite'])},"
        f" {len(c['rounds'])} of {c['pairs']} pairs, order {_cell(' '.join(c['order']))},"
        f" session {_cell(c['session'])}, {moment(c.get('started_at'))}."
    )
    out.extend(["", "## Arms", ""])
    out.extend(
        _md_table(
            ["figure", base, cand, "change"],
            [(row.name, row.baseline, row.candidate, row.change) for row in arm_rows(c)],
        )
    )
    out.extend(["", f"End to end: {interval_text(c)}; margin {number(verdict['margin'], 1, 100)} %.", ""])
    out.extend(["## Prompts", ""])
    prompt_rows = [
        (
            row["key"],
            row["category"],
            number(row["baseline_e2e_tok_per_s"]),
            number(row["candidate_e2e_tok_per_s"]),
            change(row["ratio"]),
            f"{row['candidate_draft_n']} / {row['candidate_draft_n_accepted']}",
            f"{row['equal']} of {row['compared']}",
        )
        for row in c["prompts"]
    ]
    head = ["prompt", "category", f"{base} tok/s", f"{cand} tok/s", "change", "drafted / accepted", "equal replies"]
    out.extend(_md_table(head, prompt_rows))
    out.extend(["", "## Pairs", ""])
    round_rows = [
        (
            row["pair"] + 1,
            row["first"],
            number(row["baseline_e2e_tok_per_s"]),
            number(row["candidate_e2e_tok_per_s"]),
            change(row["ratio"]),
        )
        for row in c["rounds"]
    ]
    out.extend(_md_table(["pair", "first", f"{base} tok/s", f"{cand} tok/s", "change"], round_rows))
    out.extend(["", "## Replies", ""])
    out.extend(f"- {_cell(line)}" for line in match_lines(c))
    found = notes(c)
    if found:
        out.extend(["", "## Notes", ""])
        out.extend(f"- {_cell(note)}" for note in found)
    out.extend(["", "## What differs between the arms", ""])
    differing = [row for row in fingerprint_rows(c) if row[3]]
    out.extend(_md_table(["key", base, cand], [row[:3] for row in differing]))
    out.extend(["", "## Repeat", "", "```sh", *map(_printable, repeat_lines(c)), "```", "", "## Definitions", ""])
    out.extend(f"- {_cell(key)}: {_cell(text)}" for key, text in c.get("definitions", {}).items())
    return "\n".join(out) + "\n"


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    table = [[_printable(cell) for cell in row] for row in [head, *rows]]
    limit = max(10, (_WIDTH - 28) // max(1, len(head) - 1) - 2)
    table = [
        [row[0][:28], *(cell if len(cell) <= limit else cell[: limit - 1] + "…" for cell in row[1:])] for row in table
    ]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        for row in table
    ]
    return [lines[0], "─" * len(lines[0]), *lines[1:]]


def render_table(c: Mapping[str, Any]) -> str:
    """The comparison for a terminal of at least 96 columns; plain text without escape sequences."""
    base, cand = names(c)
    verdict = c["verdict"]
    title = f"{verdict['word'].upper()}  {cand} against {base}  on {c['host']}, slot {c['slot']}, suite {c['suite']}"
    out = textwrap.wrap(_printable(title), _WIDTH) + textwrap.wrap(_printable(verdict["text"]), _WIDTH) + [""]
    out.extend(
        _plain_table(
            ["", base, cand, "change"], [(row.name, row.baseline, row.candidate, row.change) for row in arm_rows(c)]
        )
    )
    out.append("")
    prompt_rows = [
        (
            row["key"],
            number(row["baseline_e2e_tok_per_s"]),
            number(row["candidate_e2e_tok_per_s"]),
            change(row["ratio"]),
            f"{row['candidate_draft_n']}/{row['candidate_draft_n_accepted']}" if row["candidate_draft_n"] else NONE,
            f"{row['equal']}/{row['compared']}",
        )
        for row in c["prompts"]
    ]
    out.extend(_plain_table(["end to end tok/s by prompt", base, cand, "change", "drafts", "equal"], prompt_rows))
    out.append("")
    for line in match_lines(c) + [f"note: {note}" for note in notes(c)]:
        out.extend(textwrap.wrap(_printable(line), _WIDTH, subsequent_indent="  "))
    return "\n".join(line.rstrip() for line in out) + "\n"


def _printable(text: object) -> str:
    """No control characters: names and error texts come from elsewhere and must not steer the terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text))
