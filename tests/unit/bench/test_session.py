"""A whole session over a real HTTP server: order, files, failures, the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_parts import JournalDouble, SwapperDouble, in_process, plan, questions, service
from specswap_bench.address import service_url
from specswap_bench.comparison import pair_order
from specswap_bench.session import Session, SessionError, SessionPlan, SwapOutcome

from tests.doubles.sse_double import Chunk, Script, SseDouble

SLOW = Script([Chunk(f"word{i} ", after_s=0.02) for i in range(8)])
FAST = Script([Chunk(f"word{i} ", after_s=0.004) for i in range(8)])


@pytest.fixture
def server() -> Iterator[SseDouble]:
    with SseDouble(SLOW, {"base": SLOW, "cand": FAST}) as double:
        yield double


class Run:
    def __init__(self, path: Path, server: SseDouble, pairs: int = 1, **more: Any) -> None:
        self.path = path
        self.plan = plan(server.port, pairs, **more)
        self.swapper = SwapperDouble(service("base", server.port))
        self.journal = JournalDouble()

    def go(self) -> int:
        self.code = Session(self.plan, self.swapper, self.journal, self.path, runner=in_process).run()
        return self.code

    @property
    def result(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "comparison.json").read_text())
        return data


def test_order_is_abba_baab() -> None:
    letters = "".join("AB"[side] for sides in pair_order(6) for side in sides)
    assert letters == "ABBABAABABBA"
    assert pair_order(1) == [(0, 1)]


def test_four_pairs_of_a_faster_variant(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server, pairs=4)
    assert run.go() == 0
    result = run.result
    arms = ["base", "cand", "cand", "base", "cand", "base", "base", "cand"]
    assert result["order"] == arms
    # Every block gets a fresh server, also where the same arm comes twice; the last swap is the way back.
    assert run.swapper.asked == [*((arm, True) for arm in arms), ("base", False)]
    assert [question for _, question in questions(server)] == ["question 0", "question 1"] * 8
    assert result["verdict"]["word"] == "faster" and result["verdict"]["ci_low"] > 1.5
    assert result["arms"]["base"]["blocks"] == [0, 3, 5, 6]
    assert result["arms"]["cand"]["swap_s"] == 1.5 and result["arms"]["cand"]["swap_downtime_s"] == 0.75
    assert result["match"]["between_arms"] == {"compared": 8, "equal": 8, "diverged": [], "match_rate": 1.0}
    assert result["match"]["within_arm"]["base"]["compared"] == 6
    assert run.journal.names() == ["block_started", "block_finished"] * 8
    assert sorted(path.name for path in (tmp_path / "blocks").iterdir()) == [f"{i:03d}.json" for i in range(8)]
    block = json.loads((tmp_path / "blocks/003.json").read_text())
    assert (block["index"], block["arm"], block["pair"]) == (3, "base", 1)
    assert block["cache_protocol"] == "cache_prompt=false in every request"
    assert all(truth.body["cache_prompt"] is False for truth in server.truths)
    assert result["restored"]["ok"] and result["restored"]["variant"] == "base"


def test_one_pair_claims_nothing(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server, pairs=1, quick=True)
    assert run.go() == 0
    verdict = run.result["verdict"]
    assert verdict["word"] == "not enough rounds" and verdict["ratio"] > 1.2 and verdict["ci_low"] is None
    assert run.result["order"] == ["base", "cand"] and run.result["pairs"] == 1


def test_failed_swap_spoils_its_pair_which_is_run_again_at_the_end(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server, pairs=2)
    run.swapper.outcomes[1] = SwapOutcome("rolled_back", 2.0, None, "it crashed", "look at the log")
    assert run.go() == 0
    result = run.result
    assert [asked for asked, _ in run.swapper.asked] == ["base", "cand", "cand", "base", "base", "cand", "base"]
    assert len(result["rounds"]) == 2 and [row["blocks"] for row in result["rounds"]] == [[4, 5], [3, 2]]
    causes = {failure["index"]: failure["cause"] for failure in result["failures"]}
    assert "it crashed" in causes[1] and "other block" in causes[0]
    assert (run.journal.events[3][0], run.journal.events[3][1]["cause"][-10:]) == ("block_failed", "it crashed")


def test_a_variant_that_never_starts_ends_the_session_early_and_gives_the_slot_back(
    tmp_path: Path, server: SseDouble
) -> None:
    run = Run(tmp_path, server, pairs=4)
    bad = SwapOutcome("rolled_back", 2.0, None, "no such flag", "mend the flag")
    run.swapper.outcomes.update({1: bad, 2: bad})
    assert run.go() == 7
    assert run.swapper.asked[-1] == ("base", False)
    result = run.result
    assert "no such flag" in result["aborted"] and result["verdict"]["word"] == "invalid"
    assert len(run.swapper.asked) == 4


def test_server_that_was_replaced_in_a_block(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server)
    run.swapper.replaced_at = {1}
    assert run.go() == 0  # its pair was measured again
    assert "replaced" in run.result["failures"][-1]["cause"] + run.result["failures"][0]["cause"]
    assert run.result["rounds"][0]["blocks"] == [2, 3]


def test_every_request_failed_is_a_failed_block(tmp_path: Path, server: SseDouble) -> None:
    server.scripts["cand"] = Script(FAST.chunks, status=500)
    run = Run(tmp_path, server)
    assert run.go() == 7
    assert "500" in run.result["failures"][0]["cause"]
    assert run.result["arms"]["cand"]["e2e_tok_per_s"] is None
    assert run.result["arms"]["cand"]["e2e_tok_per_s_reason"]


def test_asked_to_end(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server, pairs=3)
    run.swapper.cancel_at = 2
    assert run.go() == 7
    assert [asked for asked, _ in run.swapper.asked] == ["base", "cand", "cand", "base"]
    assert run.swapper.restoring and "asked to end" in run.result["aborted"]
    # The same session again goes on where it stood and does not measure the finished pair twice.
    again = Run(tmp_path, server, pairs=3)
    again.swapper.now = service("cand", server.port)
    assert again.go() == 0
    assert [asked for asked, _ in again.swapper.asked] == ["cand", "base", "cand", "base", "base"]
    assert len(again.result["rounds"]) == 3


def test_an_exception_of_the_runner_still_gives_the_slot_back(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server)

    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        Session(run.plan, run.swapper, run.journal, tmp_path, runner=broken).run()
    assert run.swapper.asked[-1] == ("base", False)
    assert run.result["verdict"]["word"] == "invalid"


def test_failed_way_back_is_no_success(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server)
    run.swapper.outcomes[2] = SwapOutcome("rollback_failed", 2.0, None, "disk full", "make room")
    assert run.go() == 7
    assert run.result["restored"]["ok"] is False


def test_empty_slot_keeps_the_last_arm(tmp_path: Path, server: SseDouble) -> None:
    run = Run(tmp_path, server)
    run.swapper.now = None
    assert run.go() == 0
    assert [asked for asked, _ in run.swapper.asked] == ["base", "cand"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "plan.schema"),
        ({"kind": "swap"}, "plan.kind"),
        ({"arms": ["base", "base"]}, "plan.arms"),
        ({"arms": ["base", "ghost"]}, "plan.services.ghost"),
        ({"pairs": 0}, "plan.pairs"),
        ({"request": {"max_token": 1}}, "plan.request.max_token"),
        ({"request": {"noise_floor": -1}}, "plan.request.noise_floor"),
        ({"suite": {"name": "x", "prompts": [{"id": "a"}]}}, "plan.suite.prompts[0]"),
    ],
)
def test_plan_errors_name_the_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SessionError) as error:
        plan(1, **change)
    assert words in str(error.value)


def test_comparison_settings_and_addresses() -> None:
    read = plan(1, request={"noise_floor": 0.05, "allow_differences": ["release"]})
    assert isinstance(read, SessionPlan) and read.noise_floor == 0.05 and read.allow_differences == ("release",)
    assert service_url(service("base", 5)) == "http://127.0.0.1:5"
    assert service_url({"slot": {"bind": "0.0.0.0", "port": 5}}) == "http://127.0.0.1:5"
    assert service_url({"slot": {"bind": "::1", "port": 5}}) == "http://[::1]:5"
