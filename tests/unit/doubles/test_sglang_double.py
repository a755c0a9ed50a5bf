"""The healthy double answers as SGLang 0.5.17 does; recorded key names and figures decide."""

from __future__ import annotations

import ast
import concurrent.futures
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from double_process import FAST, PROGRAM, READY, Double, Launch, dead, soon

RECORDED = json.loads((PROGRAM.parent / "recorded" / "sglang-0.5.17.json").read_text())
NAMES, MEASURED = RECORDED["names"], RECORDED["measured"]
CHAT = {
    "model": "any",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
    "max_tokens": 20,
}


def metric_values(double: Double) -> dict[str, float]:
    status, body = double.raw("GET", "/metrics")
    assert status == 200
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


# ----------------------------------------------------------------------------------------- shapes against the recording


def test_recorded_names_agree_with_the_count_measured_on_the_gpu() -> None:
    assert len(NAMES["server_info"]) == MEASURED["server_info_keys"]


@pytest.mark.parametrize("arm", ["baseline", "dflash"])
def test_server_info_has_only_names_of_the_real_one_and_those_a_gate_reads(
    arm: str, request: pytest.FixtureRequest
) -> None:
    double: Double = request.getfixturevalue(arm)
    double.generate(tokens=400)
    for path in ("/server_info", "/get_server_info"):
        info = double.get(path)
        assert set(info) <= set(NAMES["server_info"])
        assert set(MEASURED["server_info_has"]) <= set(info)
        assert info["version"] == MEASURED["version"]
        (state,) = info["internal_states"]
        assert set(NAMES["internal_state"]) | set(MEASURED["internal_states_has"][arm]) <= set(state)
        assert ("avg_spec_accept_length" in state) == (arm == "dflash")


def test_dflash_settings_resolve_as_measured(dflash: Double) -> None:
    info = dflash.get("/server_info")
    assert {key: info[key] for key in MEASURED["dflash_settings"]} == MEASURED["dflash_settings"]
    assert info["speculative_algorithm"] == "DFLASH"


def test_model_lists_have_the_recorded_keys(baseline: Double) -> None:
    models = baseline.get("/v1/models")
    assert list(models) == NAMES["models"]
    assert list(models["data"][0]) == NAMES["model_card"]
    assert models["data"][0]["id"] == "tiny"
    assert list(baseline.get("/model_info")) == list(baseline.get("/get_model_info")) == NAMES["model_info"]


def test_generate_has_the_recorded_keys(baseline: Double, dflash: Double) -> None:
    plain, speculative = baseline.generate(), dflash.generate()
    assert list(plain) == NAMES["generate"]
    assert set(plain["meta_info"]) == set(NAMES["meta_info"])
    assert set(speculative["meta_info"]) == set(NAMES["meta_info"]) | set(NAMES["meta_info_speculative"])


def test_openai_answers_have_the_recorded_keys(baseline: Double) -> None:
    answer = baseline.complete()
    assert set(answer) == set(NAMES["completion"])
    assert set(answer["choices"][0]) == set(NAMES["completion_choice"])
    assert list(answer["usage"]) == NAMES["usage"]
    answer = baseline.post("/v1/chat/completions", CHAT)
    assert set(answer) == set(NAMES["chat"])
    assert set(answer["choices"][0]) == set(NAMES["chat_choice"])
    assert list(answer["choices"][0]["message"]) == NAMES["chat_message"]


def test_chat_stream_has_the_recorded_keys_and_order(dflash: Double) -> None:
    events = dflash.stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    first, *middle, last, usage, done = events
    assert done == "[DONE]"
    assert all(set(event) == set(NAMES["chat_chunk"]) for event in (first, *middle, last))
    assert all(set(event["choices"][0]) == set(NAMES["chat_chunk_choice"]) for event in (first, *middle, last))
    assert list(first["choices"][0]["delta"]) == NAMES["chat_delta_first"]
    assert all(list(event["choices"][0]["delta"]) == NAMES["chat_delta"] for event in middle)
    assert list(last["choices"][0]["delta"]) == NAMES["chat_delta_last"]
    assert [event["choices"][0]["finish_reason"] for event in (first, *middle, last)] == [None] * (len(events) - 3) + [
        "length"
    ]
    assert usage["choices"] == []
    assert list(usage["usage"]) == NAMES["usage"]
    assert usage["usage"]["completion_tokens"] == 20


def test_completion_stream_has_the_recorded_keys(dflash: Double) -> None:
    body = {"model": "t", "prompt": "p", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    *chunks, usage, done = dflash.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert all(set(chunk) == set(NAMES["completion_chunk"]) for chunk in chunks)
    assert all(set(chunk["choices"][0]) == set(NAMES["completion_chunk_choice"]) for chunk in chunks)
    assert usage["usage"]["completion_tokens"] == 20
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == dflash.complete("p", 20)["choices"][0]["text"]
    assert all("usage" not in event or event["usage"] is None for event in dflash.stream("/v1/completions", body)[:-1])


def test_errors_have_the_recorded_keys(baseline: Double) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": []}),
        ("/generate", {}),
    ]
    for path, body in requests:
        status, data = baseline.raw("POST", path, body)
        assert status == 400
        assert list(json.loads(data)) == NAMES["error"]


def test_metrics_behave_as_measured(baseline: Double, dflash: Double) -> None:
    dflash.generate(tokens=400)
    plain, speculative = metric_values(baseline), metric_values(dflash)
    assert set(plain) | set(speculative) == set(NAMES["metrics"])
    assert "sglang:spec_verify_calls_total" not in plain  # None in the recording: the counter does not exist
    assert plain["sglang:spec_accept_length"] == MEASURED["metrics"]["baseline"]["spec_accept_length"]
    assert speculative["sglang:spec_verify_calls_total"] > 0
    assert speculative["sglang:spec_accept_length"] > 1.5
    assert plain["sglang:gen_throughput"] == speculative["sglang:gen_throughput"] == 0.0  # idle


# ------------------------------------------------------------------------------------------------------ text and tokens


def test_greedy_text_depends_on_model_and_prompt_only(baseline: Double, dflash: Double, launch: Launch) -> None:
    ngram = launch("--speculative-algorithm", "NGRAM")
    answers = [double.generate("A fixed prompt", 64) for double in (baseline, dflash, ngram, baseline)]
    assert len({json.dumps(answer["output_ids"]) for answer in answers}) == 1
    assert len({answer["text"] for answer in answers}) == 1
    assert baseline.generate("Another prompt", 64)["text"] != answers[0]["text"]


def test_other_model_gives_other_greedy_text(baseline: Double, launch: Launch) -> None:
    other = launch("--model-path", "/models/other")
    assert other.generate()["text"] != baseline.generate()["text"]


def test_sampled_text_follows_the_seed(baseline: Double) -> None:
    def sample(seed: int | None) -> str:
        return str(baseline.complete(temperature=0.8, seed=seed)["choices"][0]["text"])

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)
    assert sample(1) != baseline.complete()["choices"][0]["text"]


def test_acceptance_figures_follow_from_the_chunks(dflash: Double) -> None:
    body = {"text": "x y z", "sampling_params": {"temperature": 0, "max_new_tokens": 96, "ignore_eos": True}}
    *events, done = dflash.stream("/generate", body)
    assert done == "[DONE]"
    sizes = [len(event["output_ids"]) for event in events]
    meta = events[-1]["meta_info"]
    assert sizes[-1] == meta["completion_tokens"] == 96
    assert meta["spec_verify_ct"] == len(events) - 1  # the first token comes from the prefill
    assert meta["spec_accept_length"] == 96 / meta["spec_verify_ct"]
    assert meta["spec_num_correct_drafts"] == 96 - 1 - meta["spec_verify_ct"]
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"]
    assert 2.6 < meta["spec_accept_length"] < 3.8
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(steps) <= 8
    assert len(set(steps)) > 1


def test_natural_end_stop_string_and_limit(baseline: Double) -> None:
    natural = baseline.generate("end", 4000, ignore_eos=False)
    assert natural["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert natural["output_ids"][-1] == 2
    assert baseline.generate("end", 5)["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    word = natural["text"].split()[3]
    stopped = baseline.generate("end", 4000, stop=[word])
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert stopped["text"] == natural["text"][: natural["text"].index(word)]


def test_structured_output_is_json_of_the_schema(baseline: Double) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]}},
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = baseline.post("/v1/chat/completions", {**CHAT, "max_tokens": 100, "response_format": wanted})
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert isinstance(value["age"], int)
    assert value["kind"] in ("cat", "dog")


def test_grammar_backend_none_refuses_structured_output(launch: Launch) -> None:
    double = launch("--grammar-backend", "none")
    status, body = double.raw("POST", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}})
    assert status == 400
    assert "--grammar-backend none" in json.loads(body)["message"]
    assert double.complete()["usage"]["completion_tokens"] == 24


def test_acceptance_is_reported_only_after_a_log_interval(launch: Launch) -> None:
    double = launch("--speculative-algorithm", "NGRAM", "--enable-metrics")
    assert "avg_spec_accept_length" not in double.get("/server_info")["internal_states"][0]
    assert double.generate(tokens=24)["meta_info"]["spec_accept_length"] > 1.5
    assert "avg_spec_accept_length" not in double.get("/server_info")["internal_states"][0]
    assert metric_values(double)["sglang:spec_accept_length"] == 0.0
    double.generate(tokens=300)
    assert double.get("/server_info")["internal_states"][0]["avg_spec_accept_length"] > 1.5
    assert "Decode batch" in double.log and "accept len:" in double.log


def test_repeated_prompt_is_cached_until_flush(baseline: Double) -> None:
    counts = [baseline.generate("cached? prompt", 4)["meta_info"]["cached_tokens"] for _ in range(2)]
    assert counts[0] == 0 and counts[1] > 0
    assert baseline.raw("POST", "/flush_cache")[0] == 200
    assert baseline.generate("cached? prompt", 4)["meta_info"]["cached_tokens"] == 0


# ------------------------------------------------------------------------------------------------------- start and stop


def test_start_phases_come_in_order(baseline: Double) -> None:
    lines = [
        "server_args=",
        "Load weight begin",
        "Load weight end",
        "KV Cache is allocated",
        "Capture target decode CUDA graph begin",
    ]
    lines += ["Capture target decode CUDA graph end", "max_total_num_tokens=", "Uvicorn running on", READY]
    places = [baseline.log.index(line) for line in lines]
    assert places == sorted(places)


def test_healthy_start_writes_the_harmless_lines(baseline: Double) -> None:
    assert all(line in baseline.log for line in MEASURED["harmless_log"])
    assert "Traceback" not in baseline.log


def test_http_is_up_and_health_503_while_warming_up(launch: Launch) -> None:
    double = launch(wait="Uvicorn running", warmup_s=0.5)
    assert double.raw("GET", "/health")[0] == 503
    assert double.get("/v1/models")["data"][0]["id"] == "/models/t"
    double.wait_log(READY)
    assert double.raw("GET", "/health")[0] == double.raw("GET", "/health_generate")[0] == 200


def test_nothing_listens_while_weights_load(launch: Launch) -> None:
    double = launch(wait="Load weight begin", load_s=1.0)
    with pytest.raises(ConnectionRefusedError):
        double.raw("GET", "/health")


def test_skip_server_warmup_says_ready_before_the_port_is_bound(launch: Launch) -> None:
    double = launch("--skip-server-warmup", wait="Uvicorn running")
    assert double.log.index(READY) < double.log.index("Uvicorn running")


def test_children_have_the_names_of_sglang(launch: Launch) -> None:
    double = launch("--tp-size", "2")
    assert sorted(double.children().values()) == ["sglang::detoken", "sglang::schedul", "sglang::schedul"]


def test_api_key_protects_all_but_health_and_metrics(launch: Launch) -> None:
    double = launch("--api-key", "secret-key", "--enable-metrics")
    assert double.raw("GET", "/v1/models")[0] == 401
    assert double.raw("POST", "/v1/completions", {"prompt": "x"})[0] == 401
    assert double.raw("GET", "/health")[0] == double.raw("GET", "/metrics")[0] == 200
    assert double.raw("GET", "/v1/models", headers={"Authorization": "Bearer secret-key"})[0] == 200
    assert "secret-key" not in double.log


def test_metrics_need_their_flag(launch: Launch) -> None:
    assert launch().raw("GET", "/metrics")[0] == 404


def test_sigterm_drains_and_ends_by_sigkill_of_itself(launch: Launch) -> None:
    double = launch(step_s=0.01)
    children = double.children()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(double.complete, tokens=80)
        time.sleep(0.2)
        double.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert double.raw("GET", "/health")[0] == 503
        assert answer.result()["usage"]["completion_tokens"] == 80
    assert double.wait_exit() == -MEASURED["stop"]["signal"]
    assert all(line in double.log for line in MEASURED["stop"]["log"])
    assert "Remaining number of requests 1" in double.log
    assert soon(lambda: all(map(dead, children)))


def test_sigterm_to_the_group_ends_in_crash_wording(launch: Launch) -> None:
    double = launch(term_poll_s=2.0)
    os.killpg(double.process.pid, signal.SIGTERM)
    assert double.wait_exit() == -9
    assert all(line in double.log for line in MEASURED["group_stop_log"])


def test_force_shutdown_skips_draining(launch: Launch) -> None:
    double = launch(environment={"SGL_FORCE_SHUTDOWN": "1"}, wedge_after_requests=0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        hanging = pool.submit(double.raw, "POST", "/v1/completions", {"prompt": "x"})
        double.wait_log("hangs")
        assert double.stop() == -9
        assert hanging.exception() is not None


def test_dead_scheduler_ends_the_server(launch: Launch) -> None:
    double = launch()
    scheduler = next(pid for pid, name in double.children().items() if name == "sglang::schedul")
    os.kill(scheduler, signal.SIGKILL)
    assert double.wait_exit() == -9
    assert f"Subprocess scheduler_0 (pid={scheduler}) crashed with exit code -9" in double.log


def test_children_die_with_a_killed_server(launch: Launch) -> None:
    double = launch()
    children = double.children()
    double.process.kill()
    double.wait_exit()
    assert soon(lambda: all(map(dead, children)))


# ------------------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--speculative-ddtree-budget", "32"], 2, "unrecognized arguments: --speculative-ddtree-budget 32"),
        (["--speculative-algorithm", "DDTREE"], 1, "ValueError: Unknown speculative algorithm name: DDTREE"),
        (["--speculative-algorithm", "DFLASH"], 1, "requires setting --speculative-draft-model-path"),
        (["--served-model-name", "a:b"], 1, "cannot contain a colon"),
        (["--port", "many"], 2, "invalid int value"),
        (["--double-no-such", "1"], 2, "unrecognized arguments"),
        (["--double-load-s", "long"], 2, "switch load_s: 'long' is not a float"),
        (["--double-stop-style", "softly"], 2, "switch stop_style"),
    ],
)
def test_what_cannot_be_is_refused_at_once(launch: Launch, flags: list[str], code: int, words: str) -> None:
    double = launch(*flags, wait=None)
    assert double.wait_exit() == code
    assert words in double.log


def test_unknown_switch_in_the_environment_is_named(launch: Launch) -> None:
    double = launch(wait=None, wedge_after=3)
    assert double.wait_exit() == 2
    assert "unknown switch 'wedge_after'" in double.log


def test_model_path_is_required() -> None:
    result = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 2
    assert "--model-path" in result.stderr


def test_a_fork_can_bring_flags_and_algorithms(launch: Launch) -> None:
    flags = ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "/models/d"]
    double = launch(
        *flags, "--speculative-ddtree-budget", "32", algorithms=["DDTREE"], extra_flags=["--speculative-ddtree-budget"]
    )
    info = double.get("/server_info")
    assert info["speculative_algorithm"] == "DDTREE"
    assert info["speculative_ddtree_budget"] == "32"


def test_help_lists_flags_and_every_switch() -> None:
    def run(*flags: str) -> str:
        return subprocess.run(
            [sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, timeout=20, check=True
        ).stdout

    assert "--speculative-draft-model-path" in run("--help")
    rows: list[dict[str, Any]] = json.loads(run("--double-help-faults=json"))
    text = run("--double-help-faults")
    assert {"crash_with", "wedge_after_requests", "escaped_child"} <= {row["name"] for row in rows}
    assert set(FAST) <= {row["name"] for row in rows}
    assert all("--double-" + row["name"].replace("_", "-") in text and row["text"] for row in rows)


def test_command_line_beats_environment(launch: Launch) -> None:
    double = launch("--double-version", "0.5.23", version="0.5.20")
    assert double.get("/server_info")["version"] == "0.5.23"


def test_it_answers_to_the_module_name(launch: Launch, tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_bytes(PROGRAM.read_bytes())
    command = [sys.executable, "-m", "sglang.launch_server"]
    double = launch(command=command, environment={"PYTHONPATH": str(tmp_path)})
    assert double.complete()["usage"]["completion_tokens"] == 24


def test_second_server_on_the_port_dies_with_address_in_use(baseline: Double, launch: Launch) -> None:
    second = launch(port=baseline.port, wait=None)
    assert second.wait_exit() == 1
    assert "[Errno 98] error while attempting to bind on address" in second.log
    assert "address already in use" in second.log
    assert baseline.raw("GET", "/health")[0] == 200


def test_source_is_python_3_9_and_standard_library_only() -> None:
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 9))
    modules = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    modules |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= set(sys.stdlib_module_names)
