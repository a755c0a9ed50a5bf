"""`./specswap measure NAME`: runs a measure, writes `results/bench/NAME.json`, prints one line per row.

A measure is one file in `specswap.measures` with a `SUMMARY` line and a function `run(paths, say) -> list[Row]`. The
figures never decide the exit code; whether they meet their aims is said in the file and on the screen.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import pkgutil
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import specswap.measures
from specswap.errors import ConsoleError
from specswap.paths import Paths

SCHEMA = 1
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Attributes:
        name: what was measured.
        unit: `s`, `MiB`, `count`, ...
        values: every sample, in the order taken.
        aim: such as `<= 360`, compared with the median; with a peer it is compared with the ratio. `median <= 0.3` and
            `max <= 1` name what is compared, peer or not.
        peer: name of what it is compared with.
        peer_values: samples of the peer, taken in turn with `values`.
        reason: why there are no values.
    """

    name: str
    unit: str
    values: Sequence[float]
    aim: str | None = None
    peer: str | None = None
    peer_values: Sequence[float] = ()
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as `results/bench/NAME.json` holds it."""
        row: dict[str, Any] = {"name": self.name, "unit": self.unit, **_spread(self.values)}
        if self.reason is not None:
            row["reason"] = self.reason
        row["peer"] = None if self.peer is None else {"name": self.peer, **_spread(self.peer_values)}
        ratio = None
        if self.values and self.peer_values:
            peer_median = statistics.median(self.peer_values)
            ratio = statistics.median(self.values) / peer_median if peer_median else None
        row["ratio"] = ratio
        row["aim"] = self.aim
        named, aim = _split_aim(self.aim or "")
        judged = row[named] if named else ratio if self.peer is not None else row["median"]
        row["ok"] = None if self.aim is None or judged is None else meets(judged, aim)
        return row


def _spread(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"median": None, "min": None, "max": None, "n": 0}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def _split_aim(aim: str) -> tuple[str, str]:
    """`max <= 1` -> (`max`, `<= 1`); an aim that names nothing gives an empty first word."""
    word, _, rest = aim.partition(" ")
    return (word, rest) if word in ("median", "max") else ("", aim)


def meets(value: float, aim: str) -> bool:
    """Whether a value meets an aim such as `<= 0.3`.

    Raises:
        ValueError: the aim is not an operator and a number.
    """
    word, _, number = aim.partition(" ")
    if word not in _OPERATORS:
        raise ValueError(f"aim {aim!r}: must be one of {', '.join(_OPERATORS)} and a number")
    return _OPERATORS[word](value, float(number))


class Measure(Protocol):
    """What a module in `specswap.measures` offers."""

    SUMMARY: str

    def run(self, paths: Paths, say: Callable[[str], None]) -> list[Row]:
        """Takes the samples; says what it does line by line."""


def names() -> list[str]:
    """Names of all measures."""
    return sorted(module.name for module in pkgutil.iter_modules(specswap.measures.__path__))


def find(name: str) -> Measure:
    """The measure of that name.

    Raises:
        ConsoleError: there is none; names the known ones.
    """
    if name not in names():
        raise ConsoleError(f"no measure {name}", f"Known: {', '.join(names())}", exit_code=2)
    return cast(Measure, importlib.import_module(f"specswap.measures.{name}"))


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        system = "unknown"
    return {
        "cpus": os.cpu_count(),
        "memory_mib": memory_bytes // 2**20,
        "cpu": _cpu_model(),
        "system": system,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min_at_start": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.machine()


def line(row: dict[str, Any]) -> str:
    """One row for people: `ok      demo, cold: 212 s (n=1), aim <= 360`."""
    word = {True: "ok", False: "MISSED", None: "-"}[row["ok"]]
    if row["median"] is None:
        return f"{word:7} {row['name']}: not measured: {row.get('reason', 'no samples')}"
    value = f"{row['median']:.4g} {row['unit']}"
    if row["n"] > 1:
        value += f" (median of {row['n']}, {row['min']:.4g} to {row['max']:.4g})"
    if row["peer"] is not None and row["ratio"] is not None:
        value += f", {row['ratio']:.2g} x {row['peer']['name']} ({row['peer']['median']:.4g})"
    return f"{word:7} {row['name']}: {value}" + (f", aim {row['aim']}" if row["aim"] else "")


def run_measure(paths: Paths, name: str, say: Callable[[str], None] = print) -> Path:
    """Runs one measure and writes its file; returns the file's path."""
    measure = find(name)
    about = machine()
    rows = [
        row.to_dict() for row in measure.run(paths, lambda text: print(f"      {text}", file=sys.stderr, flush=True))
    ]
    target = paths.results / "bench" / f"{name}.json"
    write_json(target, {"schema": SCHEMA, "machine": about, "measures": rows})
    for row in rows:
        say(line(row))
    say(f"written: {paths.shown(target)}")
    return target


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes a JSON file so that a reader sees the old one or the new one, never a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
