"""From the blocks of a session to `comparison.json`: pairs, guards, match rates, verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import __version__
from .statistics import Evidence, decide, geometric_mean, pair_log_ratio
from .summary import summarize

SCHEMA = 1
MAX_TOKEN_LOG_RATIO = 0.10  # replies whose lengths differ by more are no equal work
MAX_FINISH_DIFFERENCE = 0.10  # share of requests that end for another reason

DEFINITIONS = {
    "e2e_tok_per_s": "completion tokens by the server's usage / seconds from request sent to finish; arms and blocks: "
    "geometric mean over requests; the verdict rests on it",
    "decode_tok_per_s": "(completion tokens - tokens of the first chunk) / (last token - first token)",
    "ttft_s": "seconds from request sent to the first token of any kind; arms and blocks: median",
    "tpot_s": "1 / decode_tok_per_s of one request, seconds per token; arms and blocks: median",
    "ratio": "candidate / baseline: geometric mean over prompts within a pair of blocks, then over pairs",
    "draft_acceptance": "accepted / proposed draft tokens, without the bonus token",
    "match": "greedy replies that are equal text; the first divergence counts characters from 0",
}


def pair_order(pairs: int) -> list[tuple[int, int]]:
    """Arms (0 baseline, 1 candidate) of each pair in ABBA BAAB order: linear drift and slot order cancel."""
    return [(0, 1) if index % 4 in (0, 3) else (1, 0) for index in range(pairs)]


def _usable(record: Mapping[str, Any]) -> bool:
    return bool(record["ok"]) and not record["degenerate"] and record["e2e_tok_per_s"] is not None


def _speeds(block: Mapping[str, Any]) -> dict[str, float]:
    return {record["key"]: record["e2e_tok_per_s"] for record in block["requests"] if _usable(record)}


def _output(record: Mapping[str, Any]) -> str:
    return str(record["reasoning_text"]) + str(record["text"])


def match_outputs(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Match rate over pairs of blocks: equal replies / replies that both blocks have.

    Greedy decoding still flips near-ties when tokens are verified in groups, so this is a rate and no pass or fail.
    """
    from specswap_host.golden import first_divergence  # late: reports are made without the host's package

    compared = equal = 0
    diverged: list[dict[str, Any]] = []
    for one, other in pairs:
        others = {record["key"]: record for record in other["requests"] if record["ok"]}
        for record in one["requests"]:
            if not record["ok"] or record["key"] not in others:
                continue
            compared += 1
            partner = others[record["key"]]
            index = first_divergence(_output(record), _output(partner))
            if index is None:
                equal += 1
            else:
                diverged.append(
                    {
                        "key": record["key"],
                        "blocks": [one["index"], other["index"]],
                        "first_divergence_char": index,
                        "lengths_chars": [len(_output(record)), len(_output(partner))],
                    }
                )
    out: dict[str, Any] = {"compared": compared, "equal": equal, "diverged": diverged}
    out["match_rate"] = round(equal / compared, 4) if compared else None
    if not compared:
        out["match_rate_reason"] = "no two blocks to compare"
    return out


def _guards(
    arms: Sequence[str],
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    fingerprints: Mapping[str, Mapping[str, Any]],
    allowed: Sequence[str],
) -> tuple[list[str], list[str], list[str]]:
    """(reasons for `invalid`, for `not comparable`, notes)."""
    invalid: list[str] = []
    not_comparable: list[str] = []
    notes: list[str] = []
    if not pairs:
        return ["no pair of blocks was finished"], [], []
    both = [block for pair in pairs for block in pair]
    sides: list[list[Mapping[str, Any]]] = [
        [record for pair in pairs for record in pair[side]["requests"]] for side in (0, 1)
    ]
    failed = [sum(1 for record in side if not record["ok"]) for side in sides]
    if failed[0] != failed[1]:
        invalid.append(f"failed requests differ: {arms[0]} {failed[0]}, {arms[1]} {failed[1]}")
    elif failed[0]:
        notes.append(f"{failed[0]} requests failed in each arm; their prompts take no part")
    loops = [{(record["key"]) for record in side if record["degenerate"]} for side in sides]
    for side in (0, 1):
        only = sorted(loops[side] - loops[1 - side])
        if only:
            invalid.append(f"{arms[side]} answers {', '.join(only)} with a loop and {arms[1 - side]} does not")
    shared = sorted(loops[0] & loops[1])
    if shared:
        notes.append(f"both arms answer {', '.join(shared)} with a loop: left out of the verdict")
    bound = [block["index"] for block in both if block["client_bound"]]
    if bound:
        invalid.append(f"the client needed too much CPU in block {', '.join(map(str, bound))}")
    protocols = sorted({block["cache_protocol"] for block in both})
    if len(protocols) > 1:
        invalid.append(f"the cache was treated differently: {' / '.join(protocols)}")
    loose = [block["index"] for block in both if any(record["chunked"] is False for record in block["requests"])]
    if loose:
        notes.append(f"block {', '.join(map(str, loose))}: replies without chunked encoding, stream times are suspect")
    stale = [block["index"] for block in both if block.get("swap", {}).get("outcome") == "noop"]
    if stale:
        notes.append(f"block {', '.join(map(str, stale))} was measured on a server that had not been restarted for it")
    same = {
        "engine": "engine",
        "release": "environment release",
        "target_sha256": "target model",
        "drop_ins": "unit's local drop-ins",
    }
    for key, what in same.items():
        values = [str(fingerprints.get(arm, {}).get(key)) for arm in arms]
        if values[0] != values[1]:
            text = f"the {what} differs ({values[0]} / {values[1]})"
            if key in allowed:
                notes.append(f"{text}, as declared")
            else:
                not_comparable.append(f"{text}: more than the variant's settings changes")
    tokens = [sum(record["completion_tokens"] or 0 for record in side if record["ok"]) for side in sides]
    if tokens[0] and tokens[1] and abs(math.log(tokens[1] / tokens[0])) > MAX_TOKEN_LOG_RATIO:
        not_comparable.append(f"reply lengths differ: {tokens[0]} / {tokens[1]} tokens")
    total = changed = 0
    for base, cand in pairs:
        reasons = {record["key"]: record["finish_reason"] for record in base["requests"] if record["ok"]}
        for record in cand["requests"]:
            if record["ok"] and record["key"] in reasons:
                total += 1
                changed += record["finish_reason"] != reasons[record["key"]]
    if total and changed / total > MAX_FINISH_DIFFERENCE:
        not_comparable.append(f"{changed} of {total} replies end for another reason (stop, length)")
    return invalid, not_comparable, notes


def _arm(blocks: Sequence[Mapping[str, Any]], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    records = [record for block in blocks for record in block["requests"]]
    out: dict[str, Any] = {"fingerprint": dict(fingerprint), "blocks": [block["index"] for block in blocks]}
    out.update(summarize(records))
    for key in ("seconds", "downtime_s"):
        values = [block["swap"][key] for block in blocks if isinstance(block.get("swap", {}).get(key), (int, float))]
        out[f"swap_{'s' if key == 'seconds' else key}"] = round(sum(values) / len(values), 3) if values else None
        if not values:
            out[f"swap_{'s' if key == 'seconds' else key}_reason"] = "no swap was timed"
    return out


def _prompts(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per prompt: paired ratios of e2e tok/s, the arms' speeds, equal replies."""
    rows: dict[str, dict[str, Any]] = {}
    for number, (base, cand) in enumerate(pairs):
        others = {record["key"]: record for record in cand["requests"]}
        for record in base["requests"]:
            partner = others.get(record["key"])
            row = rows.setdefault(
                record["key"],
                {
                    "key": record["key"],
                    "category": record["category"],
                    "pair_ratios": [],
                    "speeds": ([], []),
                    "drafted": [0, 0],
                    "tokens": [0, 0],
                    "equal": 0,
                    "compared": 0,
                },
            )
            if partner is None:
                continue
            if record["ok"] and partner["ok"]:
                row["compared"] += 1
                row["equal"] += _output(record) == _output(partner)
            if _usable(record) and _usable(partner):
                ratio = partner["e2e_tok_per_s"] / record["e2e_tok_per_s"]
                row["pair_ratios"].append({"pair": number, "ratio": round(ratio, 6)})
                for side, one in enumerate((record, partner)):
                    row["speeds"][side].append(one["e2e_tok_per_s"])
                    row["tokens"][side] += one["completion_tokens"]
                row["drafted"][0] += partner["draft_n"] or 0
                row["drafted"][1] += partner["draft_n_accepted"] or 0
    out = []
    for row in rows.values():
        ratios = [item["ratio"] for item in row["pair_ratios"]]
        base_speeds, cand_speeds = row.pop("speeds")
        drafted, accepted = row.pop("drafted")
        tokens = row.pop("tokens")
        row["ratio"] = round(geometric_mean(ratios), 6) if ratios else None
        row["baseline_e2e_tok_per_s"] = round(geometric_mean(base_speeds), 4) if base_speeds else None
        row["candidate_e2e_tok_per_s"] = round(geometric_mean(cand_speeds), 4) if cand_speeds else None
        if not ratios:
            for key in ("ratio", "baseline_e2e_tok_per_s", "candidate_e2e_tok_per_s"):
                row[f"{key}_reason"] = "no pair has two usable replies to this prompt"
        row["baseline_completion_tokens"], row["candidate_completion_tokens"] = tokens
        row["candidate_draft_n"], row["candidate_draft_n_accepted"] = drafted, accepted
        out.append(row)
    return out


def build_comparison(
    *,
    session: str,
    host: str,
    slot: str,
    suite: str,
    arms: Sequence[str],
    pairs: int,
    blocks: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]] = (),
    fingerprints: Mapping[str, Mapping[str, Any]] | None = None,
    controller: Mapping[str, Any] | None = None,
    noise_floor: float | None = None,
    allowed_differences: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """The result of a session (docs/architecture.md, "Result").

    `blocks`: finished blocks, each with `index`, `arm`, `pair` and the keys of `Block.to_dict`. A pair counts when both
    its blocks are there. `more` is added at the top level.
    """
    base_name, cand_name = arms
    prints = fingerprints or {}
    by_pair: dict[int, dict[str, Mapping[str, Any]]] = {}
    for block in blocks:
        by_pair.setdefault(block["pair"], {})[block["arm"]] = block
    complete = [
        (found[base_name], found[cand_name])
        for _, found in sorted(by_pair.items())
        if base_name in found and cand_name in found
    ]
    invalid, not_comparable, notes = _guards(arms, complete, prints, allowed_differences)
    rounds: list[dict[str, Any]] = []
    log_ratios: list[float] = []
    for base, cand in complete:
        value = pair_log_ratio(_speeds(base), _speeds(cand))
        row: dict[str, Any] = {"pair": base["pair"], "blocks": [base["index"], cand["index"]]}
        row["first"] = base_name if base["index"] < cand["index"] else cand_name
        row["ratio"] = round(math.exp(value), 6) if value is not None else None
        row["baseline_e2e_tok_per_s"] = base["summary"]["e2e_tok_per_s"]
        row["candidate_e2e_tok_per_s"] = cand["summary"]["e2e_tok_per_s"]
        if value is None:
            row["ratio_reason"] = "no prompt has usable replies in both blocks"
        else:
            log_ratios.append(value)
        rounds.append(row)
    if complete and not log_ratios:
        invalid.append("no prompt has usable replies in both arms")
    verdict = decide(Evidence(base_name, cand_name, log_ratios, noise_floor, invalid, not_comparable)).to_dict()
    verdict.update(baseline=base_name, candidate=cand_name, metric="e2e_tok_per_s", confidence=0.95)
    verdict["noise_floor"] = noise_floor
    if noise_floor is None:
        verdict["noise_floor_reason"] = "no comparison of a variant with itself was given"
    same_arm: dict[str, Any] = {}
    for arm in arms:
        own = [block for block in blocks if block["arm"] == arm]
        same_arm[arm] = match_outputs([(own[0], block) for block in own[1:]])
    return {
        "schema": SCHEMA,
        "session": session,
        "host": host,
        "slot": slot,
        "suite": suite,
        "order": [block["arm"] for block in blocks],
        "pairs": pairs,
        "arms": {arm: _arm([block for block in blocks if block["arm"] == arm], prints.get(arm, {})) for arm in arms},
        "blocks": [dict(block) for block in blocks],
        "failures": [dict(failure) for failure in failures],
        "rounds": rounds,
        "prompts": _prompts(complete),
        "match": {"between_arms": match_outputs(complete), "within_arm": same_arm},
        "verdict": verdict,
        "notes": notes,
        "definitions": DEFINITIONS,
        "controller": dict(controller or {}),
        "bench_version": __version__,
        **more,
    }
