"""A sandbox and plays that do nothing but can be told to fail: for the demo's own logic."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specswap.plays import HostStats, PlayResult


class HostsDouble:
    """A sandbox that remembers what was asked of it."""

    def __init__(self, inventory: Path) -> None:
        self.busy: list[str] = []  # the job that each look at the status finds at work
        self._inventory = inventory
        self.names: list[str] = []
        self.calls: list[str] = []
        self.provisioned = False
        self.left: list[str] = []
        self.sticky: list[str] = []
        self.fail: dict[str, Exception | type[BaseException]] = {}

    @property
    def inventory(self) -> Path:
        return self._inventory

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def up(self, names: Sequence[str], progress: Callable[[str], None]) -> None:
        self._called("up")
        self.names = list(names)
        self.left = ["process: 7 systemd-nspawn", "link: ssb-br"]
        progress("starting")

    def wait(self, timeout_s: float) -> None:
        self._called("wait")

    def hosts(self) -> list[str]:
        return self.names

    def down(self) -> None:
        self._called("down")
        self.names, self.left = [], list(self.sticky)

    def exec(self, name: str, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        self._called("exec")
        if "status" in argv and self.busy:
            job = self.busy.pop(0)
            busy = {"job": job} if job else None
            return subprocess.CompletedProcess(list(argv), 0, json.dumps({"slots": {"smoke": {"busy": busy}}}), "")
        return subprocess.CompletedProcess(list(argv), 0 if self.provisioned else 1, "", "")


class PlaysDouble:
    """Plays that succeed, count as many changes as told, and leave a comparison."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.changed: dict[str, int] = {}
        self.failing: set[str] = set()
        self.interrupt: str | None = None
        self.arms: dict[str, Any] = {arm: {"completion_tokens": 12} for arm in ("baseline", "ngram")}
        self.calls: list[tuple[str, list[Path], str | None, dict[str, Any]]] = []
        self.leaves_comparison = True

    def __call__(
        self,
        playbook: str,
        *,
        inventories: Sequence[Path],
        limit: str | None = None,
        variables: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> PlayResult:
        self.calls.append((playbook, list(inventories), limit, dict(variables or {})))
        if self.interrupt == playbook:
            raise KeyboardInterrupt
        if playbook == "compare.yml" and self.leaves_comparison:
            session = self.results / f"session-{len(self.calls)}"
            session.mkdir(parents=True)
            (session / "comparison.json").write_text(json.dumps({"session": session.name, "arms": self.arms}))
            (session / "report.md").write_text("report")
            (self.results / "latest").unlink(missing_ok=True)
            (self.results / "latest").symlink_to(session.name)
        ok = playbook not in self.failing
        stats = {str(limit): HostStats(ok=5, changed=self.changed.get(playbook, 0), failed=int(not ok))}
        return PlayResult(playbook, ok, 0 if ok else 2, 1.0, stats, [], Path("/log/of/the/play"))
