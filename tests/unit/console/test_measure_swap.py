"""The swap measure: its scripts run for real against small tools, its figures against a host of known truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specswap import measure
from specswap.errors import ConsoleError
from specswap.measure import Row
from specswap.measures import swap
from specswap.paths import Paths
from specswap.supplies import resolver

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Tools:
    """Programs in front of PATH, each a shell script that first notes its arguments in `calls`."""

    folder: Path
    calls: Path = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self.folder / "calls"
        self.calls.touch()

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.calls}"\n{script}\n')
        path.chmod(0o755)

    def sh(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", script, "script", *words], env=environment, capture_output=True, text=True, timeout=20
        )


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Tools(folder)


# --- the scripts


def test_loop_stops_starts_and_believes_any_list_of_models(tools: Tools) -> None:
    tools.add("systemctl", '[ "$1" = is-active ] && echo active; exit 0')
    tools.add("curl", """echo '{"data": [{"id": "somebody"}]}'""")
    done = tools.sh(swap.LOOP, "old.service", "new.service", "30001", "3", "0")
    assert swap.parse_loop(done.stdout).word == "healthy"
    calls = tools.calls.read_text().splitlines()
    assert calls[:2] == ["systemctl stop old.service", "systemctl start new.service"]
    assert calls[-1] == "curl -s http://127.0.0.1:30001/v1/models"


def test_loop_ends_at_failed_and_not_at_a_restarting_unit(tools: Tools, tmp_path: Path) -> None:
    # `activating` is what a unit says that waits for its restart: the loop takes two looks more to see the end.
    tools.add(
        "systemctl",
        f"""[ "$1" = is-active ] || exit 0
        echo x >>"{tmp_path}/asked"; [ "$(wc -l <"{tmp_path}/asked")" -gt 2 ] && echo failed || echo activating""",
    )
    tools.add("curl", "exit 7")
    verdict = swap.parse_loop(tools.sh(swap.LOOP, "old", "new", "30001", "20", "0.1").stdout)
    assert verdict.word == "failed"
    assert 0.2 <= verdict.seconds < 5


def test_loop_without_a_verdict_says_so(tools: Tools) -> None:
    tools.add("systemctl", "echo activating")
    tools.add("curl", "exit 7")
    done = tools.sh(swap.LOOP, "old", "new", "30001", "3", "0")
    assert swap.parse_loop(done.stdout).word == "gave-up"
    assert tools.calls.read_text().count("curl") == 3


def test_swap_script_carries_events_moments_and_memory(tools: Tools) -> None:
    event = {"event": "job_finished", "tier": None, "t_wall": 5.0, "detail": {"outcome": "noop"}}
    # The job's process is the test itself: its peak memory is what the script must find.
    tools.add("systemctl", f"echo {os.getpid()}")
    tools.add("specswap-host", f"echo '{json.dumps(event)}'; sleep 0.3")
    done = tools.sh(swap.SWAP, "ngram", "smoke", "watch")
    job = swap.parse_swap(done.stdout)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    assert job.verdict.word == "noop"
    assert job.verdict.seconds >= 0.3
    assert job.peak_mib is not None and job.peak_mib <= int(peak.split()[1]) / 1024 <= job.peak_mib * 1.2
    assert "specswap-host swap ngram --slot smoke --json" in tools.calls.read_text()
    assert "systemctl show --value -p MainPID specswap-job-smoke.service" in tools.calls.read_text()


def test_swap_script_without_watch_asks_systemd_nothing(tools: Tools) -> None:
    tools.add("systemctl", "echo 0")
    tools.add("specswap-host", """echo '{"refused": "busy", "owner": null}'; exit 5""")
    job = swap.parse_swap(tools.sh(swap.SWAP, "ngram", "smoke", "-").stdout)
    assert job.verdict.word == "refused" and job.peak_mib is None and not job.events
    assert "systemctl" not in tools.calls.read_text()


def test_lanes_run_at_once_with_units_of_their_own_and_leave_nothing(tools: Tools, tmp_path: Path) -> None:
    units = tmp_path / "units"
    units.mkdir()
    (units / "d.service").write_text("[Unit]\nConflicts=a.service\n[Service]\nExecStart=/x --stamps /s/doomed/stamps\n")
    kept = tmp_path / "kept"
    tools.add("systemctl", f'[ "$1" = start ] && cat "{units}/$2" >>"{kept}"; [ "$1" = is-active ] && echo failed; :')
    tools.add("curl", "exit 7")
    done = tools.sh(swap.LANES, "d.service", "doomed", "2", swap.LOOP, "1", "2", "0", str(units))
    assert done.returncode == 0, done.stderr
    lanes = [swap.parse_loop(lane.partition("\n")[2]) for lane in done.stdout.split("lane ")[1:]]
    assert [lane.word for lane in lanes] == ["failed", "failed"]
    assert "/s/lane1/stamps" in kept.read_text() and "/s/lane2/stamps" in kept.read_text()
    assert "Conflicts" not in kept.read_text()
    assert [path.name for path in units.iterdir()] == ["d.service"]


@pytest.mark.parametrize("text", ["", "began 1.0\n", "healthy 2.0\n", "began 1.0\nnonsense\n"])
def test_half_an_answer_is_an_error(text: str) -> None:
    with pytest.raises(ConsoleError, match="loop said"):
        swap.parse_loop(text)
    with pytest.raises(ConsoleError, match="swap said"):
        swap.parse_swap(text)


def test_stamps_before_the_attempt_do_not_count() -> None:
    text = "ready 1.0\nexit 2.0\nready 3.0\nready 4.0\n"
    assert swap.first_stamp(text, "ready", 2.5) == 3.0
    assert swap.first_stamp(text, "exit", 2.5) is None


# --- the variants


def test_variants_are_inventory_data_that_resolves_to_units_of_one_slot(tmp_path: Path) -> None:
    swap.write_inventory(tmp_path)
    data = json.loads((tmp_path / "host_vars" / f"{swap.HOST}.yml").read_text())
    model = {"source": "path", "path": "/m.gguf", "sha256": "ab" * 32, "size": 1}
    found = resolver(Paths(ROOT)).services(
        {
            "slots": data["specswap_slots"],
            "variants": data["specswap_variants"],
            "models": {"target": model},
            "environments": {"venv_llamacpp": {"engine": "llamacpp", "python": "3.11", "cuda": "none"}},
        }
    )
    assert {one["variant"] for one in found} >= {swap.HOME, swap.DOOMED, swap.WARMING, "load0", "load4"}
    double = ROOT / "tests/doubles/openai_double.py"
    for one in found:
        # The double must understand every word that the plays put on its command line.
        words = [*one["argv"][2:], "--help"]
        done = subprocess.run([sys.executable, str(double), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert swap.stamps_path(one["variant"]) in words


def test_load_times_are_spread_over_the_pause_of_the_loop() -> None:
    phases = sorted(seconds % swap.POLL_S for seconds in swap.LOADS_S)
    gaps = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + swap.POLL_S], strict=True)]
    assert max(gaps) == pytest.approx(swap.POLL_S / len(swap.LOADS_S))


# --- the figures, on a host whose truth is known


@dataclass
class KnownHost:
    """Answers the measure's scripts on a clock of its own; every delay is a constant of the test."""

    now: float = 1000.0
    stale: bool = False
    lying_swap: bool = False
    silent_loops: bool = False
    stamps: dict[str, list[str]] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    serving: str = ""

    def exec(
        self, name: str, argv: Sequence[str], timeout_s: float = 30.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.now += 1.0
        return subprocess.CompletedProcess(argv, 0, self._answer(list(argv)), "")

    def _answer(self, argv: list[str]) -> str:
        if argv[:1] == ["cat"]:
            return "\n".join(self.stamps.get(argv[1], []))
        if argv[:2] == ["systemctl", "stop"]:
            self.serving = ""
        if argv[:1] == ["systemd-run"]:
            self.stale, self.serving = True, ""
        if argv[:2] == ["systemctl", "stop"] and argv[2] == swap.STALE:
            self.stale = False
        if argv[:2] != ["sh", "-c"]:
            return ""
        if argv[2] == swap.LOOP:
            return self._loop(argv[5].removesuffix(".service"))
        if argv[2] == swap.SWAP:
            return "\n".join(self._swap(argv[4]))
        if argv[2] == swap.LANES:
            return "\n".join(self._lane(lane) for lane in range(1, int(argv[6]) + 1))
        return ""

    def _stamp(self, variant: str, word: str, at: float) -> float:
        self.stamps.setdefault(swap.stamps_path(variant), []).append(f"{word} {at}")
        return at

    def _loop(self, variant: str) -> str:
        self.begun.append(f"loop {variant}")
        began = self.now
        if self.stale:
            return f"began {began}\nhealthy {began + 0.1}"
        ready, self.serving = self._stamp(variant, "ready", began + 2.0), variant
        self.now = ready + 1.5
        return f"began {began}\nhealthy {ready - 1.0 if variant == swap.WARMING else self.now}"

    def _lane(self, lane: int) -> str:
        began = self.now
        self._stamp(f"lane{lane}", "exit", began + 2.5)
        self._stamp(f"lane{lane}", "exit", began + 20.0)
        return f"lane {lane}\nbegan {began}\n" + (
            f"gave-up {began + 60}" if self.silent_loops and lane == 1 else f"failed {began + 54}"
        )

    def _swap(self, variant: str) -> Iterator[str]:
        self.begun.append(f"swap {variant}")
        began = self.now
        yield f"began {began}"
        yield "VmHWM:     20480 kB"
        yield "VmHWM:     21504 kB"
        if self.stale and not self.lying_swap:
            yield _finished("refused", began + 0.2)
        elif variant == self.serving:
            yield _finished("noop", began + 0.2)
        elif variant == swap.DOOMED:
            died = self._stamp(variant, "exit", began + 2.5)
            yield _event("crashed", died + 0.25)
            yield _event("rolled_back", died + 2.0)
            yield _finished("rolled_back", died + 2.1)
        else:
            if not self.stale:
                self._stamp(variant, "ready", began + 3.0)
                self.serving = variant
            yield _event("tier_passed", began + 3.1, 4)
            yield _finished("swapped", began + 4.2)
        self.now = began + 4.5
        yield f"ended {self.now}"


def _event(name: str, at: float, tier: int | None = None, **detail: object) -> str:
    return json.dumps({"event": name, "tier": tier, "t_wall": at, "detail": detail})


def _finished(outcome: str, at: float) -> str:
    return _event("job_finished", at, outcome=outcome)


def sides(host: KnownHost) -> swap.Sides:
    names = [*swap.variants(), *(f"lane{index}" for index in range(20))]
    return swap.Sides(host, {name: f"{name}.service" for name in names}, "/launcher")


def by_name(rows: Sequence[Row]) -> dict[str, dict[str, object]]:
    return {row.name.partition(":")[0] + ":" + row.name.split(":")[1].split(",")[0]: row.to_dict() for row in rows}


def test_good_swaps_are_judged_by_the_servers_own_moments_and_sides_take_turns() -> None:
    host = KnownHost()
    rows = swap.good_swaps(sides(host), lambda line: None)
    proof, command = rows
    assert proof.values == pytest.approx([0.1] * swap.REPEATS)
    assert proof.peer_values == pytest.approx([1.5] * swap.REPEATS)
    assert command.values == pytest.approx([1.5] * swap.REPEATS)
    assert proof.to_dict()["ok"] is True
    assert [word.split()[0] for word in host.begun[:4]] == ["loop", "swap", "swap", "loop"]
    for side in ("loop", "swap"):
        used = [word.split()[1] for word in host.begun if word.startswith(side)]
        assert {used.count(swap.load(index)) for index in range(5)} == {swap.REPEATS // 5}


def test_crashes_count_from_the_first_exit_and_lanes_without_verdict_count_as_such() -> None:
    host = KnownHost(silent_loops=True)
    verdict, share, back = swap.crashes(sides(host), lambda line: None)
    assert verdict.values == pytest.approx([0.25] * swap.REPEATS)
    assert verdict.peer_values == pytest.approx([51.5] * (swap.REPEATS - 1))
    assert verdict.to_dict()["ok"] is True
    assert share.values == [1.0] and share.peer_values == [(swap.REPEATS - 1) / swap.REPEATS]
    assert back.values == pytest.approx([2.0] * swap.REPEATS)


def test_one_late_crash_verdict_misses_the_aim() -> None:
    assert Row("crash", "s", [0.1] * 14 + [1.2], "max <= 1", "loop", [50.0]).to_dict()["ok"] is False
    assert Row("ready", "s", [0.1] * 14 + [1.2], "median <= 0.3", "loop", [0.2]).to_dict()["ok"] is True


def test_stale_server_deceives_the_loop_alone() -> None:
    (row,) = swap.stale_servers(sides(KnownHost()), lambda line: None)
    assert row.values == [0.0] and row.peer_values == [1.0]
    assert row.to_dict()["ok"] is True


def test_a_swap_that_lies_is_found_out() -> None:
    (row,) = swap.stale_servers(sides(KnownHost(lying_swap=True)), lambda line: None)
    assert row.values[0] > 0
    assert row.to_dict()["ok"] is False
    assert measure.line(row.to_dict()).startswith("MISSED")


def test_healthy_before_the_server_is_ready_is_false() -> None:
    (row,) = swap.warming_servers(sides(KnownHost()), lambda line: None)
    assert row.values == [0.0] and row.peer_values == [1.0]


def test_no_ops_are_timed_as_whole_commands() -> None:
    host = KnownHost()
    both = sides(host)
    both.swap(swap.HOME)
    (row,) = swap.no_ops(both, lambda line: None)
    assert row.values == pytest.approx([4.5] * swap.REPEATS)
    assert row.to_dict()["ok"] is False
    assert row.peer_values == pytest.approx([3.5] * swap.REPEATS)


def test_another_outcome_than_the_measured_one_is_an_error() -> None:
    with pytest.raises(ConsoleError, match="ended as rolled_back, not as swapped"):
        sides(KnownHost()).swap(swap.DOOMED)


def test_memory_is_the_highest_value_that_was_read() -> None:
    both = sides(KnownHost())
    both.swap(swap.HOME)
    assert both.peaks_mib == [21.0]


def test_truth_that_the_server_did_not_stamp_is_an_error() -> None:
    with pytest.raises(ConsoleError, match="has not stamped ready"):
        sides(KnownHost()).truth(swap.HOME, "ready", 0.0)


def test_registered_by_its_file() -> None:
    assert "swap" in measure.names()
    assert measure.find("swap").SUMMARY == swap.SUMMARY
