#!/usr/bin/env python3
"""Serve a GGUF model over llama.cpp's OpenAI-style HTTP server, in this process.

Endpoints: /health, /v1/models, /v1/chat/completions, /slots, /metrics. SIGTERM lets the requests in flight finish for
up to --drain-s seconds, then the exit status is 0. Needs the package xllamacpp and nothing else.
Exit status: 0 stopped by SIGTERM or SIGINT (while it still loads: ended by that signal), 2 usage, 66 model missing or
unreadable, 69 xllamacpp missing, 70 the server did not start, 75 port taken.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

EXIT_MODEL = 66
EXIT_NO_ENGINE = 69
EXIT_SERVER = 70
EXIT_PORT = 75

SPEC_TYPES = ("none", "ngram-simple", "ngram-map-k")
_GGUF_MAGIC = b"GGUF"
_BUSY = re.compile(r"^llamacpp:requests_(?:processing|deferred) ([0-9.e+]+)$", re.MULTILINE)


class StartError(Exception):
    """The server cannot start; carries the exit status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def say(text: str) -> None:
    """One line on stderr, at once: the journal is read while it is written."""
    print(f"specswap: {text}", file=sys.stderr, flush=True)


def _at_least(minimum: int, maximum: int = 1 << 20) -> Any:
    def parse(text: str) -> int:
        value = int(text)
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{value} is not between {minimum} and {maximum}")
        return value

    parse.__name__ = "integer"
    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 3600")
    return value


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace; unknown or contradicting flags exit with status 2 and the usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument(
        "--alias",
        action="append",
        required=True,
        help="served name; repeat for more; the first by sort order is the id",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    parser.add_argument("--port", type=_at_least(1, 65535), required=True)
    parser.add_argument("--threads", type=_at_least(1), default=1, help="(default: %(default)s)")
    parser.add_argument(
        "--ctx", type=_at_least(64), default=4096, help="context length in tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--parallel", type=_at_least(1, 256), default=1, help="requests at a time (default: %(default)s)"
    )
    parser.add_argument("--spec-type", choices=SPEC_TYPES, default="none", help="drafting (default: %(default)s)")
    parser.add_argument("--spec-ngram-size-n", type=_at_least(1, 1024), help="tokens to look up (engine default: 12)")
    parser.add_argument("--spec-ngram-size-m", type=_at_least(1, 1024), help="tokens to draft (engine default: 48)")
    parser.add_argument(
        "--drain-s", type=_seconds, default=5.0, help="seconds for requests in flight (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.spec_type == "none" and (args.spec_ngram_size_n or args.spec_ngram_size_m):
        parser.error("--spec-ngram-size-n and --spec-ngram-size-m need --spec-type ngram-simple or ngram-map-k")
    return args


def check_model(path: str) -> None:
    """Raise StartError unless `path` is a readable GGUF file: the engine itself only says that loading failed."""
    try:
        with Path(path).open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise StartError(EXIT_MODEL, f"cannot read model {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise StartError(EXIT_MODEL, f"model {path} is not a GGUF file (starts with {magic!r})")


def check_port(host: str, port: int) -> None:
    """Raise StartError when the address cannot be bound, before seconds are spent on loading."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise StartError(EXIT_PORT, f"cannot bind {host}:{port}: {error.strerror or error}") from error


def build_params(args: argparse.Namespace, engine: Any) -> Any:
    """Translate the command line into `xllamacpp.CommonParams`."""
    params = engine.CommonParams()
    params.model.path = args.model
    params.model_alias = set(args.alias)
    params.hostnames, params.port = [args.host], args.port
    params.reuse_port = False  # two servers must never share the slot's port
    params.cors_origins = "http://127.0.0.1"  # the default lets any web page of any origin read answers
    params.n_ctx, params.n_parallel = args.ctx, args.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.endpoint_metrics, params.endpoint_slots = True, True
    params.fit_params = params.ui = False
    # Nothing is kept between requests, or the second of two equal prompts would not cost what the first one did.
    params.cache_prompt = params.cache_idle_slots = False
    params.cache_ram_mib = params.n_cache_reuse = params.n_ctx_checkpoints = 0
    if args.spec_type != "none":
        name = args.spec_type.replace("-", "_")
        kinds = engine.common_speculative_type
        params.speculative.types = [getattr(kinds, "COMMON_SPECULATIVE_TYPE_" + name.upper())]
        drafting = getattr(params.speculative, name)
        if args.spec_ngram_size_n:
            drafting.size_n = args.spec_ngram_size_n
        if args.spec_ngram_size_m:
            drafting.size_m = args.spec_ngram_size_m
    return params


def requests_in_flight(address: str, timeout_s: float) -> int | None:
    """Requests that `address` ("http://host:port") processes or queues now; None when it did not say in time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy
    try:
        with opener.open(f"{address}/metrics", timeout=timeout_s) as answer:
            counts = _BUSY.findall(answer.read().decode("utf-8", "replace"))
    except OSError:
        return None
    return int(sum(float(count) for count in counts)) if counts else None


def drain(address: str, budget_s: float) -> bool:
    """Wait until nothing is in flight, at most `budget_s` seconds; whether that was reached."""
    deadline = time.monotonic() + budget_s
    while True:
        left_s = deadline - time.monotonic()
        if requests_in_flight(address, max(0.1, min(1.0, left_s))) == 0:
            time.sleep(0.2)  # the engine counts a request as done just before its last bytes are written
            return True
        if left_s <= 0:
            return False
        time.sleep(0.1)


class StopSignal:
    """SIGTERM and SIGINT as something to wait for; a second one ends the process at once."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        if self._received is not None:
            os._exit(0)
        self._received = number

    def wait(self) -> str:
        """Block until a stop arrives; its name."""
        while self._received is None:
            self._reader.recv(1)
        return signal.Signals(self._received).name


def serve(args: argparse.Namespace) -> None:
    """Load, listen, and stay until SIGTERM or SIGINT. Raises StartError."""
    # While the engine loads, no Python code runs, handlers included: only the kernel's own action ends a long load.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        engine = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise StartError(
            EXIT_NO_ENGINE, f"{error}; run this with the Python of its release ({sys.executable})"
        ) from error
    check_model(args.model)
    check_port(args.host, args.port)
    say(f"loading model {args.model}")
    started = time.monotonic()
    try:
        server = engine.Server(build_params(args, engine))
    except RuntimeError as error:
        raise StartError(EXIT_SERVER, f"the engine did not start: {error} Its own lines stand above.") from error
    stop = StopSignal()
    say(f"READY after {time.monotonic() - started:.2f} s on {server.listening_address}, drafting: {args.spec_type}")
    name = stop.wait()
    say(f"{name}: waiting up to {args.drain_s:g} s for requests in flight")
    say("stopped" if drain(server.listening_address, args.drain_s) else "stopped with requests still in flight")


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit status."""
    args = parse_args(argv)
    try:
        serve(args)
    except StartError as error:
        say(f"error: {error}")
        return error.status
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Tearing the engine down waits for its connections and can hang; the process owns nothing that needs it.
    os._exit(status)
