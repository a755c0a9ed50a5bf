"""The client against a server whose truth is known. Tolerances are wide: test machines are busy."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from specswap_bench.client import ChatClient, RequestSettings
from specswap_bench.record import RequestRecord

from tests.doubles.sse_double import Chunk, Script, SseDouble, Truth

LATE_S = 0.25  # how late a stamp may be on a busy machine; never early


def ask(script: Script, **settings: object) -> tuple[RequestRecord, Truth | None]:
    with SseDouble(script) as server, ChatClient(server.url, "m", RequestSettings.from_dict(settings)) as client:
        record = client.chat([{"role": "user", "content": "hi"}], prompt="p", category="c")
        return record, server.truths[0] if server.truths else None


def words(count: int, **more: object) -> list[Chunk]:
    return [Chunk(f"w{i} ", **more) for i in range(count)]  # type: ignore[arg-type]


def assert_late(value: float | None, truth: float) -> None:
    assert value is not None
    assert truth - 0.002 <= value <= truth + LATE_S


def test_times_follow_the_servers_truth() -> None:
    chunks = [Chunk("first", after_s=0.15), *words(9, after_s=0.03)]
    record, truth = ask(Script(chunks, cached_tokens=3))
    assert truth is not None and record.ok, record.error_detail
    assert record.t_sent_s is not None and record.t_sent_s <= truth.received_s
    assert truth.received_s - record.t_sent_s < LATE_S
    assert_late(record.t_first_token_s, truth.sent_s[0])
    assert_late(record.t_last_token_s, truth.sent_s[-1])
    assert_late(record.t_finish_s, truth.finished_s)
    for stamp, sent in zip(record.chunk_stamps_s, truth.sent_s, strict=True):
        assert_late(stamp, sent)
    assert record.t_first_byte_s is not None and record.t_first_token_s is not None
    assert record.t_first_byte_s <= record.t_first_token_s
    figures = record.metrics()
    assert figures.ttft_s == pytest.approx(truth.sent_s[0] - truth.received_s, abs=LATE_S)
    assert figures.ttft_s is not None and figures.ttft_s >= 0.15
    assert figures.tpot_s == pytest.approx(0.03, rel=0.5)
    assert figures.decode_tok_per_s == pytest.approx(1 / figures.tpot_s)
    assert figures.e2e_s is not None and figures.e2e_tok_per_s == pytest.approx(10 / figures.e2e_s)
    assert (record.completion_tokens, record.prompt_tokens, record.cached_tokens) == (10, 7, 3)
    assert record.text == "first" + "".join(f"w{i} " for i in range(9))
    assert record.finish_reason == "stop" and record.done and record.chunked
    assert figures.icl_p99_s is None and "100" in figures.reasons["icl_p99_s"]


def test_multi_token_chunks_are_gaps_of_chunks_and_not_of_tokens() -> None:
    record, _ = ask(Script([Chunk("a"), *words(12, tokens=4, after_s=0.04)]))
    figures = record.metrics()
    assert record.completion_tokens == 49
    assert figures.icl_median_s == pytest.approx(0.04, rel=0.4)
    assert figures.tpot_s == pytest.approx(0.01, rel=0.4)
    assert figures.tokens_per_chunk == pytest.approx(49 / 13)


def test_first_chunk_bundle_is_subtracted_when_usage_tells_it() -> None:
    chunks = [Chunk("bundle", tokens=6), *words(6, tokens=4, after_s=0.04)]
    known, _ = ask(Script(chunks, per_chunk_usage=True))
    assert (known.n_first_chunk, known.n_first_chunk_source) == (6, "per-chunk usage")
    assert known.t_last_token_s is not None and known.t_first_token_s is not None
    span = known.t_last_token_s - known.t_first_token_s
    assert known.metrics().decode_tok_per_s == pytest.approx(24 / span)
    unknown, _ = ask(Script(chunks))
    assert (unknown.n_first_chunk, unknown.n_first_chunk_source) == (1, "assumed")


@pytest.mark.parametrize("kind", ["reasoning_content", "reasoning", "both"])
def test_reasoning_is_the_first_token_but_not_the_answer(kind: str) -> None:
    chunks = [*words(5, kind=kind, after_s=0.04), Chunk("answer", after_s=0.04)]
    record, truth = ask(Script(chunks))
    assert truth is not None and record.ok
    assert_late(record.t_first_token_s, truth.sent_s[0])
    assert_late(record.t_first_answer_token_s, truth.sent_s[5])
    assert (record.reasoning_chunks, record.answer_chunks) == (5, 1)
    assert record.reasoning_text == "w0 w1 w2 w3 w4 " and record.text == "answer"
    assert record.output == "w0 w1 w2 w3 w4 answer"


def test_reasoning_alone_has_no_first_answer() -> None:
    record, _ = ask(Script(words(3, kind="reasoning_content"), finish_reason="length"))
    assert record.ok and record.metrics().ttfo_s is None
    assert record.to_dict()["ttfo_s_reason"] == "the reply has no answer text"


def test_no_usage_is_a_failure_and_never_a_guess() -> None:
    record, _ = ask(Script(words(3), usage=False))
    assert record.error == "no_usage" and record.completion_tokens is None
    body = record.to_dict()
    assert body["e2e_tok_per_s"] is None and body["e2e_tok_per_s_reason"] == "the request failed: no_usage"


@pytest.mark.parametrize(
    ("script", "kind", "words_in_detail"),
    [
        (Script(words(4), fault="error_object", fault_at=2), "stream_error", "out of memory"),
        (Script(words(4), fault="not_json", fault_at=2), "stream_error", "no JSON"),
        (Script(words(4), fault="truncate", fault_at=2), "truncated", ""),
        (Script(words(4), finish_reason=None), "truncated", "finish reason"),
        (Script(words(4), usage=False, done=False), "truncated", "[DONE]"),
        (Script(words(4), status=503), "http_status", "503"),
    ],
)
def test_failures_have_a_kind_and_no_speed(script: Script, kind: str, words_in_detail: str) -> None:
    record, truth = ask(script)
    assert record.error == kind, record.error_detail
    assert words_in_detail in record.error_detail
    figures = record.metrics()
    assert figures.e2e_tok_per_s is None and figures.ttft_s is None and figures.reasons["ttft_s"]
    assert truth is not None


def test_usage_without_done_is_complete() -> None:
    record, _ = ask(Script(words(4), done=False))
    assert record.ok and not record.done


def test_stall_is_a_timeout_and_is_not_retried() -> None:
    script = Script(words(4), fault="hang", fault_at=2)
    settings = RequestSettings(stall_s=0.4)
    with SseDouble(script) as server, ChatClient(server.url, "m", settings) as client:
        record = client.chat([{"role": "user", "content": "hi"}], prompt="p")
        assert record.error == "timeout", record.error_detail
        assert len(record.chunk_stamps_s) == 2
        assert len(server.truths) == 1


def test_total_limit_is_a_timeout() -> None:
    record, _ = ask(Script(words(100, after_s=0.02)), total_s=0.2)
    assert record.error == "timeout" and "0.2 s" in record.error_detail


def test_refused_connection() -> None:
    with SseDouble(Script(words(1))) as server:
        url = server.url
    with ChatClient(url, "m", RequestSettings(connect_s=1)) as client:
        record = client.chat([{"role": "user", "content": "hi"}], prompt="p")
    assert record.error == "connection" and record.t_sent_s is None
    assert record.to_dict()["t_first_token_s"] is None


def test_reply_without_chunks_is_flagged_and_still_stamped_as_it_comes() -> None:
    record, truth = ask(Script(words(8, after_s=0.05), chunked=False))
    assert truth is not None and record.ok and record.chunked is False
    for stamp, sent in zip(record.chunk_stamps_s, truth.sent_s, strict=True):
        assert_late(stamp, sent)


def test_torn_events_crlf_and_comments() -> None:
    record, _ = ask(Script(words(5), split_bytes=3, newline=b"\r\n", comments=True))
    assert record.ok and record.text == "w0 w1 w2 w3 w4 "


def test_drafts_come_from_timings() -> None:
    record, _ = ask(Script(words(5), timings={"draft_n": 48, "draft_n_accepted": 47, "predicted_per_second": 99.5}))
    assert (record.draft_n, record.draft_n_accepted, record.draft_source) == (48, 47, "timings")
    assert record.server_decode_tok_per_s == 99.5
    plain, _ = ask(Script(words(5)))
    assert plain.draft_n is None and plain.to_dict()["draft_n_reason"]


def test_one_chunk_has_no_decode_speed_and_no_zero() -> None:
    record, _ = ask(Script([Chunk("4", tokens=1)]))
    figures = record.metrics()
    assert record.ok and figures.decode_tok_per_s is None and figures.tpot_s is None
    assert figures.e2e_tok_per_s is not None and "no gap" in figures.reasons["tpot_s"]


def test_body_and_connection_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    _, truth = ask(Script(words(2)), max_tokens=12, temperature=0.0, extra={"cache_prompt": False})
    assert truth is not None
    assert truth.body["stream_options"] == {"include_usage": True}
    assert truth.body["max_tokens"] == 12 and truth.body["cache_prompt"] is False and truth.body["seed"] == 0


def test_the_clock_starts_on_an_open_connection() -> None:
    with SseDouble(Script(words(2))) as server, ChatClient(server.url, "m", RequestSettings()) as client:
        client.chat([{"role": "user", "content": "hi"}], prompt="p")
        # One connection for the warm page and the request after it.
        assert server.connections == 1
        client.chat([{"role": "user", "content": "hi"}], prompt="p")
        assert server.connections == 2


def test_sixteen_streams_at_once() -> None:
    chunks = [Chunk("x ", after_s=0.2), *words(20, tokens=2, after_s=0.05)]
    records: list[RequestRecord] = []
    with SseDouble(Script(chunks)) as server:

        def stream(number: int) -> None:
            with ChatClient(server.url, f"m{number}", RequestSettings()) as client:
                records.append(client.chat([{"role": "user", "content": "hi"}], prompt=f"p{number}"))

        threads = [threading.Thread(target=stream, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        truths = {truth.body["model"]: truth for truth in server.truths}
    assert len(records) == 16 and all(record.ok for record in records)
    delays = sorted(
        stamp - sent
        for record in records
        for stamp, sent in zip(record.chunk_stamps_s, truths["m" + record.prompt[1:]].sent_s, strict=True)
    )
    assert len(delays) == 16 * 21 and delays[0] > -0.002
    assert delays[len(delays) // 2] < 0.05
    for record in records:
        assert record.completion_tokens == 41
        assert record.metrics().tpot_s == pytest.approx(0.025, rel=0.5)


@pytest.mark.parametrize(
    ("data", "key"),
    [({"max_tokens": 0}, "max_tokens"), ({"max_token": 3}, "max_token"), ({"temperature": "hot"}, "temperature")],
)
def test_settings_name_the_wrong_key(data: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=rf"plan\.request\.{key}"):
        RequestSettings.from_dict(data, "plan.request")


def test_stamps_are_offsets_in_json() -> None:
    record, _ = ask(Script(words(3, after_s=0.03)))
    body = record.to_dict()
    offsets: Sequence[float] = body["chunk_offsets_s"]
    assert len(offsets) == 3 and 0 < offsets[0] == body["t_first_token_s"] < 1.0
