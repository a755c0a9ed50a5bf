"""The fault table: rows that the fault suite measures, `results/faults.json`, and `docs/faults.md` made from it.

The faults themselves are in `tests/faults`; each row holds what was told and what was true on the host.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from specswap_host.atomic import write_json, write_text

from specswap.errors import ConsoleError

#: Names the file that a run of the suite writes its rows to.
ROWS_VARIABLE = "SPECSWAP_FAULT_ROWS"
KINDS = {
    "process": "The server process",
    "answers": "What answers on the port",
    "host": "The host around it",
    "control": "Controllers, operators, jobs",
}
_HEAD = """\
# Faults

Written by `./specswap test faults`; changes made here by hand are replaced at its next run.

Every row was measured on a real systemd host (a sandbox host with a double of a server as the only thing that is not
real). Each starts from variant `a`, proven and committed; the fault is injected and variant `b` is asked for, unless
the row says otherwise. Afterwards the host's truth is read without any code of specswap: units and invocations by
systemctl, the owner of the port by ss and /proc, a real request to whoever answers, state file and checksums. A row is
ok when outcome, exit code, the part that noticed, `state.json`, `specswap-host status`, enablement and that truth all
agree with what is expected. Where the outcome is `refused`, invocations and checksums from before and after are equal.

`seconds` is the time from the command to its verdict, including the proven way back and, for broken-off jobs, the next
command that settles them.

Clocks are never set: a jump of the wall clock happens inside the job's process alone. Killed jobs are killed by
SIGKILL at the very event, through a hook in the interpreter of the test host that the product does not know.
"""


@dataclass(frozen=True)
class Row:
    """One fault: what was done, what was told, what was true. `seconds` from the command to its verdict."""

    id: str
    kind: str
    injected: str
    noticed_by: str
    seconds: float
    outcome: str
    expected_outcome: str
    host_truth: str
    ok: bool


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace `path` by the rows, a JSON array; errors: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [asdict(row) for row in rows])


def read_rows(path: Path) -> list[Row]:
    """The rows in `path`.

    Raises:
        ConsoleError: there is no such file, or it is no table of faults.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = [one.name for one in fields(Row)]
        return [Row(**{name: row[name] for name in names}) for row in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConsoleError(f"{path}: no table of faults ({error})", "Run ./specswap test faults.") from error


def render(rows: Sequence[Row]) -> str:
    """The page about the rows, Markdown: a summary, then one table per kind."""
    good = sum(row.ok for row in rows)
    outcomes = ", ".join(f"{count} {word}" for word, count in sorted(Counter(row.outcome for row in rows).items()))
    parts = [_HEAD, f"\n**{good} of {len(rows)} faults ended as they must** ({outcomes}).\n"]
    for kind, title in KINDS.items():
        chosen = [row for row in rows if row.kind == kind]
        if not chosen:
            continue
        parts.append(f"\n## {title}: {sum(row.ok for row in chosen)} of {len(chosen)}\n\n")
        parts.append("| id | injected | noticed by | seconds | outcome | truth on the host | ok |\n")
        parts.append("|---|---|---|---:|---|---|---|\n")
        parts += [_line(row) for row in chosen]
    return "".join(parts)


def _line(row: Row) -> str:
    outcome = row.outcome if row.outcome == row.expected_outcome else f"{row.outcome}, expected {row.expected_outcome}"
    cells = (
        row.id,
        row.injected,
        row.noticed_by,
        f"{row.seconds:.1f}",
        outcome,
        row.host_truth,
        "yes" if row.ok else "NO",
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def publish(rows: Path, page: Path) -> str:
    """Make `page` from the rows in a file; gives the summary in words. Errors: ConsoleError, OSError."""
    found = read_rows(rows)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render(found))
    return f"{sum(row.ok for row in found)} of {len(found)} faults ended as they must: {page.name}"
