"""The llama.cpp launcher up to the engine: flags, refusals, the drain. Integration tests meet the engine."""

import importlib.util
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SERVE = Path(__file__).parents[3] / "engines/llamacpp/serve.py"
spec = importlib.util.spec_from_file_location("specswap_llamacpp_serve", SERVE)
assert spec is not None and spec.loader is not None
serve = importlib.util.module_from_spec(spec)
spec.loader.exec_module(serve)

BASE = ["--model", "m.gguf", "--alias", "a", "--alias", "a@slot", "--port", "30001"]


def test_defaults_are_loopback_and_one_thread():
    args = serve.parse_args(BASE)
    assert (args.host, args.threads, args.parallel, args.spec_type) == ("127.0.0.1", 1, 1, "none")
    assert args.alias == ["a", "a@slot"]


@pytest.mark.parametrize(
    "words",
    [
        ["--bogus"],
        ["--thread", "2"],
        ["--port", "70000"],
        ["--threads", "0"],
        ["--spec-type", "eagle"],
        ["--spec-ngram-size-n", "12"],
        ["--drain-s", "-1"],
    ],
)
def test_wrong_flags_exit_2_with_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        serve.parse_args([*BASE, *words])
    assert caught.value.code == 2 and "usage:" in capsys.readouterr().err


def test_models_that_cannot_be_served_are_named(tmp_path):
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"PK\x03\x04")
    for path, words in ((tmp_path / "gone.gguf", "No such file"), (junk, "not a GGUF file"), (tmp_path, "directory")):
        with pytest.raises(serve.StartError, match=words) as caught:
            serve.check_model(str(path))
        assert caught.value.status == 66 and str(path) in str(caught.value)


def test_a_taken_port_is_seen_before_loading():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(serve.StartError, match=f"127.0.0.1:{port}") as caught:
            serve.check_port("127.0.0.1", port)
    assert caught.value.status == 75
    serve.check_port("127.0.0.1", port)


def test_without_the_engine_it_says_how_to_run_it():
    command = [sys.executable, "-I", "-S", str(SERVE), *BASE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 69 and done.stdout == ""
    assert done.stderr.startswith("specswap: error: No module named 'xllamacpp'") and done.stderr.count("\n") == 1


@pytest.fixture
def metrics():
    """A server whose /metrics says how many requests are in flight: `state["busy"]`."""
    state = {"busy": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            text = f"llamacpp:requests_processing {state['busy']}\nllamacpp:requests_deferred 1e0\n"
            text = text if state["busy"] else text.replace("1e0", "0")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state["address"] = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


def test_requests_in_flight_counts_running_and_waiting(metrics):
    assert serve.requests_in_flight(metrics["address"], 5) == 0
    metrics["busy"] = 2
    assert serve.requests_in_flight(metrics["address"], 5) == 3
    assert serve.requests_in_flight("http://127.0.0.1:1", 1) is None


def test_drain_waits_for_the_last_request_but_not_for_ever(metrics):
    metrics["busy"] = 1
    started = time.monotonic()
    assert not serve.drain(metrics["address"], 0.3)
    assert 0.3 <= time.monotonic() - started < 3
    threading.Timer(0.4, metrics.update, [{"busy": 0}]).start()
    started = time.monotonic()
    assert serve.drain(metrics["address"], 20)
    assert 0.4 <= time.monotonic() - started < 10
