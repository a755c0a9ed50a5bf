"""Measures: the shape of their files, judged figures, and the samples of memory and SSH starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specswap import measure
from specswap.errors import ConsoleError
from specswap.measure import Row
from specswap.measures import demo
from specswap.paths import Paths
from specswap.plays import PlayResult, TaskResult


def test_row_without_peer() -> None:
    row = Row("seconds of it", "s", [3.0, 1.0, 2.0], "<= 2").to_dict()
    assert row == {
        "name": "seconds of it",
        "unit": "s",
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "n": 3,
        "peer": None,
        "ratio": None,
        "aim": "<= 2",
        "ok": True,
    }


def test_row_with_peer_is_judged_by_the_ratio() -> None:
    row = Row("ours", "s", [1.0], "<= 0.3", peer="theirs", peer_values=[2.0]).to_dict()
    assert row["ratio"] == 0.5
    assert row["ok"] is False
    assert row["peer"] == {"name": "theirs", "median": 2.0, "min": 2.0, "max": 2.0, "n": 1}


def test_row_that_was_not_measured_has_a_reason_and_no_verdict() -> None:
    row = Row("it", "s", [], "<= 1", reason="it failed").to_dict()
    assert row["median"] is None and row["ok"] is None and row["reason"] == "it failed"
    assert "not measured: it failed" in measure.line(row)


@pytest.mark.parametrize(
    ("aim", "held"), [("<= 2", True), (">= 3", False), ("== 2", True), ("< 2", False), ("> 1", True)]
)
def test_aims(aim: str, held: bool) -> None:
    assert measure.meets(2.0, aim) is held


def test_nonsense_aim_is_an_error() -> None:
    with pytest.raises(ValueError, match="about"):
        measure.meets(1.0, "about 3")


def test_file_is_written_whatever_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Slow:
        SUMMARY = "slow"

        def run(self, paths: Paths, say: object) -> list[Row]:
            return [Row("it", "s", [9.0], "<= 1")]

    monkeypatch.setattr(measure, "find", lambda name: Slow())
    said: list[str] = []
    path = measure.run_measure(Paths(tmp_path), "slow", said.append)
    document = json.loads(path.read_text())
    assert path == tmp_path / "results/bench/slow.json"
    assert document["schema"] == 1
    assert document["machine"]["cpus"] == os.cpu_count()
    assert document["measures"][0]["ok"] is False
    assert said[0] == "MISSED  it: 9 s, aim <= 1"


def test_registry_finds_the_measures_by_file() -> None:
    assert "demo" in measure.names()
    assert measure.find("demo").SUMMARY == demo.SUMMARY


def test_usage_counts_time_and_memory_of_descendants(tmp_path: Path) -> None:
    # A child of the command holds 64 MiB for a second and a half: both figures must see it.
    inner = "import time; held = bytearray(64 * 2**20); held[::4096] = b'x' * len(held[::4096]); time.sleep(1.5)"
    outer = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {inner!r}]).returncode)"
    cost = demo.usage([sys.executable, "-c", outer], tmp_path, os.environ)
    assert cost.ok
    assert cost.seconds >= 1.5
    assert cost.largest_mib >= 64
    assert cost.tree_mib >= 64


def test_usage_of_a_failing_command_keeps_its_output(tmp_path: Path) -> None:
    cost = demo.usage([sys.executable, "-c", "print('why'); raise SystemExit(2)"], tmp_path, os.environ)
    assert not cost.ok and cost.output == "why\n"


def test_ssh_starts_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\necho "ssh got $*"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    (tmp_path / "with space").mkdir()
    count = demo.SshCount(tmp_path / "with space")
    assert count.trips() == 0
    for _ in range(2):
        done = subprocess.run([str(count.wrapper), "host", "a b"], capture_output=True, text=True, check=True)
        assert done.stdout == "ssh got host a b\n"
    assert count.trips() == 2
    count.reset()
    assert count.trips() == 0


def played(*results: dict[str, object]) -> PlayResult:
    tasks = [TaskResult("h", "t", "specswap.core.slot_swap", "ok", result) for result in results]
    return PlayResult("swap.yml", True, 0, 9.0, {}, tasks, Path("/log"))


def test_seconds_of_the_host_job_come_from_the_swap() -> None:
    assert demo.job_seconds(played({"changed": False}, {"outcome": "swapped", "seconds": 2.5})) == 2.5


def test_a_play_without_swap_is_not_measured() -> None:
    with pytest.raises(ConsoleError, match="no swap"):
        demo.job_seconds(played({"outcome": "noop", "seconds": 0.1}))
