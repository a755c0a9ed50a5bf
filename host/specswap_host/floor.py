"""Tier 6, the floor: drafts that are claimed are accepted, and the speed is what this host is used to.

`record.json` of a slot holds the canary's speed of the last commits per `plan_hash`: a floor from the host's own past,
since nothing else says how fast a plan should be here.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from .atomic import read_json, write_json
from .context import Paths
from .engines import Answer, Probe
from .plan import Service

SCHEMA = 1
KEPT_RUNS = 5
KEPT_PLANS = 40
# What a busy machine may add to one request: a reply of a few milliseconds says little about speed.
SLACK_S = 0.1


@dataclass(frozen=True)
class Record:
    """The usual canary speed of a plan on this slot, None with the reason where there is none."""

    tok_per_s: float | None
    runs: int = 0
    absent: str = ""


def load_record(paths: Paths, service: Service) -> Record:
    """The record of the service's `plan_hash`; an unreadable file is no record, and says so."""
    path = paths.record(service.slot.name)
    try:
        runs = _plans(read_json(path)).get(service.plan_hash, {}).get("runs", [])
        figures = [float(run["tok_per_s"]) for run in runs]
        if not all(math.isfinite(figure) for figure in figures):
            raise ValueError("a speed that is no number")
    except FileNotFoundError:
        figures = []
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return Record(None, absent=f"{path} cannot be used ({type(error).__name__}: {error})")
    if not figures:
        return Record(None, absent="this plan was never committed on this slot")
    return Record(statistics.median(figures), len(figures))


def note_record(paths: Paths, service: Service, answer: Answer, job: str, now: float) -> None:
    """Add a committed service's figures; keeps the last runs of the last plans. Raises OSError."""
    path = paths.record(service.slot.name)
    try:
        plans = _plans(read_json(path))
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        plans = {}
    # What else stands there (an editor's slip, another program's file) is not carried on.
    plans = {name: entry for name, entry in plans.items() if _is_entry(entry)}
    runs = plans.pop(service.plan_hash, {}).get("runs", [])
    run = {
        "tok_per_s": round(answer.tok_per_s, 2),
        "accept_length": None if answer.accept_length is None else round(answer.accept_length, 3),
        "job": job,
        "at": round(now, 3),
    }
    # The order is the age: the oldest plans come first and go first.
    plans[service.plan_hash] = {"variant": service.variant, "at": run["at"], "runs": [*runs, run][-KEPT_RUNS:]}
    kept = sorted(plans.items(), key=lambda item: float(item[1]["at"]))[-KEPT_PLANS:]
    write_json(path, {"schema": SCHEMA, "slot": service.slot.name, "plans": dict(kept)})


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("runs"), list) and isinstance(entry.get("at"), (int, float))


def _plans(data: Any) -> dict[str, Any]:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
    return dict(data["plans"])


def judge_acceptance(service: Service, answer: Answer) -> Probe:
    """Tier 6, first half: a variant that claims drafts must show that they are accepted."""
    least = service.gate.min_accept_length
    if not service.claims.get("drafts"):
        return Probe(
            True, "no drafts are claimed", {"accept_length": None, "accept_length_why": "no drafts are claimed"}
        )
    if answer.accept_length is None:
        return Probe(False, "drafts are claimed, but the server tells no acceptance length", {}, final=True)
    evidence = {"accept_length": round(answer.accept_length, 3), "min_accept_length": least}
    if answer.accept_length <= least:
        message = f"drafts are claimed, but the acceptance length is {answer.accept_length:.2f}, expected > {least:g}"
        return Probe(False, message, evidence, final=True)
    return Probe(True, f"{answer.accept_length:.2f} tokens per step", evidence)


def judge_speed(service: Service, answer: Answer, record: Record) -> Probe:
    """Tier 6, second half: the canary's tok/s against the record. Not ok is worth another try: machines are noisy."""
    speed, share = answer.tok_per_s, service.gate.tok_floor
    evidence: dict[str, Any] = {"tok_per_s": round(speed, 2), "tok_floor": share}
    if not share:
        return Probe(True, "no floor is asked", {**evidence, "record": "not asked"})
    if record.tok_per_s is None:
        return Probe(True, "no record", {**evidence, "record": "absent", "record_why": record.absent})
    floor = max(share * record.tok_per_s, 0.01)
    evidence.update(record=round(record.tok_per_s, 2), record_runs=record.runs)
    if answer.seconds > answer.tokens / floor + SLACK_S:
        message = f"{speed:.1f} tok/s, this plan's record here is {record.tok_per_s:.1f}, expected >= {floor:.1f}"
        return Probe(False, message, evidence)
    return Probe(True, f"{speed:.1f} tok/s", evidence)
