"""Tiers 5 (canary, golden) and 6 (acceptance, speed) on a simulated host, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from host_doubles import Behaviour, World, service_dict, swap_plan
from specswap_host import floor
from specswap_host import golden as goldens
from specswap_host import state as states
from specswap_host import swap as swaps
from specswap_host.degenerate import assess_short
from specswap_host.engines import Answer, GenerateError
from specswap_host.journal import Journal
from specswap_host.narrate import narrate
from specswap_host.plan import GateSettings, PlanError, Service
from specswap_host.swap import SwapResult, restore_committed, run_swap

A, B = "llamacpp-a-smoke.service", "llamacpp-b-smoke.service"
DRAFTS = {"claims": {"drafts": True}}


def swap(world: World, variant: str, job: str = "job", **changes: Any) -> SwapResult:
    return run_swap(swap_plan(world, variant, job, **changes), Journal(world.paths.journal("smoke")), world.context())


def evidence(world: World, tier: int, job: str = "job") -> dict[str, Any]:
    events = Journal(world.paths.journal("smoke")).read(job=job)
    return next(e["detail"]["evidence"] for e in events if e["event"].startswith("tier_") and e["tier"] == tier)


def golden_file(world: World) -> Path:
    (path,) = world.paths.goldens.glob("*.json")
    return path


@pytest.fixture
def baseline(world: World) -> World:
    """Variant a, which claims no drafts, is committed: golden and record are there."""
    assert swap(world, "a", job="before").outcome == "swapped"
    return world


def test_the_golden_comes_from_a_variant_without_drafts_and_only_once(world: World) -> None:
    world.behaviours[B] = [Behaviour(accept_length=2.5)]
    assert swap(world, "b", "first", **DRAFTS).outcome == "swapped"
    assert not world.paths.goldens.exists()
    absent = evidence(world, 5, "first")
    assert (absent["golden"], absent["golden_note"]) == ("absent", "nothing was compared")
    assert swap(world, "a", "second").outcome == "swapped"
    assert evidence(world, 5, "second")["golden_note"] == "recorded when committed"
    kept = json.loads(golden_file(world).read_text())
    assert kept["recorded"]["variant"] == "a" and set(kept["texts"]) == {ask.id for ask in goldens.GREEDY}
    assert golden_file(world).name == "ab-e-1.json"
    assert swap(world, "b", "third", **DRAFTS).outcome == "swapped"
    assert evidence(world, 5, "third")["golden"] == "equal"
    assert json.loads(golden_file(world).read_text()) == kept


@pytest.mark.parametrize(
    ("text", "outcome", "words"),
    [
        ("The answer to river is a sentence of another kind.", "swapped", ""),
        ("No such thing as the answer to river.", "rolled_back", "the golden says"),
        ("word " * 20, "rolled_back", "degenerate output"),
    ],
)
def test_other_greedy_text(baseline: World, text: str, outcome: str, words: str) -> None:
    baseline.behaviours[B] = [Behaviour(texts={"river": text}, accept_length=2.0)]
    result = swap(baseline, "b", **DRAFTS)
    assert result.outcome == outcome and words in result.cause
    if outcome == "swapped":
        found = evidence(baseline, 5)
        assert found["golden"] == "differs" and 0.5 < found["golden_match"] < 1
        assert found["golden_differs_at"] == {"river": 37}
    else:
        assert "tier 5 canary" in result.cause and baseline.serving_units() == [A]


def test_late_differences_add_up_to_a_failure(baseline: World) -> None:
    texts = {ask.id: f"The answer to {ask.id}"[:20] + "XXXXXXXX" for ask in goldens.GREEDY}
    baseline.behaviours[B] = [Behaviour(texts=texts, accept_length=2.0)]
    result = swap(baseline, "b", **DRAFTS)
    assert result.outcome == "rolled_back" and "leaves the golden after" in result.cause
    lenient = {"gate": {"golden_min_match": 0.3}}
    assert swap(baseline, "b", "again", **DRAFTS, **lenient).outcome == "swapped"


def test_a_loop_that_the_golden_has_too_is_the_model_s_own(world: World) -> None:
    loop = {ask.id: "la la " * 15 for ask in goldens.GREEDY}
    world.behaviours[A] = [Behaviour(texts=loop)]
    result = swap(world, "a")
    assert result.outcome == "rolled_back" and "degenerate" in result.cause and not world.paths.goldens.exists()
    assert swap(world, "a", "lenient", gate={"degenerate": False}).outcome == "swapped"
    assert swap(world, "a", "strict", salt="2").outcome == "swapped"


def test_sampled_loop_fails(baseline: World) -> None:
    baseline.behaviours[B] = [Behaviour(texts={"sampled": "bread " * 20}, accept_length=2.0)]
    assert "degenerate output to request sampled" in swap(baseline, "b", **DRAFTS).cause


@pytest.mark.parametrize(("final", "words"), [(True, "HTTP 400"), (False, "not within 3 s (canary_s)")])
def test_refused_requests(baseline: World, final: bool, words: str) -> None:
    baseline.behaviours[B] = [Behaviour(refuses=GenerateError("river: HTTP 400", final))]
    result = swap(baseline, "b", gate={"canary_s": 3})
    assert result.outcome == "rolled_back" and words in result.cause and "river" in result.cause


@pytest.mark.parametrize(
    ("claims", "text", "good"),
    [({"grammar": True}, '{"city": "Rome"}', True), ({"grammar": True}, "Rome is a city", False), ({}, "Rome", True)],
)
def test_structured_output_where_it_is_claimed(world: World, claims: dict[str, Any], text: str, good: bool) -> None:
    world.behaviours[A] = [Behaviour(texts={"structured": text})]
    result = swap(world, "a", claims=claims)
    assert (result.outcome == "swapped") is good
    assert good or "structured output is claimed" in result.cause
    assert ("structured" in evidence(world, 5).get("requests", evidence(world, 5))) is bool(claims) or not good


@pytest.mark.parametrize(
    ("length", "words"), [(None, "tells no acceptance length"), (1.0, "acceptance length is 1.00"), (2.0, "")]
)
def test_claimed_drafts_must_be_accepted(baseline: World, length: float | None, words: str) -> None:
    baseline.behaviours[B] = [Behaviour(accept_length=length)]
    result = swap(baseline, "b", **DRAFTS)
    assert (result.outcome == "swapped") is not bool(words)
    assert words in result.cause and (not words or "tier 6 floor" in result.cause)


def test_drafting_that_begins_late_gets_a_longer_repetition(baseline: World) -> None:
    baseline.behaviours[B] = [Behaviour(accept_length=1.0, late_accept_length=1.4)]
    assert swap(baseline, "b", **DRAFTS).outcome == "swapped"
    assert evidence(baseline, 6)["accept_length"] == 1.4


def test_speed_floor_from_the_own_record(baseline: World) -> None:
    assert evidence(baseline, 6, "before")["record"] == "absent"
    assert swap(baseline, "b", "to-b").outcome == "swapped"
    assert swap(baseline, "a", "back").outcome == "swapped"
    assert evidence(baseline, 6, "back")["record"] == 100.0
    baseline.behaviours[B] = [Behaviour(tok_per_s=[20.0, 30.0, 80.0])]
    assert swap(baseline, "b", "noisy").outcome == "swapped"
    noisy = evidence(baseline, 6, "noisy")
    assert (noisy["tries"], noisy["tok_per_s"], noisy["record"]) == (3, 80.0, 100.0)
    assert swap(baseline, "a", "back-again").outcome == "swapped"
    baseline.behaviours[B] = [Behaviour(tok_per_s=[20.0])]
    result = swap(baseline, "b", "slow")
    assert result.outcome == "rolled_back" and "20.0 tok/s" in result.cause and "tier 6 floor" in result.cause
    record = json.loads(baseline.paths.record("smoke").read_text())
    assert sorted(len(plan["runs"]) for plan in record["plans"].values()) == [2, 3]


def told(world: World, event: str) -> dict[str, Any]:
    events = Journal(world.paths.journal("smoke")).read(job="job")
    return next(e for e in events if e["event"] == event)


@pytest.mark.parametrize("damage", ["slow machine", "damaged golden", "generation hangs after the completion"])
def test_output_that_is_not_as_it_was_does_not_fail_the_way_back(baseline: World, damage: str) -> None:
    behaviour, tier = Behaviour(), 5
    if damage == "slow machine":
        behaviour, tier = Behaviour(tok_per_s=[20.0]), 6
    elif damage == "damaged golden":
        kept = json.loads(golden_file(baseline).read_text())
        golden_file(baseline).write_text(json.dumps({**kept, "texts": dict.fromkeys(kept["texts"], "spoiled")}))
    else:
        behaviour = Behaviour(refuses=GenerateError("river: no answer", final=False))
    baseline.behaviours[A] = [behaviour]
    baseline.behaviours[B] = [Behaviour(exit_s=0.15)]
    result = swap(baseline, "b")
    assert (result.outcome, result.active) == ("rolled_back", "a") and baseline.serving_units() == [A]
    failed = told(baseline, "tier_failed")
    assert failed["tier"] == tier and failed["detail"]["told_only"]
    assert "told only" in narrate(failed) and "FAILED" not in narrate(failed)
    back = told(baseline, "rolled_back")
    assert f"tier {tier}" in back["detail"]["told"][0] and "told only: tier" in narrate(back)
    active = states.load(baseline.paths.state("smoke"), "smoke").active
    assert active is not None and tier not in active.tiers, "what did not pass is not claimed as proof"


def test_a_crash_while_the_output_is_told_fails_the_way_back(baseline: World) -> None:
    baseline.behaviours[A] = [Behaviour(refuses=GenerateError("river: no answer", final=False), exit_s=2.0)]
    baseline.behaviours[B] = [Behaviour(exit_s=0.15)]
    result = swap(baseline, "b")
    assert result.outcome == "rollback_failed" and "crashed" in [
        e["event"] for e in Journal(baseline.paths.journal("smoke")).read(job="job")
    ]


def test_settling_tells_output_and_brings_back_all_the_same(baseline: World) -> None:
    golden_file(baseline).write_text(
        json.dumps({**json.loads(golden_file(baseline).read_text()), "texts": {a.id: "x" for a in goldens.GREEDY}})
    )
    baseline.units[A].stop_at = baseline.clock.now
    journal = Journal(baseline.paths.journal("smoke"))
    proven, did = restore_committed(swap_plan(baseline, "b"), journal, baseline.context())
    assert proven and "brought back" in did and "told only: tier 5 canary" in did


def test_switched_off_canary_is_skipped_and_says_so(world: World) -> None:
    assert swap(world, "a", gate={"canary": False}).outcome == "swapped"
    events = Journal(world.paths.journal("smoke")).read(job="job")
    assert [e["tier"] for e in events if e["event"] == "tier_passed"] == [0, 1, 2, 3, 4, 6]
    assert [e["tier"] for e in events if e["event"] == "tier_skipped"] == [5]
    assert not world.paths.goldens.exists() and not world.paths.record("smoke").exists()


def test_every_tier_tells_its_budget_and_its_time(baseline: World) -> None:
    events = Journal(baseline.paths.journal("smoke")).read(job="before")
    passed = {e["tier"]: e["detail"] for e in events if e["event"] == "tier_passed"}
    budgets = {tier: detail["budget_s"] for tier, detail in passed.items()}
    assert budgets == {0: 20, 1: 20, 2: 20, 3: 6, 4: 6, 5: 60, 6: 30}
    assert all(detail["name"] and detail["took_s"] >= 0 and detail["evidence"] for detail in passed.values())


def test_damaged_files_are_named_and_fail_nothing(baseline: World) -> None:
    golden_file(baseline).write_text("{")
    baseline.paths.record("smoke").write_text("[]")
    assert swap(baseline, "a", "again", salt="2").outcome == "swapped"
    assert "cannot be used" in evidence(baseline, 5, "again")["golden_why"]
    assert "cannot be used" in evidence(baseline, 6, "again")["record_why"]
    assert json.loads(golden_file(baseline).read_text())["schema"] == 1, "the next variant without drafts mends it"


@pytest.mark.parametrize("shape", [{"x": 5}, {"x": {"at": 1}}, {"x": {"runs": 5, "at": "soon"}}])
def test_a_record_of_another_shape_fails_no_swap(baseline: World, shape: dict[str, Any]) -> None:
    record = baseline.paths.record("smoke")
    record.write_text(json.dumps({"schema": 1, "plans": {**shape, **{f"p{n}": 1 for n in range(3)}}}))
    assert swap(baseline, "b").outcome == "swapped"
    assert baseline.enabled == {B} and baseline.serving_units() == [B]
    assert [plan["variant"] for plan in json.loads(record.read_text())["plans"].values()] == ["b"]


def test_figures_that_cannot_be_kept_are_told_and_fail_no_swap(
    baseline: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("not what it was")

    monkeypatch.setattr(swaps, "note_record", broken)
    assert swap(baseline, "b").outcome == "swapped"
    assert baseline.enabled == {B}, "the boot is set before figures are kept"
    assert "not kept (TypeError: not what it was)" in told(baseline, "committed")["detail"]["warning"]


def test_golden_of_other_requests_or_of_another_model_is_absent(baseline: World) -> None:
    service = Service.from_dict(service_dict(baseline.paths.root, "a"))
    data = json.loads(golden_file(baseline).read_text())
    golden_file(baseline).write_text(json.dumps({**data, "canary": "0"}))
    assert "other requests" in goldens.load(baseline.paths, service).absent
    golden_file(baseline).write_text(json.dumps({**data, "model": {"sha256": "cd"}}))
    assert "another model" in goldens.load(baseline.paths, service).absent


@pytest.mark.parametrize(
    ("golden", "live", "share", "at"),
    [
        ("abcd", "abcd", 1.0, None),
        ("abcd", "abXd", 0.5, 2),
        ("abcd", "ab", 0.5, 2),
        ("abcd", "abcdef", 1.0, 4),
        ("abcd", "", 0.0, 0),
    ],
)
def test_compare(golden: str, live: str, share: float, at: int | None) -> None:
    assert goldens.compare(golden, live) == goldens.Match(share, at)


@pytest.mark.parametrize("text", ["word " * 20, "!" * 40, "ab" * 30])
def test_short_loops(text: str) -> None:
    assert assess_short(text).degenerate


@pytest.mark.parametrize(
    "text",
    [
        "A river flows from the hills to the sea.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
        "no no no no",
        "123456789123456789123456789123456789",
        "- a\n- b\n- c\n- d\n- e\n- f\n- g\n- h\n- i",
    ],
)
def test_short_texts_that_are_no_loops(text: str) -> None:
    assert not assess_short(text).degenerate


def test_record_keeps_the_last_runs_and_plans(world: World) -> None:
    first = Service.from_dict(service_dict(world.paths.root, "a"))
    for run in range(8):
        floor.note_record(world.paths, first, Answer("x", 10, "stop", 1 / (run + 1)), f"job{run}", run)
    kept = floor.load_record(world.paths, first)
    assert (kept.tok_per_s, kept.runs) == (60.0, floor.KEPT_RUNS)
    for number in range(floor.KEPT_PLANS):
        other = Service.from_dict(service_dict(world.paths.root, "a", plan_hash=f"{number:012x}"))
        floor.note_record(world.paths, other, Answer("x", 10, "stop", 1.0), "job", 100 + number)
    assert floor.load_record(world.paths, first).absent


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"golden": 1}, "gate.golden: unknown key (known: canary,"),
        ({"golden_min_match": 2}, "gate.golden_min_match: expected a number from 0 to 1"),
        ({"canary": 1}, "gate.canary: expected true or false"),
        ({"floor_s": -1}, "gate.floor_s: expected seconds"),
    ],
)
def test_settings_are_read_strictly(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as error:
        GateSettings.from_dict(settings)
    assert words in str(error.value)
    assert GateSettings.from_dict({}) == GateSettings()
