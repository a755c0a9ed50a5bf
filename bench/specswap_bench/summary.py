"""Figures over many request records. Pure: also used where no HTTP library is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .record import quantile
from .statistics import geometric_mean


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures over request records in JSON form: geometric means of speeds, medians of times, token sums.

    Failed requests are counted and take no part in the figures; a figure without a source is None with a reason.
    """
    good = [record for record in records if record["ok"]]
    out: dict[str, Any] = {
        "requests": len(records),
        "failed": len(records) - len(good),
        "completion_tokens": sum(record["completion_tokens"] or 0 for record in good),
        "non_chunked": sum(1 for record in good if record["chunked"] is False),
        "degenerate": sum(1 for record in good if record["degenerate"]),
    }
    for name in ("e2e_tok_per_s", "decode_tok_per_s"):
        values = [record[name] for record in good if record[name] is not None]
        _put(out, name, geometric_mean(values) if values else None, "no successful request has this figure")
    for name in ("ttft_s", "tpot_s", "e2e_s", "icl_median_s", "tokens_per_chunk"):
        values = [record[name] for record in good if record[name] is not None]
        _put(out, name, quantile(values, 0.5) if values else None, "no successful request has this figure")
    drafts = [record for record in good if record["draft_n"] is not None]
    no_drafts = "the server counted no drafts"
    for name in ("draft_n", "draft_n_accepted"):
        values = [record[name] for record in drafts if record[name] is not None]
        out[name] = sum(values) if values else None
        if not values:
            out[f"{name}_reason"] = no_drafts
    _put(out, "draft_acceptance", out["draft_n_accepted"] / out["draft_n"] if out["draft_n"] else None, no_drafts)
    steps = [record for record in good if record["verify_ct"]]
    tokens, verified = sum(r["completion_tokens"] for r in steps), sum(r["verify_ct"] for r in steps)
    _put(out, "accept_length_tokens", tokens / verified if verified else None, "the server counted no verify steps")
    return out


def _put(out: dict[str, Any], name: str, value: float | None, reason: str) -> None:
    out[name] = None if value is None else round(value, 6)
    if value is None:
        out[f"{name}_reason"] = reason
