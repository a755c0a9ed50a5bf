"""Statistics of a comparison. The replicate is the pair of blocks, not the prompt: restarts of one and the same
variant differ by more than its prompts do, so an interval over prompts is wrong seven times in ten on equal variants.

Everything works on natural logarithms of ratios candidate / baseline, and reports ratios.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MIN_PAIRS = 4
MIN_MARGIN = 0.02
CONFIDENCE = 0.95
MAX_PAIRS_NEEDED = 200

WORDS = ("faster", "slower", "no difference", "inconclusive", "not enough rounds", "invalid", "not comparable")


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of a non-empty sequence. Errors: ValueError when it is empty."""
    if not values:
        raise ValueError("mean of nothing")
    return math.fsum(values) / len(values)


def sample_sd(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1). Errors: ValueError below two values."""
    if len(values) < 2:
        raise ValueError("standard deviation needs two values")
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm of positive values."""
    return math.exp(mean([math.log(value) for value in values]))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 400):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            step = c * d
            result *= step
        if abs(step - 1.0) < 1e-15:
            break
    return result


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), for a, b > 0 and x in 0..1."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's t with `df` degrees of freedom."""
    tail = 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + t * t))
    return 1.0 - tail if t >= 0 else tail


@functools.cache
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p. Errors: ValueError unless 0 < p < 1 and df > 0."""
    if not 0.0 < p < 1.0 or df <= 0:
        raise ValueError(f"t_quantile({p}, {df}): p must lie between 0 and 1, df above 0")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * max(1.0, high):
            break
    return 0.5 * (low + high)


@dataclass(frozen=True)
class Interval:
    """Mean of log ratios with its t interval; `low` and `high` are logs too. `sd`: between pairs."""

    mean: float
    low: float
    high: float
    sd: float
    n: int


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Student t interval of the mean. Errors: ValueError below two values."""
    center, sd = mean(values), sample_sd(values)
    half = t_quantile(0.5 + confidence / 2.0, len(values) - 1) * sd / math.sqrt(len(values))
    return Interval(center, center - half, center + half, sd, len(values))


def pair_log_ratio(baseline: Mapping[str, float], candidate: Mapping[str, float]) -> float | None:
    """Mean over the shared keys of ln(candidate / baseline); None when nothing is shared."""
    keys = [key for key in baseline if key in candidate]
    if not keys:
        return None
    return mean([math.log(candidate[key] / baseline[key]) for key in keys])


def pairs_needed(center: float, sd: float, margin: float, pairs: int) -> int | None:
    """Pairs after which the interval would clear the margin if mean and sd stay as they are; None above 200.

    All in logs. The interval must fit into the room between the mean and the nearest border of the margin.
    """
    room = abs(abs(center) - margin)
    for count in range(max(pairs + 1, MIN_PAIRS), MAX_PAIRS_NEEDED + 1):
        if t_quantile(0.5 + CONFIDENCE / 2.0, count - 1) * sd / math.sqrt(count) < room:
            return count
    return None


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on. `log_ratios`: one per valid pair, ln(candidate / baseline) of e2e tok/s.

    `noise_floor`: largest relative difference that equal variants showed on this host (0.018 is 1.8 %), None: not
    measured. `invalid`, `not_comparable`: reasons of the guards, in words.
    """

    baseline: str
    candidate: str
    log_ratios: Sequence[float]
    noise_floor: float | None = None
    invalid: Sequence[str] = ()
    not_comparable: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The word, and the figures behind it; ratios are candidate / baseline, `margin` is relative."""

    word: str
    text: str
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    ci_reason: str | None
    pairs: int
    pairs_needed: int | None
    pairs_needed_reason: str | None
    margin: float
    sd_log: float | None
    reasons: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; keys of `null` values have their reasons beside them."""
        out = dict(vars(self))
        if self.ratio is None:
            out["ratio_reason"] = "no valid pair of blocks"
        if self.sd_log is None:
            out["sd_log_reason"] = "fewer than two pairs"
        return out


def percent(ratio: float) -> str:
    """A ratio as signed percent: 1.241 -> "+24.1 %"."""
    return f"{(ratio - 1.0) * 100.0:+.1f} %"


def decide(evidence: Evidence) -> Verdict:
    """The verdict: guards first, then the number of pairs, then the interval against the margin."""
    logs = list(evidence.log_ratios)
    pairs = len(logs)
    margin = max(MIN_MARGIN, evidence.noise_floor or 0.0)
    border = math.log1p(margin)
    center = mean(logs) if logs else None
    ratio = math.exp(center) if center is not None else None
    sd = sample_sd(logs) if pairs >= 2 else None
    needed: int | None = max(MIN_PAIRS - pairs, 0) + pairs if pairs < MIN_PAIRS else None
    needed_reason: str | None = None if needed is not None else "the pairs suffice"
    low = high = None
    ci_reason: str | None = None
    interval: Interval | None = None
    if pairs >= MIN_PAIRS:
        interval = t_interval(logs)
        low, high = math.exp(interval.low), math.exp(interval.high)
    else:
        ci_reason = f"{pairs} of at least {MIN_PAIRS} pairs: no interval can be claimed"
    name = f"{evidence.candidate} against {evidence.baseline}"
    figure = "no figure" if ratio is None else f"e2e tok/s {percent(ratio)}"
    if interval is not None and low is not None and high is not None:
        figure += f" [{percent(low)}, {percent(high)}]"
    reasons: list[str] = []
    if evidence.invalid:
        word, reasons = "invalid", list(evidence.invalid)
        text = f"{name}: invalid: {'; '.join(reasons)}. The figures are no basis for a choice ({figure})."
    elif evidence.not_comparable:
        word, reasons = "not comparable", list(evidence.not_comparable)
        text = f"{name}: not comparable: {'; '.join(reasons)} ({figure})."
    elif interval is None:
        word = "not enough rounds"
        text = f"{name}: {figure} in {pairs} {'pair' if pairs == 1 else 'pairs'}; a verdict needs {MIN_PAIRS} pairs."
        reasons = [ci_reason or ""]
    elif interval.low > border:
        word = "faster"
        text = f"{name}: {figure}: faster by more than the margin of {margin * 100:.1f} %."
    elif interval.high < -border:
        word = "slower"
        text = f"{name}: {figure}: slower by more than the margin of {margin * 100:.1f} %."
    elif interval.low > -border and interval.high < border:
        word = "no difference"
        text = f"{name}: {figure}: no difference beyond the margin of {margin * 100:.1f} %."
    else:
        word = "inconclusive"
        needed = pairs_needed(interval.mean, interval.sd, border, pairs)
        if needed is None:
            needed_reason = f"more than {MAX_PAIRS_NEEDED} pairs at this noise"
            advice = f"more than {MAX_PAIRS_NEEDED} pairs would be needed at this noise: quieten the host"
        else:
            needed_reason = None
            advice = f"about {needed} pairs would decide it"
        text = f"{name}: {figure}: inconclusive against the margin of {margin * 100:.1f} %; {advice}."
    return Verdict(word, text, ratio, low, high, ci_reason, pairs, needed, needed_reason, margin, sd, reasons)
