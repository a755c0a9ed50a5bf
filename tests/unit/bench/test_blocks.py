"""Blocks: warm-up, caches, turns, and the conditions they record."""

from __future__ import annotations

import dataclasses
import os
import pwd
import time
from typing import Any

import pytest
from specswap_bench.blocks import BlockError, detect_engine, run_block
from specswap_bench.child import run_block_as
from specswap_bench.client import RequestSettings
from specswap_bench.suites import Prompt, Suite

from tests.doubles.sse_double import Chunk, Script, SseDouble

SCRIPT = Script([Chunk(f"word{i} ", after_s=0.005) for i in range(6)])
SUITE = Suite(
    "s", (Prompt("a", "x", ("one",), 99), Prompt("b", "y", ("two", "three"), 8)), (Prompt("w", "", ("warm",)),)
)


def test_llamacpp_block() -> None:
    lines: list[str] = []
    with SseDouble(SCRIPT) as server:
        block = run_block(server.url, "m", SUITE, RequestSettings(max_tokens=16), warmup_cap=2, progress=lines.append)
        bodies = [truth.body for truth in server.truths]
    assert [body["messages"][-1]["content"] for body in bodies] == ["warm", "warm", "one", "two", "three"]
    assert all(body["cache_prompt"] is False for body in bodies)
    assert [body["max_tokens"] for body in bodies[2:]] == [16, 8, 8]
    # The second turn carries the first one's reply.
    reply = "".join(chunk.text for chunk in SCRIPT.chunks)
    assert bodies[-1]["messages"] == [
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "three"},
    ]
    body = block.to_dict()
    assert body["engine"] == "llamacpp" and body["cache_protocol"] == "cache_prompt=false in every request"
    assert [record["key"] for record in body["requests"]] == ["a", "b", "b/2"]
    assert body["summary"]["completion_tokens"] == 18 and body["summary"]["failed"] == 0
    assert len(body["warmup"]) == 2 and body["warmup_stop"] == "cap"
    assert 0 <= body["client_cpu_share"] < 0.9 and len(body["load_average"]) == 2
    assert body["server_info"]["chat_template"].endswith("(1000 characters)")
    assert body["machine"]["cores"] >= 1 and body["suite_sha256"] == SUITE.sha256
    assert len(lines) == 4


def test_steady_warmup_ends_early() -> None:
    # Gaps so long that the scheduler's jitter stays far below five percent of them.
    script = dataclasses.replace(SCRIPT, chunks=[Chunk("w ", after_s=0.1) for _ in range(6)])
    with SseDouble(script) as server:
        block = run_block(server.url, "m", SUITE, RequestSettings(), warmup_cap=12)
    assert block.warmup_stop == "steady" and 3 <= len(block.warmup) < 12


def test_sglang_cache_is_flushed_after_the_warmup() -> None:
    with SseDouble(dataclasses.replace(SCRIPT, engine="sglang")) as server:
        server.flush_refusals = 2
        block = run_block(server.url, "m", SUITE, RequestSettings(), warmup_cap=1)
        assert server.flushes == 1 and server.flush_refusals == 0
        assert "cache_prompt" not in server.truths[0].body
    assert block.cache_protocol == "flush_cache after the warm-up" and block.server_info["stream_interval"] == 1


def test_unknown_engine_says_that_nothing_was_flushed() -> None:
    with SseDouble(dataclasses.replace(SCRIPT, engine="other")) as server:
        block = run_block(server.url, "m", SUITE, RequestSettings(), warmup_cap=0)
    assert block.engine == "unknown" and block.cache_protocol.startswith("none") and block.warmup == []


def test_turns_after_a_failed_one_are_not_sent() -> None:
    with SseDouble(dataclasses.replace(SCRIPT, usage=False)) as server:
        block = run_block(server.url, "m", SUITE, RequestSettings(), warmup_cap=0)
        assert len(server.truths) == 2
    assert [record.error for record in block.requests] == ["no_usage", "no_usage", "not_sent"]
    assert block.summary()["failed"] == 3 and block.summary()["e2e_tok_per_s"] is None


def test_loops_are_marked() -> None:
    script = dataclasses.replace(SCRIPT, chunks=[Chunk("again and again ", after_s=0.0) for _ in range(60)])
    with SseDouble(script) as server:
        block = run_block(server.url, "m", SUITE, RequestSettings(), warmup_cap=0)
    assert all(record.degenerate and record.degenerate_reason for record in block.requests)


def test_no_server() -> None:
    with SseDouble(SCRIPT) as server:
        url = server.url
    with pytest.raises(BlockError, match="is the server up"):
        run_block(url, "m", SUITE, RequestSettings())


class Pages:
    """What `detect_engine` asks of a client."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages = pages

    def get_json(self, path: str) -> Any:
        return self.pages.get(path)


def test_secrets_and_unknown_keys_of_a_server_stay_out_of_results() -> None:
    told = {"version": "0.5.17", "speculative_algorithm": "DFLASH", "speculative_ddtree_budget": 64}
    secret = {"api_key": "hush", "admin_api_key": "hush", "ssl_keyfile_password": "hush", "startup_time": 1.5}
    assert detect_engine(Pages({"/server_info": {**told, **secret}})) == ("sglang", told)  # type: ignore[arg-type]
    props = {"build_info": "b1", "total_slots": 1}
    page = {**props, "api_key": "hush", "media_marker": "<random>"}
    assert detect_engine(Pages({"/props": page})) == ("llamacpp", props)  # type: ignore[arg-type]
    assert detect_engine(Pages({"/v1/models": {"data": [{"id": "m"}]}})) == ("unknown", {})  # type: ignore[arg-type]


def test_a_block_in_a_process_of_its_own() -> None:
    lines: list[str] = []
    user = pwd.getpwuid(os.geteuid()).pw_name
    with SseDouble(SCRIPT) as server:
        request = RequestSettings(max_tokens=16)
        block = run_block_as(user, server.url, "m", SUITE, request, warmup_cap=1, progress=lines.append)
        bodies = [truth.body for truth in server.truths]
    assert [body["messages"][-1]["content"] for body in bodies] == ["warm", "one", "two", "three"]
    assert block["summary"]["completion_tokens"] == 18 and block["suite_sha256"] == SUITE.sha256
    assert block["client_uid"] == os.geteuid() and block["request"]["max_tokens"] == 16
    assert len(lines) == 4
    with pytest.raises(BlockError, match="is the server up"):
        run_block_as(user, server.url, "m", SUITE, request)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses a user")
def test_a_missing_user_is_named() -> None:
    with pytest.raises(BlockError, match="no user nosuchuser"):
        run_block_as("nosuchuser", "http://127.0.0.1:9", "m", SUITE, RequestSettings())


def test_what_progress_raises_ends_the_client() -> None:
    def stop(_line: str) -> None:
        raise KeyboardInterrupt

    user = pwd.getpwuid(os.geteuid()).pw_name
    with SseDouble(SCRIPT) as server:
        with pytest.raises(KeyboardInterrupt):
            run_block_as(user, server.url, "m", SUITE, RequestSettings(), warmup_cap=1, progress=stop)
        assert [truth.body["messages"][-1]["content"] for truth in server.truths][:1] == ["warm"]
        seen = len(server.truths)
        time.sleep(0.3)
        assert len(server.truths) <= seen + 1, "the client went on"
