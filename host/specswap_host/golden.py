"""Tier 5, the canary: fixed prompts of the project, compared with what the same model answered before.

Speculation must not change greedy output. So the greedy texts of a target model under an engine release are kept once,
from a variant that does not claim drafts, and every later start is compared with them: /var/lib/specswap/goldens/.
Two texts may part at a near tie (another kernel sums in another order), so a stated share before the first difference
counts (`golden_min_match`), but a difference in the first characters fails. Where nothing is kept, nothing is compared,
and the evidence says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .atomic import read_json, write_json
from .context import Paths
from .degenerate import assess_short
from .engines import Answer, Ask, Engine, GenerateError, Probe
from .plan import Service

SCHEMA = 1

_LINE = "The red house stands on the hill near the old river.\n"
# The repetitive one is continued, not asked: any model repeats it, so any kind of drafting finds tokens to accept.
REPETITIVE = Ask("repetitive", _LINE * 4, 40, raw=True)
LONGER = replace(REPETITIVE, id="longer", max_tokens=160)
GREEDY = (
    Ask("river", "Write one sentence about a river.", 24),
    Ask("water", "What is water made of? Answer in one sentence.", 24),
    REPETITIVE,
)
SAMPLED = Ask("sampled", "Tell me something about bread.", 24, temperature=0.8, seed=7)
STRUCTURED = Ask(
    "structured",
    "Name a city as a JSON object with the key city.",
    64,
    schema={
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
# About the first four tokens: two runs of one model that part before that are not at a near tie.
FIRST_CHARS = 16


def canary_digest() -> str:
    """Names this set of greedy requests: a golden of another set proves nothing about this one."""
    text = json.dumps([[ask.id, ask.prompt, ask.max_tokens, ask.raw] for ask in GREEDY])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Golden:
    """Kept greedy texts by request id, and why there are none; `recorded` says by which job and variant."""

    path: Path | None
    texts: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    recorded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """How far two texts agree; `at` is the first differing character, None when they are equal."""

    share: float
    at: int | None

    @property
    def early(self) -> bool:
        return self.at is not None and self.at < FIRST_CHARS


@dataclass(frozen=True)
class Canary:
    """A passed canary: greedy texts by request id, and the answer whose speed and acceptance tier 6 judges."""

    texts: Mapping[str, str]
    repetitive: Answer


def golden_path(paths: Paths, service: Service) -> Path | None:
    """Where the golden of the service's target model and release lies; None for a service without a target."""
    target = service.models.get("target")
    if target is None:
        return None
    release = re.sub(r"[^A-Za-z0-9._-]", "_", service.release)
    return paths.goldens / f"{target.sha256[:12]}-{release}.json"


def load(paths: Paths, service: Service) -> Golden:
    """The golden for `service`; one that is missing, unreadable or of another kind is absent, with the reason."""
    path = golden_path(paths, service)
    if path is None:
        return Golden(None, absent="the service names no target model")
    try:
        data = read_json(path)
        if data["schema"] != SCHEMA or data["canary"] != canary_digest():
            return Golden(path, absent=f"{path} was recorded with other requests")
        if data["model"]["sha256"] != service.models["target"].sha256:
            return Golden(path, absent=f"{path} is of another model")
        texts = {ask.id: str(data["texts"][ask.id]) for ask in GREEDY}
        return Golden(path, texts, recorded=dict(data["recorded"]))
    except FileNotFoundError:
        return Golden(path, absent="none was recorded yet for this model and release")
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return Golden(path, absent=f"{path} cannot be used ({type(error).__name__}: {error})")


def may_record(service: Service, golden: Golden) -> bool:
    """True for a variant whose greedy texts may become the golden: there is none, and it does not claim drafts."""
    return bool(golden.absent) and golden.path is not None and not service.claims.get("drafts")


def record(paths: Paths, service: Service, canary: Canary, job: str, now: float) -> Path | None:
    """Keep the canary's greedy texts where `may_record`; the path when that was done. Raises OSError.

    To be called once the service is committed: what did not pass the whole gate is no reference.
    """
    golden = load(paths, service)
    if golden.path is None or not may_record(service, golden):
        return None
    golden.path.parent.mkdir(parents=True, exist_ok=True)
    target = service.models["target"]
    write_json(
        golden.path,
        {
            "schema": SCHEMA,
            "canary": canary_digest(),
            "model": {"name": target.name, "sha256": target.sha256},
            "release": service.release,
            "recorded": {
                "slot": service.slot.name,
                "variant": service.variant,
                "plan_hash": service.plan_hash,
                "job": job,
                "at": round(now, 3),
            },
            "texts": dict(canary.texts),
        },
    )
    return golden.path


def first_divergence(one: str, other: str) -> int | None:
    """Index of the first differing character, None when equal; a text that only ends earlier differs at its end."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def compare(golden: str, live: str) -> Match:
    """Share of `golden` before the first difference."""
    at = first_divergence(golden, live)
    if at is None:
        return Match(1.0, None)
    return Match(at / len(golden) if golden else 0.0, at)


def run_canary(
    engine: Engine, service: Service, golden: Golden, time_left: Callable[[], float]
) -> tuple[Probe, Canary | None]:
    """Ask all canary requests, one after another, and judge the answers. Blocks; `time_left` gives seconds.

    A probe that is not ok and not final is worth another try (the server was busy); with an ok one comes the canary.
    """
    answers: dict[str, Answer] = {}
    asks = [*GREEDY, SAMPLED, *([STRUCTURED] if service.claims.get("grammar") else [])]
    try:
        for ask in asks:
            answers[ask.id] = engine.generate(service, ask, max(0.5, time_left()))
    except GenerateError as error:
        return Probe(False, f"request {error}", {"answered": sorted(answers)}, error.final), None
    canary = Canary({ask.id: answers[ask.id].text for ask in GREEDY}, answers[REPETITIVE.id])
    matches = {name: compare(text, canary.texts[name]) for name, text in golden.texts.items()}
    evidence: dict[str, Any] = {
        "requests": {
            ask.id: {
                "text": answers[ask.id].text[:80],
                "tokens": answers[ask.id].tokens,
                "seconds": round(answers[ask.id].seconds, 3),
                "finish_reason": answers[ask.id].finish,
            }
            for ask in asks
        },
        **_golden_evidence(service, golden, matches),
    }
    problem = (
        _degenerate(service, golden, answers)
        or _unstructured(answers.get(STRUCTURED.id))
        or _diverged(service, golden, matches, canary)
    )
    return Probe(not problem, problem or "the canary passed", evidence, final=bool(problem)), canary


def _golden_evidence(service: Service, golden: Golden, matches: Mapping[str, Match]) -> dict[str, Any]:
    if golden.absent:
        later = "recorded when committed" if may_record(service, golden) else "nothing was compared"
        return {"golden": "absent", "golden_why": golden.absent, "golden_note": later}
    share = sum(match.share for match in matches.values()) / len(matches)
    return {
        "golden": "equal" if all(match.at is None for match in matches.values()) else "differs",
        "golden_match": round(share, 3),
        "golden_min_match": service.gate.golden_min_match,
        "golden_differs_at": {name: match.at for name, match in matches.items() if match.at is not None},
        "golden_file": str(golden.path),
        "golden_by": golden.recorded.get("variant"),
    }


def _degenerate(service: Service, golden: Golden, answers: Mapping[str, Answer]) -> str:
    if not service.gate.degenerate:
        return ""
    for name, answer in answers.items():
        # What the golden says too is the model's own way, not a fault of this variant; a continued repetition is one
        # by design.
        if name in (REPETITIVE.id, STRUCTURED.id) or golden.texts.get(name) == answer.text:
            continue
        found = assess_short(answer.text)
        if found.degenerate:
            return f"degenerate output to request {name}: {found.reason}"
    return ""


def _unstructured(answer: Answer | None) -> str:
    if answer is None:
        return ""
    try:
        value = json.loads(answer.text)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("city"), str):
        return ""
    return f"structured output is claimed, but the answer does not follow the schema: {answer.text[:120]!r}"


def _diverged(service: Service, golden: Golden, matches: Mapping[str, Match], canary: Canary) -> str:
    for name, match in matches.items():
        if match.early:
            kept, live = golden.texts[name][:40], canary.texts[name][:40]
            return f"greedy text of request {name} is {live!r}, the golden says {kept!r} (character {match.at})"
    if matches:
        share, least = sum(match.share for match in matches.values()) / len(matches), service.gate.golden_min_match
        if share < least:
            return f"greedy text leaves the golden after {share:.0%} of it, expected >= {least:.0%}"
    return ""
