"""The demo's own logic: order of steps, what it says, what it leaves when something goes wrong."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specswap.demo import STEPS, Demo, Options, Tools, check_comparison, take_down
from specswap.errors import ConsoleError
from specswap.paths import Paths
from specswap.progress import Steps
from tests.doubles.console_doubles import HostsDouble, PlaysDouble


class Bench:
    """One demo over doubles, with all that it printed."""

    def __init__(self, root: Path, options: Options | None = None) -> None:
        self.paths = Paths(root)
        self.hosts = HostsDouble(root / "sandbox.yml")
        self.plays = PlaysDouble(self.paths.results)
        self.missing: list[str] = []
        self.installed: list[str] = []
        self.supplied: list[Sequence[Path]] = []
        self.err = io.StringIO()
        self.out: list[str] = []
        self.tools = Tools(
            hosts=self.hosts,
            missing=lambda: self.missing,
            install=lambda say: self.installed.extend(self.missing),
            supplies=self._supply,
            play=self.plays,
            table=lambda document: f"table of {document['session']}\n",
            leftovers=lambda: list(self.hosts.left),
        )
        self.demo = Demo(self.paths, options or Options(), self.tools, Steps(STEPS, out=self.err, silence_s=0))

    def _supply(self, inventories: Sequence[Path], say: Callable[[str], None]) -> None:
        self.supplied.append(inventories)

    def run(self) -> int:
        return self.demo.run(self.out.append)

    @property
    def text(self) -> str:
        return self.err.getvalue() + "\n".join(self.out)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_good_demo_runs_every_step_and_ends_with_three_commands(bench: Bench) -> None:
    assert bench.run() == 0
    assert [call[0] for call in bench.plays.calls] == ["site.yml", "compare.yml"]
    assert all(call[1] == [bench.paths.root / "inventory", bench.hosts.inventory] for call in bench.plays.calls)
    assert all(call[2] == "ct200" for call in bench.plays.calls)
    assert bench.plays.calls[1][3] == {"arms": ["baseline", "ngram"], "quick": True}
    assert f"[{STEPS}/{STEPS}] report: done" in bench.text
    assert "table of session-2" in bench.text
    commands = bench.demo.next_commands()
    assert len(commands) == 3
    for command, why in commands:
        assert f"  {command}" in bench.out
        assert f"      {why}" in bench.out
    assert "JSON:" in bench.text and "Markdown:" in bench.text
    assert "HTML:" not in bench.text, "a report that does not exist must not be named"


def test_a_job_that_outlived_an_interrupted_demo_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("specswap.demo.time.sleep", waits.append)
    bench.hosts.provisioned = True
    bench.hosts.busy = ["20261201T170000Z-abc", "20261201T170000Z-abc", ""]
    assert bench.run() == 0
    assert len(waits) == 2
    assert bench.text.count("20261201T170000Z-abc of an earlier run is still at work") == 1
    assert [call[0] for call in bench.plays.calls] == ["site.yml", "compare.yml"]


def test_missing_packages_are_named_and_installed(bench: Bench) -> None:
    bench.missing = ["mmdebstrap"]
    bench.run()
    assert bench.installed == ["mmdebstrap"]
    assert "installing mmdebstrap" in bench.text


def test_second_demo_says_that_nothing_changed(bench: Bench) -> None:
    bench.hosts.provisioned = True
    assert bench.run() == 0
    assert "nothing had to change: changed=0" in bench.text


def test_second_demo_after_a_swap_says_what_changed(bench: Bench) -> None:
    bench.hosts.provisioned = True
    bench.plays.changed["site.yml"] = 1
    assert bench.run() == 0
    assert "again what the inventory says: changed=1" in bench.text
    assert "nothing had to change" not in bench.text


def test_failed_play_stops_and_names_log_and_way_down(bench: Bench) -> None:
    bench.plays.failing = {"site.yml"}
    with pytest.raises(ConsoleError, match=r"site\.yml failed on ct200") as caught:
        bench.run()
    assert "/log/of/the/play" in caught.value.way_out
    assert [call[0] for call in bench.plays.calls] == ["site.yml"]
    assert "./specswap demo --down" in bench.text
    assert "FAILED" in bench.text


def test_keep_going_does_the_later_steps_and_still_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Options(keep_going=True))
    bench.plays.failing = {"site.yml"}
    assert bench.run() == 1
    assert [call[0] for call in bench.plays.calls] == ["site.yml", "compare.yml"]
    assert "failed: provision: site.yml" in bench.text
    assert "table of session-2" in bench.text


def test_without_a_host_nothing_is_tried_even_with_keep_going(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Options(keep_going=True))
    bench.hosts.fail["up"] = ConsoleError("no backend", "install one")
    with pytest.raises(ConsoleError, match="no backend"):
        bench.run()
    assert bench.plays.calls == []
    assert "stays up" not in bench.text


def test_a_comparison_of_an_earlier_demo_is_not_taken_for_a_new_one(bench: Bench) -> None:
    bench.run()
    bench.plays.leaves_comparison = False
    again = Demo(bench.paths, Options(), bench.tools, Steps(STEPS, out=bench.err, silence_s=0))
    with pytest.raises(ConsoleError, match="no new comparison"):
        again.run(bench.out.append)


@pytest.mark.parametrize("arms", [{}, {"baseline": {"completion_tokens": 3}, "ngram": {"completion_tokens": 0}}])
def test_a_comparison_without_tokens_fails(arms: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConsoleError, match="completion_tokens"):
        check_comparison({"arms": arms}, tmp_path / "comparison.json")


def test_ctrl_c_leaves_the_host_up_and_says_so(bench: Bench) -> None:
    bench.plays.interrupt = "site.yml"
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert "interrupted" in bench.text
    assert "ct200 stays up" in bench.text and "./specswap demo --down" in bench.text
    assert "down" not in bench.hosts.calls


def test_down_removes_and_looks(bench: Bench) -> None:
    bench.run()
    said: list[str] = []
    assert take_down(bench.tools, said.append) == 0
    assert said[0] == "removed: ct200 (1 process, 1 link)"
    assert any("no process, mount" in line for line in said)


def test_down_fails_with_a_list_when_something_is_left(bench: Bench) -> None:
    bench.run()
    bench.hosts.sticky = ["mount: /run/x"]
    said: list[str] = []
    assert take_down(bench.tools, said.append, patience_s=0.3) == 1
    assert "  mount: /run/x" in said


def test_down_waits_for_processes_that_are_still_dying(bench: Bench) -> None:
    looks = [["process: 7 x"], ["process: 7 x"], []]
    tools = replace(bench.tools, leftovers=lambda: looks.pop(0))
    assert take_down(tools, lambda line: None) == 0
    assert looks == []


def test_down_twice_is_fine(bench: Bench) -> None:
    said: list[str] = []
    assert take_down(bench.tools, said.append) == 0
    assert said[0] == "nothing of the demo was there"
