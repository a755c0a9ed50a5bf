"""Every fault switch of the SGLang double does what its name says, and nothing before it is asked to."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from double_process import PROGRAM, READY, Double, Launch, dead, free_port, soon

sys.path.insert(0, str(PROGRAM.parent))
from sglang_double import CRASHES, SWITCHES

CHAT = {
    "model": "t",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "max_tokens": 20,
    "ignore_eos": True,
}
DFLASH = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/models/d")
# class -> pattern that a log classifier has to find; the published wording of each failure
CLASS_PATTERNS = {
    "cuda_oom": r"torch\.OutOfMemoryError: CUDA out of memory\.",
    "no_kv_memory": r"Not enough memory\. Please try to increase --mem-fraction-static",
    "abi_undefined_symbol": r"undefined symbol: .*c10.*MessageLogger",
    "abi_cudart13": r"libcudart\.so\.13: cannot open shared object file",
    "abi_cudart12": r"libcudart\.so\.12: cannot open shared object",
    "libnuma": r"libnuma\.so\.1: cannot open shared object",
    "xgrammar_import": r"ImportError: cannot import name 'StructuralTag' from 'xgrammar'",
    "xgrammar_tvm_ffi": r"Mismatched type on argument #1 when calling: .*GrammarMatcher\.accept_token",
    "flashinfer_version": r"is installed with version .*, which is less than the minimum required version",
    "flashinfer_sm120": r"FlashInfer requires GPUs with sm75 or higher",
    "flashinfer_no_arch": r"No supported CUDA architectures found for major versions \[12\]",
    "trtllm_arch": r"TllmGenFmhaRunner.*Unsupported architecture",
    "ninja_missing": r"FileNotFoundError: .*'ninja'",
    "nvcc_missing": r"Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    "no_kernel_image": r"no kernel image is available",
    "no_gpu": r"No CUDA GPUs are available",
    "address_in_use": r"\[Errno 98\] .*address already in use",
}


@pytest.fixture
def escaped() -> Iterator[list[int]]:
    """Pids that a test must not leave behind."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def escaped_pid(double: Double) -> int:
    double.wait_log("left the process tree")
    found = re.search(r"scheduler (\d+) left the process tree", double.log)
    assert found
    return int(found.group(1))


def test_every_switch_is_exercised_by_a_test_of_this_folder() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    untested = [
        switch.name
        for switch in SWITCHES
        if not re.search(rf"\b{switch.name}\b|-{switch.name.replace('_', '-')}\b", text)
    ]
    assert untested == []


# -------------------------------------------------------------------------------------------------------------- crashes


def test_every_class_of_crash_has_a_pattern() -> None:
    assert set(CLASS_PATTERNS) == set(CRASHES)


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_crash_with_writes_the_class_and_ends_as_sglang_does(launch: Launch, name: str) -> None:
    double = launch(wait=None, crash_with=name)
    assert double.wait_exit() == (-9 if CRASHES[name].where == "scheduler" else 1)
    assert re.search(CLASS_PATTERNS[name], double.log)
    assert ("Traceback (most recent call last):" in double.log) == (CRASHES[name].where != "bind")
    assert ("Received sigquit from a child process" in double.log) == (CRASHES[name].where == "scheduler")
    assert READY not in double.log


def test_crash_exit_forces_an_exit_code(launch: Launch) -> None:
    double = launch(wait=None, crash_with="cuda_oom", crash_exit=1)
    assert double.wait_exit() == 1
    assert "CUDA out of memory" in double.log


def test_crash_after_seconds(launch: Launch) -> None:
    started = time.monotonic()
    double = launch(wait=None, crash_after_s=0.6, load_s=30)
    assert double.wait_exit() == -9
    assert 0.5 < time.monotonic() - started < 5
    assert "crash_after_s" in double.log and READY not in double.log


def test_crash_after_ready(launch: Launch) -> None:
    double = launch(crash_after_ready_s=0.3)
    assert double.raw("GET", "/health")[0] == 200
    assert double.wait_exit() == -9
    assert double.log.index(READY) < double.log.index("crash_after_ready_s")


def test_missing_model_dies_like_a_loader(launch: Launch) -> None:
    double = launch(wait=None, check_paths=True)
    assert double.wait_exit() == 1
    assert "OSError: Can't load the configuration of '/models/t'" in double.log


# ------------------------------------------------------------------------------------------------------- endless starts


def test_endless_load_goes_on_and_never_opens_the_port(launch: Launch) -> None:
    double = launch(wait="Loading safetensors checkpoint shards", endless_load=True)
    assert double.process.poll() is None
    with pytest.raises(ConnectionRefusedError):
        double.raw("GET", "/v1/models")


def test_silent_endless_load_writes_nothing_more(launch: Launch) -> None:
    double = launch(wait="Load weight begin", endless_load=True, endless_load_silent=True)
    size = len(double.log)
    time.sleep(1.3)
    assert double.process.poll() is None
    assert len(double.log) == size


def test_endless_load_ends_at_sigterm(launch: Launch) -> None:
    double = launch(wait="Load weight begin", endless_load=True)
    scheduler = next(iter(double.children()))
    double.process.send_signal(signal.SIGTERM)
    assert double.wait_exit() == -15  # no handler before the launch is done
    assert soon(lambda: dead(scheduler))


def test_endless_warmup_keeps_health_at_503_and_models_at_200(launch: Launch) -> None:
    double = launch(wait='"GET /model_info HTTP/1.1" 200', endless_warmup=True)
    time.sleep(0.2)
    assert double.raw("GET", "/health")[0] == 503
    assert double.raw("GET", "/v1/models")[0] == 200
    assert READY not in double.log


def test_slow_imports_come_before_the_first_line(launch: Launch) -> None:
    double = launch(wait=None, import_s=0.5)
    time.sleep(0.3)
    assert double.log == ""
    double.wait_log(READY)


# ----------------------------------------------------------------------------------------------------------------- port


def test_late_bind_says_ready_over_a_stranger_on_the_port(baseline: Double, launch: Launch) -> None:
    """The port trap: the warm-up talks to whoever owns the port, then the bind fails."""
    double = launch(port=baseline.port, wait=READY, bind_late_s=0.5)
    assert double.wait_exit() == 1
    assert double.log.index(READY) < double.log.index("[Errno 98]")


def test_bind_port_listens_elsewhere(launch: Launch) -> None:
    other = free_port()
    double = launch("--skip-server-warmup", wait="Uvicorn running", bind_port=other)
    with pytest.raises(ConnectionRefusedError):
        double.raw("GET", "/health")
    double.port = other
    assert double.raw("GET", "/health")[0] == 200


def test_reuse_port_lets_two_servers_share_it(launch: Launch) -> None:
    first = launch("--served-model-name", "one", reuse_port=True)
    second = launch("--served-model-name", "two", wait="Uvicorn running", port=first.port, reuse_port=True)
    seen = {second.get("/v1/models")["data"][0]["id"] for _ in range(60)}
    assert seen == {"one", "two"}


# --------------------------------------------------------------------------------------------------- health, generation


def test_wedge_hangs_generation_while_health_lies(launch: Launch) -> None:
    double = launch(wedge_after_requests=2)
    double.complete()
    double.complete()
    with pytest.raises(TimeoutError):
        double.raw("POST", "/v1/completions", {"prompt": "x"}, timeout=0.5)
    assert double.raw("GET", "/health")[0] == 200
    assert double.get("/server_info")["version"]
    double.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert double.process.poll() is None  # drains without limit


def test_generation_hung_from_the_start_with_healthy_health(launch: Launch) -> None:
    double = launch(wedge_after_requests=0)
    assert double.raw("GET", "/health")[0] == 200
    with pytest.raises(TimeoutError):
        double.raw("POST", "/v1/chat/completions", CHAT, timeout=0.5)


def test_dead_scheduler_turns_health_503_and_blocks_server_info(launch: Launch) -> None:
    double = launch(wedge_after_requests=1, wedge_health="503", health_timeout_s=0.2)
    assert double.raw("GET", "/health")[0] == 200
    double.complete()
    assert double.raw("GET", "/health")[0] == 503
    assert "Health check failed" in double.log
    assert double.raw("GET", "/v1/models")[0] == 200
    with pytest.raises(TimeoutError):
        double.raw("GET", "/server_info", timeout=0.4)
    assert double.stop() == -9
    assert "Force exiting" in double.log


def test_slow_health(launch: Launch) -> None:
    double = launch(slow_health_s=0.6)
    started = time.monotonic()
    assert double.raw("GET", "/health")[0] == 200
    assert time.monotonic() - started >= 0.6
    with pytest.raises(TimeoutError):
        double.raw("GET", "/health", timeout=0.2)


def test_health_is_503_while_a_request_runs(launch: Launch) -> None:
    double = launch(wedge_after_requests=0, health_503_while_busy=True)
    assert double.raw("GET", "/health")[0] == 200
    with pytest.raises(TimeoutError):
        double.raw("POST", "/v1/completions", {"prompt": "x"}, timeout=0.3)
    assert double.raw("GET", "/health")[0] == 503


def test_answer_500_from_the_wanted_request_on(launch: Launch) -> None:
    double = launch(answer_500=True, from_request=2)
    assert double.raw("POST", "/v1/completions", {"prompt": "x"})[0] == 200
    for path, body in [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", CHAT),
        ("/generate", {"text": "x"}),
    ]:
        assert double.raw("POST", path, body)[0] == 500
    assert double.raw("GET", "/health")[0] == 200


def test_nonsense_json(launch: Launch) -> None:
    status, body = launch(nonsense_json=True).raw("POST", "/v1/completions", {"prompt": "x"})
    assert status == 200
    with pytest.raises(ValueError):
        json.loads(body)


def test_empty_text(launch: Launch) -> None:
    double = launch(empty_text=True)
    answer = double.post("/v1/chat/completions", CHAT)
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    assert double.complete()["choices"][0]["text"] == ""
    assert double.stream("/v1/completions", {"prompt": "x"})[0]["choices"][0]["finish_reason"] == "stop"


def test_repeated_text(launch: Launch) -> None:
    answer = launch(repeated_text=True).complete(tokens=30)
    assert len(set(answer["choices"][0]["text"].split())) == 1
    assert answer["usage"]["completion_tokens"] == 30


def test_wrong_tokens_are_stable_but_not_those_of_a_healthy_server(baseline: Double, launch: Launch) -> None:
    double = launch(wrong_tokens=True)
    assert double.generate()["output_ids"] == double.generate()["output_ids"]
    assert double.generate()["output_ids"] != baseline.generate()["output_ids"]


def test_missing_usage(launch: Launch) -> None:
    double = launch(missing_usage=True)
    assert "usage" not in double.complete()
    assert "completion_tokens" not in double.generate()["meta_info"]
    events = double.stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert all("usage" not in event for event in events[:-1])


def test_missing_finish_reason(launch: Launch) -> None:
    double = launch(missing_finish_reason=True)
    assert "finish_reason" not in double.complete()["choices"][0]
    assert "finish_reason" not in double.generate()["meta_info"]
    events = double.stream("/v1/chat/completions", CHAT)
    assert {choice["finish_reason"] for event in events[:-1] for choice in event["choices"]} == {None}


def test_error_object_inside_a_200_stream(launch: Launch) -> None:
    events = launch(stream_error_after=3).stream(
        "/v1/completions", {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
    )
    assert [("error" in event, event == "[DONE]") for event in events] == [(False, False)] * 3 + [
        (True, False),
        (False, True),
    ]
    assert events[3]["error"]["code"] == 500


def test_truncated_stream(launch: Launch) -> None:
    double = launch(truncate_stream_after=3)
    with pytest.raises(http.client.IncompleteRead) as cut:
        double.raw("POST", "/v1/completions", {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream": True})
    assert cut.value.partial.count(b"data: ") == 3
    assert b"[DONE]" not in cut.value.partial
    assert double.complete()["usage"]["completion_tokens"] == 24  # only streams are cut


def test_stream_without_done(launch: Launch) -> None:
    events: list[Any] = launch(no_done=True).stream("/v1/chat/completions", CHAT)
    assert "[DONE]" not in events
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_slow_factor(launch: Launch) -> None:
    double = launch(slow_factor=20.0, from_request=2, step_s=0.001)
    times = []
    for _ in range(2):
        started = time.monotonic()
        double.complete(tokens=30)
        times.append(time.monotonic() - started)
    assert times[1] > 0.55 > times[0]


def test_ignored_grammar_answers_prose(launch: Launch) -> None:
    body = {**CHAT, "response_format": {"type": "json_object"}}
    answer = launch(grammar_ignored=True).post("/v1/chat/completions", body)
    with pytest.raises(ValueError):
        json.loads(answer["choices"][0]["message"]["content"])


def test_shadow_acceptance_of_one(launch: Launch) -> None:
    double = launch(*DFLASH, accept_length=1.0)
    answer = double.generate(tokens=128)
    assert answer["meta_info"]["spec_verify_ct"] == 127
    assert answer["meta_info"]["spec_num_correct_drafts"] == 0
    assert double.get("/server_info")["internal_states"][0]["avg_spec_accept_length"] == 1.0


# ------------------------------------------------------------------------------------------------------------- identity


def test_another_model_name(launch: Launch) -> None:
    double = launch("--served-model-name", "wanted", wrong_served_model="stranger")
    assert double.get("/v1/models")["data"][0]["id"] == "stranger"
    assert double.get("/server_info")["served_model_name"] == "wanted"


def test_other_settings_in_server_info(launch: Launch) -> None:
    wrong = {"speculative_algorithm": None, "attention_backend": "flashinfer", "avg_spec_accept_length": 9.5}
    info = launch(*DFLASH, "--attention-backend", "triton", wrong_server_info=wrong).get("/server_info")
    assert (info["speculative_algorithm"], info["attention_backend"]) == (None, "flashinfer")
    assert info["internal_states"][0]["attention_backend"] == "flashinfer"
    assert info["internal_states"][0]["avg_spec_accept_length"] == 9.5
    assert info["page_size"] == 1


# --------------------------------------------------------------------------------------------------- stop and processes


def test_stop_by_exit_0(launch: Launch) -> None:
    double = launch(stop_style="exit0")
    children = list(double.children())
    assert double.stop() == 0
    assert all(soon(lambda pid=pid: dead(pid)) for pid in children)  # type: ignore[misc]


def test_ignored_sigterm(launch: Launch) -> None:
    double = launch(ignore_sigterm=True)
    double.process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    assert double.process.poll() is None
    assert double.raw("GET", "/health")[0] == 200


def test_slow_stop(launch: Launch) -> None:
    double = launch(slow_stop_s=0.6)
    started = time.monotonic()
    assert double.stop() == -9
    assert time.monotonic() - started >= 0.6


def test_escaped_child_survives_the_stop_and_sigterm(launch: Launch, escaped: list[int]) -> None:
    double = launch(escaped_child=True)
    pid = escaped_pid(double)
    escaped.append(pid)
    assert os.getsid(pid) != os.getsid(double.process.pid)
    assert pid not in double.children()
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "sglang::schedul"
    assert double.stop() == -9
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    assert not dead(pid)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", double.port))  # the port is free all the same


def test_escaped_child_can_keep_the_port(launch: Launch, escaped: list[int]) -> None:
    double = launch(escaped_child_holds_port=True)
    escaped.append(escaped_pid(double))
    assert double.complete()["usage"]["completion_tokens"] == 24
    assert double.stop() == -9
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="Address already in use"):
            probe.bind(("127.0.0.1", double.port))


def test_escaped_child_ends_by_itself(launch: Launch, escaped: list[int]) -> None:
    double = launch(escaped_child=True, escape_s=0.5)
    escaped.append(escaped_pid(double))
    assert soon(lambda: dead(escaped[0]))
    assert double.raw("GET", "/health")[0] == 200


# --------------------------------------------------------------------------------------------------- resources and logs


def test_memory_is_really_taken(launch: Launch) -> None:
    double = launch(eat_memory_mb=64, eat_memory_phase="ready")

    def resident() -> int:
        sizes = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in double.children()]
        return max(map(int, sizes)) * resource.getpagesize()

    assert soon(lambda: resident() > 64 << 20)


def test_scheduler_killed_while_loading_ends_the_launch(launch: Launch) -> None:
    """What an OOM kill during load looks like: memory is taken before the weights, then SIGKILL comes from outside."""
    double = launch(wait="allocating up to 16 MiB", eat_memory_mb=16, eat_memory_phase="load", load_s=30)
    os.kill(next(pid for pid, name in double.children().items() if name == "sglang::schedul"), signal.SIGKILL)
    assert double.wait_exit() == 1
    assert "Rank 0 scheduler is dead" in double.log and "Exit code: -9" in double.log and "EOFError" in double.log


def test_shared_memory_is_left_behind(launch: Launch) -> None:
    double = launch(leak_shm_bytes=4096)
    segment = Path(f"/dev/shm/psm_sglang_double_{double.process.pid}")
    try:
        assert double.stop() == -9
        assert segment.stat().st_size == 4096
    finally:
        segment.unlink()


def test_log_flood(launch: Launch) -> None:
    double = launch(log_flood_per_s=4000)
    assert soon(lambda: double.log.count("flood line") > 1000, 3.0)
    assert double.raw("GET", "/health")[0] == 200
