"""Quantiles against published tables, verdict words at their borders, and the rate of false verdicts."""

from __future__ import annotations

import math
import random

import pytest
from specswap_bench.statistics import Evidence, decide, pair_log_ratio, pairs_needed, t_cdf, t_interval, t_quantile


@pytest.mark.parametrize(
    ("p", "df", "value"),
    [
        # Student t table, as printed in statistics books.
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 5, 2.571),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
        (0.95, 4, 2.132),
        (0.995, 7, 3.499),
        (0.9, 20, 1.325),
    ],
)
def test_t_quantile_is_the_table(p: float, df: int, value: float) -> None:
    assert t_quantile(p, df) == pytest.approx(value, abs=6e-4)
    assert t_quantile(1 - p, df) == pytest.approx(-value, abs=6e-4)
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-10)


def test_t_cdf_has_closed_forms_for_one_and_two_degrees() -> None:
    for t in (-3.0, -0.5, 0.0, 0.7, 4.0):
        assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
        assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_t_quantile_refuses_nonsense(p: float, df: int) -> None:
    with pytest.raises(ValueError):
        t_quantile(p, df)


def test_interval_by_hand() -> None:
    interval = t_interval([0.1, 0.2, 0.3, 0.4])
    half = 3.182446 * 0.129099 / 2
    assert interval.mean == pytest.approx(0.25)
    assert (interval.low, interval.high) == (pytest.approx(0.25 - half, abs=1e-5), pytest.approx(0.25 + half, abs=1e-5))


def test_pair_log_ratio_pairs_by_key() -> None:
    value = pair_log_ratio({"a": 100.0, "b": 10.0, "only": 1.0}, {"b": 20.0, "a": 100.0})
    assert value == pytest.approx(math.log(2) / 2)
    assert pair_log_ratio({"a": 1.0}, {"b": 1.0}) is None


def word(logs: list[float], **more: object) -> str:
    return decide(Evidence("base", "cand", logs, **more)).word  # type: ignore[arg-type]


def test_words() -> None:
    tight = [0.001, -0.001, 0.0005, -0.0005]
    assert word([0.2 + x for x in tight]) == "faster"
    assert word([-0.2 + x for x in tight]) == "slower"
    assert word(tight) == "no difference"
    assert word([0.3, -0.25, 0.2, -0.3]) == "inconclusive"
    assert word([0.2, 0.2, 0.2]) == "not enough rounds"
    assert word([]) == "not enough rounds"
    assert word([0.2 + x for x in tight], invalid=["failures differ"]) == "invalid"
    assert word([0.2 + x for x in tight], not_comparable=["lengths differ"]) == "not comparable"
    assert word([0.2], invalid=["x"], not_comparable=["y"]) == "invalid"


def test_the_noise_floor_widens_the_margin() -> None:
    logs = [0.049, 0.051, 0.0495, 0.0505]
    assert word(logs) == "faster"
    assert word(logs, noise_floor=0.06) == "no difference"
    assert word(logs, noise_floor=0.001) == "faster"
    assert decide(Evidence("a", "b", logs, 0.001)).margin == 0.02


def test_few_pairs_give_the_figure_and_no_interval() -> None:
    verdict = decide(Evidence("baseline", "ngram", [math.log(1.241)])).to_dict()
    assert verdict["ratio"] == pytest.approx(1.241)
    assert verdict["ci_low"] is None and verdict["ci_high"] is None and "4 pairs" in verdict["ci_reason"]
    assert verdict["pairs"] == 1 and verdict["pairs_needed"] == 4
    assert "+24.1 %" in verdict["text"] and "faster" not in verdict["text"]


def test_inconclusive_says_how_many_pairs_would_do() -> None:
    logs = [0.03, 0.06, 0.01, 0.05]
    verdict = decide(Evidence("a", "b", logs))
    assert verdict.word == "inconclusive" and verdict.pairs_needed is not None and verdict.pairs_needed > 4
    border, count = math.log1p(0.02), verdict.pairs_needed
    assert verdict.sd_log is not None
    for pairs, enough in ((count, True), (count - 1, count - 1 == 4)):
        half = t_quantile(0.975, pairs - 1) * verdict.sd_log / math.sqrt(pairs)
        assert (half < abs(sum(logs) / 4 - border)) is enough or pairs == 4
    assert str(count) in verdict.text
    assert pairs_needed(border, 0.1, border, 4) is None


def _simulated(seed: int, effect: float, pairs: int = 6) -> list[float]:
    """Log ratios of one comparison: restarts differ by 1.5 %, prompts by 3 %, a variant acts on prompts by 5 %."""
    rng = random.Random(seed)
    mix = [rng.gauss(0, 0.05) for _ in range(10)] if effect else [0.0] * 10
    logs = []
    for _ in range(pairs):
        arms = [rng.gauss(0, 0.015) for _ in (0, 1)]
        drops = [arms[1] - arms[0] + effect + m + rng.gauss(0, 0.03) - rng.gauss(0, 0.03) for m in mix]
        logs.append(sum(drops) / len(drops))
    return logs


def test_false_intervals_on_equal_variants_are_about_five_percent() -> None:
    trials = 600
    apart = sum(not (i.low <= 0.0 <= i.high) for i in (t_interval(_simulated(seed, 0.0)) for seed in range(trials)))
    assert 0.02 <= apart / trials <= 0.08
    wrong = sum(word(_simulated(seed, 0.0)) in ("faster", "slower") for seed in range(trials))
    assert wrong / trials <= 0.02  # the margin leaves less room for error than the interval alone


def test_a_real_difference_is_found() -> None:
    found = sum(word(_simulated(seed, 0.10)) == "faster" for seed in range(200))
    assert found / 200 >= 0.9
