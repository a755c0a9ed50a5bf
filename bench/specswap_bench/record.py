"""One measured request: what was seen, and what follows from it.

Times `t_..._s` are readings of the monotonic clock (seconds, the journal's `t_mono`). Rules that everything here obeys:
tokens come from the server's `usage` and never from chunks; a value that was not measured is `None` with a
`<key>_reason`, never 0; a failed request keeps its record and gives no speed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ERROR_KINDS = (
    "http_status",  # the server answered with another status than 200
    "connection",  # no connection, or it broke before the reply's headers
    "timeout",  # nothing came for the stall time, or the whole request took too long
    "stream_error",  # an error object or no JSON inside a 200 stream
    "truncated",  # the stream ended without a finish reason, or without both [DONE] and usage
    "no_usage",  # complete, but the server did not say how many tokens it made
    "not_sent",  # an earlier turn of the same prompt failed
)

_MIN_DECODE_S = 0.001  # below this the clock and the socket buffers are measured, not the server


_ABSENT = {
    "http_status": "no reply came",
    "t_sent_s": "the request was not sent",
    "t_first_byte_s": "no reply came",
    "t_first_token_s": "no content came",
    "t_first_answer_token_s": "no answer text came",
    "t_last_token_s": "no content came",
    "t_finish_s": "no finish reason came",
    "completion_tokens": "the server's usage does not say",
    "prompt_tokens": "the server's usage does not say",
    "cached_tokens": "the server's usage does not say",
    "reasoning_tokens": "the server's usage does not say",
    "draft_n": "the server offered no such count",
    "draft_n_accepted": "the server offered no such count",
    "verify_ct": "the server offered no such count",
    "server_decode_tok_per_s": "the server offered no such figure",
}


@dataclass
class Metrics:
    """Derived figures of one request; `None` has its reason in `reasons` under the same key.

    `ttft_s`: sent to first token of any kind. `ttfo_s`: sent to first answer token (after reasoning). `tpot_s`: seconds
    per token after the first chunk. `icl_..._s`: gaps between content chunks (a chunk may hold several tokens).
    `e2e_s`: sent to the finish. `e2e_tok_per_s`: completion tokens / e2e. `decode_tok_per_s`: 1 / tpot.
    """

    ttft_s: float | None = None
    ttfo_s: float | None = None
    tpot_s: float | None = None
    icl_median_s: float | None = None
    icl_p99_s: float | None = None
    e2e_s: float | None = None
    e2e_tok_per_s: float | None = None
    decode_tok_per_s: float | None = None
    tokens_per_chunk: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass
class RequestRecord:
    """Everything seen of one streamed chat request. `None` of a time means that the moment never came."""

    prompt: str
    category: str = ""
    turn: int = 1
    error: str | None = None
    error_detail: str = ""
    http_status: int | None = None
    chunked: bool | None = None  # False: the body came without chunked encoding, its timing is suspect
    t_sent_s: float | None = None
    t_first_byte_s: float | None = None  # status line and headers were read
    t_first_token_s: float | None = None  # first content of any kind, reasoning included
    t_first_answer_token_s: float | None = None
    t_last_token_s: float | None = None
    t_finish_s: float | None = None  # the chunk with the finish reason, or the last content chunk when that is later
    chunk_stamps_s: list[float] = field(default_factory=list)  # content chunks only, monotonic
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    n_first_chunk: int = 1
    n_first_chunk_source: str = "assumed"  # or "per-chunk usage"
    reasoning_chunks: int = 0
    answer_chunks: int = 0
    finish_reason: str | None = None
    done: bool = False
    text: str = ""
    reasoning_text: str = ""
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    verify_ct: int | None = None
    draft_source: str | None = None
    server_decode_tok_per_s: float | None = None
    degenerate: bool = False
    degenerate_reason: str = ""

    @property
    def ok(self) -> bool:
        """True when the reply is complete and its tokens are known."""
        return self.error is None

    @property
    def key(self) -> str:
        """What pairs this record with the other arm's: prompt and turn."""
        return self.prompt if self.turn == 1 else f"{self.prompt}/{self.turn}"

    @property
    def output(self) -> str:
        """Reasoning and answer as one text: what greedy decoding must reproduce."""
        return self.reasoning_text + self.text

    @property
    def output_sha256(self) -> str:
        """Hex SHA-256 of `output`."""
        return hashlib.sha256(self.output.encode("utf-8")).hexdigest()

    def metrics(self) -> Metrics:
        """The derived figures."""
        return derive(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON form: stamps become offsets from `t_sent_s`; `<key>_reason` beside every `null` figure."""
        figures = self.metrics()
        out: dict[str, Any] = {
            "prompt": self.prompt,
            "key": self.key,
            "category": self.category,
            "turn": self.turn,
            "ok": self.ok,
            "error": self.error,
            "error_detail": self.error_detail,
            "http_status": self.http_status,
            "chunked": self.chunked,
            "t_sent_s": _rounded(self.t_sent_s),
        }
        for name in ("first_byte", "first_token", "first_answer_token", "last_token", "finish"):
            stamp = getattr(self, f"t_{name}_s")
            known = stamp is not None and self.t_sent_s is not None
            out[f"t_{name}_s"] = _rounded(stamp - self.t_sent_s) if known else None
        if self.t_sent_s is not None:
            out["chunk_offsets_s"] = [_rounded(stamp - self.t_sent_s) for stamp in self.chunk_stamps_s]
        else:
            out["chunk_offsets_s"] = []
        for name in (
            "completion_tokens",
            "prompt_tokens",
            "cached_tokens",
            "reasoning_tokens",
            "n_first_chunk",
            "n_first_chunk_source",
            "reasoning_chunks",
            "answer_chunks",
            "finish_reason",
            "done",
            "draft_n",
            "draft_n_accepted",
            "verify_ct",
            "draft_source",
            "degenerate",
            "degenerate_reason",
            "text",
            "reasoning_text",
            "output_sha256",
        ):
            out[name] = getattr(self, name)
        out["server_decode_tok_per_s"] = _rounded(self.server_decode_tok_per_s)
        for name, reason in _ABSENT.items():
            if out[name] is None:
                out[f"{name}_reason"] = reason
        for name in vars(figures):
            if name == "reasons":
                continue
            out[name] = _rounded(getattr(figures, name))
            if out[name] is None:
                out[f"{name}_reason"] = figures.reasons[name]
        return out


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def quantile(values: Sequence[float], q: float) -> float:
    """Linear-interpolated quantile `q` (0..1) of a non-empty sequence. Errors: ValueError when it is empty."""
    if not values:
        raise ValueError("quantile of nothing")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def derive(record: RequestRecord) -> Metrics:
    """Figures of one record; every figure that cannot be had gets its reason."""
    out = Metrics()

    def put(name: str, value: float | None, reason: str) -> None:
        setattr(out, name, value)
        if value is None:
            out.reasons[name] = reason

    if not record.ok:
        for name in vars(out):
            if name != "reasons":
                put(name, None, f"the request failed: {record.error}")
        return out
    sent, first, last = record.t_sent_s, record.t_first_token_s, record.t_last_token_s
    finish, tokens = record.t_finish_s, record.completion_tokens
    no_token = "the reply has no content"
    put("ttft_s", first - sent if first is not None and sent is not None else None, no_token)
    answer = record.t_first_answer_token_s
    put("ttfo_s", answer - sent if answer is not None and sent is not None else None, "the reply has no answer text")
    put("e2e_s", finish - sent if finish is not None and sent is not None else None, "no finish was seen")
    fast = "shorter than the clock can tell"
    if not tokens:
        put("e2e_tok_per_s", None, "the server counts no completion tokens")
    elif out.e2e_s is None or out.e2e_s < _MIN_DECODE_S:
        put("e2e_tok_per_s", None, fast)
    else:
        put("e2e_tok_per_s", tokens / out.e2e_s, "")
    if first is None or last is None or not tokens:
        reason, span, rest = no_token, 0.0, 0
    else:
        span, rest = last - first, tokens - record.n_first_chunk
        reason = "one token or one chunk: no gap to measure" if rest < 1 or len(record.chunk_stamps_s) < 2 else fast
    if rest >= 1 and len(record.chunk_stamps_s) >= 2 and span >= _MIN_DECODE_S:
        put("tpot_s", span / rest, "")
        put("decode_tok_per_s", rest / span, "")
    else:
        put("tpot_s", None, reason)
        put("decode_tok_per_s", None, reason)
    stamps = record.chunk_stamps_s
    gaps = [after - before for before, after in zip(stamps, stamps[1:])]
    put("icl_median_s", quantile(gaps, 0.5) if gaps else None, "fewer than two content chunks")
    put("icl_p99_s", quantile(gaps, 0.99) if len(gaps) >= 100 else None, "fewer than 100 gaps between content chunks")
    put("tokens_per_chunk", tokens / len(stamps) if tokens and stamps else None, no_token)
    return out


def interpret(record: RequestRecord, events: Sequence[tuple[float, str]]) -> None:
    """Read the stamped `data` fields of a 200 stream into `record` (which holds `t_sent_s` already).

    Pure: runs after the receive loop, so that reading JSON never delays a stamp. Sets `error` when the stream holds an
    error object, is no JSON, is incomplete or carries no usage; an error that is already set (timeout) is kept.
    """
    text: list[str] = []
    reasoning: list[str] = []
    finish_stamp: float | None = None
    usage: dict[str, Any] | None = None
    stream_error = ""
    for stamp, data in events:
        if data.strip() == "[DONE]":
            record.done = True
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            stream_error = stream_error or f"an event is no JSON: {data[:120]!r}"
            continue
        if not isinstance(chunk, dict):
            stream_error = stream_error or f"an event is no JSON object: {data[:120]!r}"
            continue
        if chunk.get("error") is not None:
            stream_error = stream_error or f"error object in the stream: {json.dumps(chunk['error'])[:300]}"
            continue
        chunk_usage = chunk.get("usage")
        if isinstance(chunk_usage, dict):
            usage = chunk_usage
        _read_drafts(record, chunk)
        for choice in chunk.get("choices") or ():
            answer, thought, other = _delta(choice)
            if answer or thought or other:
                first = not record.chunk_stamps_s
                record.chunk_stamps_s.append(stamp)
                if first and isinstance(chunk_usage, dict) and _count(chunk_usage, "completion_tokens"):
                    record.n_first_chunk = _count(chunk_usage, "completion_tokens") or 1
                    record.n_first_chunk_source = "per-chunk usage"
                if thought:
                    record.reasoning_chunks += 1
                    reasoning.append(thought)
                if answer or other:
                    record.answer_chunks += 1
                    if record.t_first_answer_token_s is None:
                        record.t_first_answer_token_s = stamp
                    text.append(answer + other)
            if choice.get("finish_reason"):
                record.finish_reason = str(choice["finish_reason"])
                finish_stamp = stamp
    record.text, record.reasoning_text = "".join(text), "".join(reasoning)
    if record.chunk_stamps_s:
        record.t_first_token_s, record.t_last_token_s = record.chunk_stamps_s[0], record.chunk_stamps_s[-1]
    stamps = [stamp for stamp in (finish_stamp, record.t_last_token_s) if stamp is not None]
    if finish_stamp is not None:
        record.t_finish_s = max(stamps)
    if usage is not None:
        _read_usage(record, usage)
    if record.error is not None:
        return
    if stream_error:
        record.error, record.error_detail = "stream_error", stream_error
    elif record.finish_reason is None:
        record.error, record.error_detail = "truncated", "the stream ended without a finish reason"
    elif not record.done and usage is None:
        record.error, record.error_detail = "truncated", "the stream ended without [DONE] and without usage"
    elif record.completion_tokens is None:
        record.error, record.error_detail = "no_usage", "the server sent no usage.completion_tokens"


def _delta(choice: Any) -> tuple[str, str, str]:
    """Answer text, reasoning text and anything else generated (tool calls) in one choice of a chunk."""
    if not isinstance(choice, dict):
        return "", "", ""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "", "", ""
    answer = delta.get("content")
    # Some servers send both spellings with the same text: count it once.
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    tools = delta.get("tool_calls")
    return (
        answer if isinstance(answer, str) else "",
        thought if isinstance(thought, str) else "",
        json.dumps(tools, sort_keys=True) if tools else "",
    )


def _count(usage: dict[str, Any], key: str) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_usage(record: RequestRecord, usage: dict[str, Any]) -> None:
    record.completion_tokens = _count(usage, "completion_tokens")
    record.prompt_tokens = _count(usage, "prompt_tokens")
    prompt_details = usage.get("prompt_tokens_details")
    if isinstance(prompt_details, dict):
        record.cached_tokens = _count(prompt_details, "cached_tokens")
    completion_details = usage.get("completion_tokens_details")
    details = completion_details if isinstance(completion_details, dict) else usage
    record.reasoning_tokens = _count(details, "reasoning_tokens")


def _read_drafts(record: RequestRecord, chunk: dict[str, Any]) -> None:
    """Counts of drafts: llama.cpp's `timings`, SGLang's `sglext.spec_tokens_details`."""
    timings = chunk.get("timings")
    if isinstance(timings, dict):
        speed = timings.get("predicted_per_second")
        if isinstance(speed, (int, float)):
            record.server_decode_tok_per_s = float(speed)
        drafted, accepted = _count(timings, "draft_n"), _count(timings, "draft_n_accepted")
        if drafted is not None:
            record.draft_n, record.draft_n_accepted = drafted, accepted
            record.draft_source = "timings"
    extension = chunk.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    if isinstance(details, dict):
        record.verify_ct = _count(details, "spec_verify_ct")
        record.draft_source = "sglext.spec_tokens_details"
