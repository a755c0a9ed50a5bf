"""Stages of a test run: one command each, its seconds, one summary line, and the seconds of its single tests."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specswap.progress import seconds


@dataclass(frozen=True)
class Case:
    """One test: `file::name`, its seconds (setup and teardown included) and whether it held."""

    name: str
    seconds: float
    ok: bool


@dataclass(frozen=True)
class StageResult:
    """Outcome of one stage; `ok` None means skipped, with the reason in `summary`."""

    name: str
    ok: bool | None
    seconds: float
    summary: str
    cases: Sequence[Case] = ()

    @property
    def line(self) -> str:
        """The stage in one line of the final table."""
        word = {True: "ok", False: "FAILED", None: "skipped"}[self.ok]
        return f"{word:8} {self.name:28} {seconds(self.seconds):>12}  {self.summary}".rstrip()


@dataclass(frozen=True)
class Stage:
    """One command of a test run.

    Attributes:
        name: as shown in the final table.
        argv: the command; empty when `skip` is given.
        skip: why the stage cannot run here; the stage then counts as skipped.
        live: show the output as it comes; else only when the command fails.
        junit: where pytest writes its report; the summary is read from there.
        work: a Python function instead of a command; returns (ok, summary).
    """

    name: str
    argv: Sequence[str] = ()
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    skip: str = ""
    live: bool = False
    junit: Path | None = None
    work: Callable[[], tuple[bool, str]] | None = field(default=None, compare=False)


def run_stage(stage: Stage, say: Callable[[str], None]) -> StageResult:
    """Runs one stage to its end; a failing command is a result, not an exception."""
    if stage.skip:
        say(f"== {stage.name}: skipped: {stage.skip}")
        return StageResult(stage.name, None, 0.0, stage.skip)
    say(f"== {stage.name}")
    begin = time.monotonic()
    if stage.junit is not None:
        stage.junit.unlink(missing_ok=True)
        stage.junit.parent.mkdir(parents=True, exist_ok=True)
    if stage.work is not None:
        ok, summary = _work(stage.work, say)
    else:
        ok, summary = _command(stage, say)
    cases: Sequence[Case] = ()
    if stage.junit is not None and stage.junit.exists():
        cases, counts = read_junit(stage.junit)
        summary = counts if ok else f"{counts}; {summary}"
    result = StageResult(stage.name, ok, time.monotonic() - begin, summary, cases)
    say(result.line)
    return result


def _work(work: Callable[[], tuple[bool, str]], say: Callable[[str], None]) -> tuple[bool, str]:
    try:
        return work()
    except Exception as error:
        # The later stages must run whatever went wrong here; the reason is shown and the stage has failed.
        for line in str(error).splitlines():
            say(f"   {line}")
        return False, type(error).__name__


def _command(stage: Stage, say: Callable[[str], None]) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            list(stage.argv),
            cwd=stage.cwd,
            env=None if stage.env is None else dict(stage.env),
            stdout=None if stage.live else subprocess.PIPE,
            stderr=None if stage.live else subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return False, f"{stage.argv[0]}: {error.strerror}"
    if done.returncode != 0:
        for line in (done.stdout or "").splitlines():
            say(f"   {line}")
        return False, f"exit status {done.returncode}"
    return True, ""


def read_junit(path: Path) -> tuple[list[Case], str]:
    """Reads a JUnit report of pytest: its cases, and `12 passed, 1 skipped`.

    Raises:
        xml.etree.ElementTree.ParseError: the report is torn.
    """
    cases: list[Case] = []
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(path).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        counts["failed" if bad else "skipped" if skipped else "passed"] += 1
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        cases.append(Case(name, float(case.get("time") or 0.0), not bad))
    return cases, ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no tests"


def slowest(results: Sequence[StageResult], count: int = 15) -> list[str]:
    """Lines naming the slowest tests over all stages, slowest first."""
    cases = [(case.seconds, case.name, result.name) for result in results for case in result.cases]
    cases.sort(reverse=True)
    return [f"{took:8.2f} s  {name}  ({stage})" for took, name, stage in cases[:count]]
