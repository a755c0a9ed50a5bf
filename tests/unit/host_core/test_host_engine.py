"""The llama.cpp adapter and its HTTP client against a real server process that lies on demand."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_doubles import service_dict
from specswap_host.engines import EngineError, GenerateError, get_engine
from specswap_host.engines.base import served_names
from specswap_host.engines.http import HttpError, request
from specswap_host.golden import REPETITIVE
from specswap_host.plan import Service

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "openai_double.py"
Start = Callable[..., Service]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(*faults: str, **changes: Any) -> Service:
        data = {**service_dict(tmp_path, "a"), **changes}
        data["slot"] = {**data["slot"], "port": free_port()}
        model = data["models"]["target"]["path"]
        flags = ["--host", "127.0.0.1", "--port", str(data["slot"]["port"]), "--model", model]
        data["argv"] = [sys.executable, str(DOUBLE), *flags, "--alias", "m", "--alias", data["identity"], *faults]
        processes.append(subprocess.Popen(data["argv"], stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", data["slot"]["port"]), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        return Service.from_dict(data)

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_good_server_passes(start: Start) -> None:
    service, engine = start(), get_engine("llamacpp")
    assert engine.static_checks(service) == []
    assert engine.health(service, 2).ok
    identity = engine.identity(service, 2)
    assert identity.ok and service.identity in identity.evidence["served"]
    completion = engine.complete(service, 5)
    assert completion.ok and completion.evidence["completion_tokens"] == 14


@pytest.mark.parametrize(
    ("faults", "words", "final"),
    [
        (("--no-usage",), "usage.completion_tokens is None", True),
        (("--empty",), "text is empty", True),
        (("--completion-status", "500"), "HTTP 500", False),
        (("--completion-status", "404"), "HTTP 404", True),
        (("--completion-status", "429"), "HTTP 429", False),
        (("--hang", "completion"), "no complete reply within 0.5 s", False),
    ],
)
def test_lying_completions(start: Start, faults: tuple[str, ...], words: str, final: bool) -> None:
    probe = get_engine("llamacpp").complete(start(*faults), 0.5)
    assert not probe.ok and words in probe.message and probe.final is final


@pytest.mark.parametrize(
    ("faults", "length"),
    [((), None), (("--drafted", "0"), 1.0), (("--drafted", "6"), 13 / 7), (("--drafted", "14"), None)],
)
def test_generate_tells_the_acceptance(start: Start, faults: tuple[str, ...], length: float | None) -> None:
    answer = get_engine("llamacpp").generate(start(*faults), REPETITIVE, 5)
    assert (answer.text, answer.tokens, answer.finish) == ("1, 2, 3, 4, 5.", 14, "stop")
    assert answer.accept_length == length and answer.tok_per_s > 0


@pytest.mark.parametrize(
    ("faults", "words", "final"),
    [
        (("--no-usage",), "no OpenAI-style reply", True),
        (("--empty",), "text is empty", True),
        (("--completion-status", "500"), "HTTP 500", False),
        (("--completion-status", "404"), "HTTP 404", True),
        (("--hang", "completion"), "no complete reply within 0.5 s", False),
    ],
)
def test_generate_refuses_what_is_no_answer(start: Start, faults: tuple[str, ...], words: str, final: bool) -> None:
    with pytest.raises(GenerateError, match=words) as error:
        get_engine("llamacpp").generate(start(*faults), REPETITIVE, 0.5)
    assert error.value.final is final


def test_other_name_and_other_model_are_final(start: Start) -> None:
    engine = get_engine("llamacpp")
    probe = engine.identity(start("--wrong-model"), 2)
    assert not probe.ok and probe.final and "somebody-else" in probe.message
    other = start()
    moved = {**other.to_dict(), "models": {"target": {**other.to_dict()["models"]["target"], "path": "/other.gguf"}}}
    probe = engine.identity(Service.from_dict(moved), 2)
    assert not probe.ok and probe.final and "/other.gguf" in probe.message


@pytest.mark.parametrize(
    ("live", "planned", "good"),
    [("true", "ngram-simple", True), ("false", "ngram-simple", False), ("true", "none", False)],
)
def test_drafting_as_the_server_shows_it(start: Start, live: str, planned: str, good: bool) -> None:
    service = start("--speculative", live, settings={"speculative_type": planned})
    probe = get_engine("llamacpp").identity(service, 2)
    assert probe.ok is good
    assert probe.evidence["speculative"] is (live == "true")


def test_loading_server_is_asked_again(start: Start) -> None:
    probe = get_engine("llamacpp").health(start("--load-s", "60"), 2)
    assert not probe.ok and not probe.final and "503" in probe.message


def test_nobody_there(tmp_path: Path) -> None:
    data = service_dict(tmp_path, "a")
    data["slot"]["port"] = free_port()
    probe = get_engine("llamacpp").health(Service.from_dict(data), 1)
    assert not probe.ok and "refused" in probe.message.lower()


def test_static_checks_name_the_flag(tmp_path: Path) -> None:
    data = service_dict(tmp_path, "a", models={})
    findings = get_engine("llamacpp").static_checks(Service.from_dict(data))
    assert {f.id for f in findings} == {"argv_mismatch", "model_role"}
    assert any("--port" in f.message for f in findings)


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        (["--host", "0.0.0.0"], "--host"),
        (["--host=0.0.0.0"], "--host"),
        (["--port", "30002"], "--port"),
        (["--port"], "--port"),
        (["--alias", "another"], "--alias"),
        (["--model", "/other.gguf"], "--model"),
        (["--drain-s", "600"], "--drain-s"),
    ],
)
def test_flags_that_the_slot_owns_stand_once(tmp_path: Path, more: list[str], flag: str) -> None:
    """Of a repeated flag the server takes the last one: one more moves the service out of its slot."""
    data = service_dict(tmp_path, "a")
    good = ["--host", "127.0.0.1", "--port", "30001", "--model", data["models"]["target"]["path"], "--drain-s", "5"]
    data["argv"] = ["/bin/sh", "serve", *good, "--alias", "m", "--alias", data["identity"]]
    assert get_engine("llamacpp").static_checks(Service.from_dict(data)) == []
    data["argv"] += more
    (finding,) = get_engine("llamacpp").static_checks(Service.from_dict(data))
    assert finding.id == "argv_mismatch" and flag in finding.message and flag in finding.fix


def test_unknown_engine_lists_the_known() -> None:
    with pytest.raises(EngineError, match="llamacpp"):
        get_engine("nonesuch")


@pytest.mark.parametrize("listing", [None, [], {"data": None}, {"data": ["x", {"id": 5}]}])
def test_served_names_of_nonsense(listing: Any) -> None:
    assert served_names(listing) == []


def test_phases_of_the_real_log() -> None:
    engine = get_engine("llamacpp")
    lines = {
        "0.00.003.910 I srv    load_model: loading model '/m.gguf'": "loading model",
        "0.00.279.054 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 4096": "preparing slots",
        "0.00.281.349 I srv          init: model loaded": "model loaded",
        "specswap: READY after 0.28 s on http://127.0.0.1:30177, drafting: none": "ready",
        "0.00.002.337 I srv  init_listene: The UI is disabled": None,
    }
    assert {line: engine.phase(line) for line in lines} == lines


def test_deadline_holds_for_a_server_that_trickles() -> None:
    """One byte now and then outlives any time-out per socket operation."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                    for _ in range(100):
                        connection.sendall(b"x")
                        time.sleep(0.1)
                except OSError:
                    pass

        threading.Thread(target=trickle, daemon=True).start()
        start = time.monotonic()
        with pytest.raises(HttpError, match=r"within 0\.6 s"):
            request("127.0.0.1", server.getsockname()[1], "GET", "/", timeout_s=0.6)
        assert time.monotonic() - start < 2.0


def test_proxies_of_the_environment_are_not_used(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get_engine("llamacpp").health(start(), 2).ok
