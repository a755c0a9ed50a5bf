"""Guards, match rates and figures, from blocks made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from specswap_bench.comparison import build_comparison
from specswap_bench.record import RequestRecord
from specswap_bench.summary import summarize


def request(key: str, speed: float, *, tokens: int = 100, text: str = "same", **more: Any) -> dict[str, Any]:
    record = RequestRecord(prompt=key, category="c", t_sent_s=10.0, completion_tokens=tokens, finish_reason="stop")
    record.text, record.done, record.chunked = text, True, True
    finish = 10.0 + tokens / speed
    record.t_first_token_s, record.t_last_token_s, record.t_finish_s = 10.001, finish, finish
    record.t_first_answer_token_s = 10.001
    record.chunk_stamps_s = [10.001, finish]
    for name, value in more.items():
        setattr(record, name, value)
    return record.to_dict()


def block(index: int, arm: str, pair: int, requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "arm": arm,
        "pair": pair,
        "requests": requests,
        "summary": summarize(requests),
        "client_bound": False,
        "cache_protocol": "p",
        "swap": {"outcome": "swapped", "seconds": 2.0, "downtime_s": 1.0},
        **more,
    }


PRINTS = {arm: {"engine": "e", "release": "r", "target_sha256": "t"} for arm in ("base", "cand")}


def compare(
    change: Callable[[list[dict[str, Any]]], None] | None = None, ratio: float = 1.25, **more: Any
) -> dict[str, Any]:
    blocks = []
    for pair in range(4):
        jitter = 1 + 0.002 * pair
        blocks.append(block(2 * pair, "base", pair, [request("a", 100.0), request("b", 50.0)]))
        fast = [request("a", 100.0 * ratio * jitter), request("b", 50.0 * ratio * jitter)]
        blocks.append(block(2 * pair + 1, "cand", pair, fast))
    if change:
        change(blocks)
    settings: dict[str, Any] = {
        "session": "s", "host": "h", "slot": "smoke", "suite": "two", "arms": ["base", "cand"], "pairs": 4,
        "fingerprints": PRINTS,
    }  # fmt: skip
    return build_comparison(blocks=blocks, **{**settings, **more})


def test_paired_ratio_and_arms() -> None:
    result = compare()
    assert result["verdict"]["word"] == "faster"
    assert result["verdict"]["ratio"] == pytest.approx(1.25 * 1.003, rel=1e-3)
    assert result["arms"]["base"]["e2e_tok_per_s"] == pytest.approx((100 * 50) ** 0.5, rel=1e-3)
    assert result["arms"]["base"]["completion_tokens"] == 800 and result["arms"]["base"]["requests"] == 8
    assert [row["ratio"] for row in result["prompts"]] == [pytest.approx(1.25375, rel=1e-3)] * 2
    for arm in result["arms"].values():
        assert {"fingerprint", "blocks", "ttft_s", "tpot_s", "decode_tok_per_s", "failed"} <= set(arm)
    assert set(result) >= {"schema", "session", "host", "slot", "suite", "order", "pairs", "arms", "blocks", "verdict"}


def test_every_null_has_its_reason() -> None:
    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if item is None and key not in ("error", "draft_source"):
                    stem = "ci" if key in ("ci_low", "ci_high") else key
                    if not key.endswith("_reason"):
                        assert value.get(f"{stem}_reason"), f"{path}.{key}"
                walk(item, f"{path}.{key}")
        elif isinstance(value, list):
            for item in value:
                walk(item, path)

    walk(compare(lambda blocks: blocks.__delitem__(slice(2, None))), "")
    walk(compare(), "")


def _loop(only: set[str]) -> Callable[[list[dict[str, Any]]], None]:
    def change(blocks: list[dict[str, Any]]) -> None:
        for one in blocks:
            if one["arm"] in only:
                one["requests"][0]["degenerate"] = True

    return change


def _fail(blocks: list[dict[str, Any]], arms: set[str]) -> None:
    for one in blocks:
        if one["arm"] in arms:
            one["requests"][0] = RequestRecord(prompt="a", error="timeout").to_dict()


def _bound(blocks: list[dict[str, Any]]) -> None:
    blocks[3]["client_bound"] = True


def _cache(blocks: list[dict[str, Any]]) -> None:
    blocks[3]["cache_protocol"] = "other"


def _longer(blocks: list[dict[str, Any]]) -> None:
    for one in blocks[1::2]:
        for found in one["requests"]:
            found["completion_tokens"] = 130


def _ends(blocks: list[dict[str, Any]]) -> None:
    for one in blocks[1::2]:
        one["requests"][1]["finish_reason"] = "length"


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        (_loop({"cand"}), "invalid", "cand answers a with a loop"),
        (lambda blocks: _fail(blocks, {"cand"}), "invalid", "failed requests differ: base 0, cand 4"),
        (_bound, "invalid", "too much CPU in block 3"),
        (_cache, "invalid", "cache"),
        (_longer, "not comparable", "reply lengths differ"),
        (_ends, "not comparable", "end for another reason"),
    ],
)
def test_guards(change: Callable[[list[dict[str, Any]]], None], word: str, reason: str) -> None:
    verdict = compare(change)["verdict"]
    assert verdict["word"] == word and reason in verdict["text"]
    assert verdict["ratio"] is not None


def test_a_loop_in_both_arms_takes_no_part() -> None:
    result = compare(_loop({"base", "cand"}))
    assert result["verdict"]["word"] == "faster"
    assert any("left out" in note for note in result["notes"])
    assert result["prompts"][0]["ratio"] is None and result["prompts"][1]["ratio"] is not None


def test_equal_failures_are_told() -> None:
    result = compare(lambda blocks: _fail(blocks, {"base", "cand"}))
    assert result["verdict"]["word"] == "faster" and "4 requests failed in each arm" in result["notes"][0]
    assert result["arms"]["cand"]["failed"] == 4


def test_more_than_the_variant_differs() -> None:
    prints = {**PRINTS, "cand": {**PRINTS["cand"], "release": "other"}}
    assert compare(fingerprints=prints)["verdict"]["word"] == "not comparable"
    declared = compare(fingerprints=prints, allowed_differences=["release"])
    assert declared["verdict"]["word"] == "faster" and "as declared" in declared["notes"][0]


def test_a_drop_in_of_one_unit_is_not_comparable() -> None:
    slower = {**PRINTS, "cand": {**PRINTS["cand"], "drop_ins": {"50-slow.conf": "ab"}}}
    result = compare(fingerprints=slower)
    assert result["verdict"]["word"] == "not comparable" and "50-slow.conf" in result["verdict"]["text"]
    both = {arm: {**print_, "drop_ins": {"50-slow.conf": "ab"}} for arm, print_ in PRINTS.items()}
    assert compare(fingerprints=both)["verdict"]["word"] == "faster"


def test_no_pair_at_all() -> None:
    result = compare(lambda blocks: blocks.__delitem__(slice(1, None)))
    assert result["verdict"]["word"] == "invalid" and result["verdict"]["ratio"] is None
    assert result["verdict"]["ratio_reason"] and result["rounds"] == []


def test_divergence() -> None:
    def change(blocks: list[dict[str, Any]]) -> None:
        blocks[1]["requests"][0]["text"] = "sane"

    match = compare(change)["match"]
    assert match["between_arms"]["equal"] == 7 and match["between_arms"]["match_rate"] == 0.875
    assert match["between_arms"]["diverged"][0] == {
        "key": "a", "blocks": [0, 1], "first_divergence_char": 2, "lengths_chars": [4, 4],
    }  # fmt: skip
    assert match["within_arm"]["base"]["match_rate"] == 1.0 and match["within_arm"]["cand"]["equal"] == 3
