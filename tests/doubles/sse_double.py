"""A paced server of chat streams with known truth: what it sent and when, and what it leaves out on purpose.

It runs in the test's own process, so that its stamps and the client's come from one monotonic clock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Chunk:
    """One content chunk: `tokens` it stands for, `after_s` seconds after the one before it."""

    text: str
    tokens: int = 1
    after_s: float = 0.02
    kind: str = "content"  # or "reasoning_content", "reasoning", "both"


@dataclass(frozen=True)
class Script:
    """What the double answers, and what goes wrong with it.

    `fault` after `fault_at` chunks: "error_object", "truncate" (the connection is cut), "hang", "not_json".
    `status`: HTTP status other than 200. `split_bytes`: the stream is written in pieces of so many bytes.
    """

    chunks: Sequence[Chunk]
    usage: bool = True
    per_chunk_usage: bool = False
    done: bool = True
    finish_reason: str | None = "stop"
    chunked: bool = True
    status: int = 200
    fault: str = ""
    fault_at: int = 0
    timings: dict[str, Any] | None = None
    split_bytes: int = 0
    newline: bytes = b"\n"
    comments: bool = False
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    engine: str = "llamacpp"

    @property
    def tokens(self) -> int:
        """Completion tokens that usage reports."""
        return sum(chunk.tokens for chunk in self.chunks) if self.completion_tokens is None else self.completion_tokens


@dataclass
class Truth:
    """What the double did for one request; monotonic seconds."""

    body: dict[str, Any]
    received_s: float
    sent_s: list[float] = field(default_factory=list)
    finished_s: float = 0.0


class SseDouble:
    """A server on a free loopback port; a context manager. `scripts`: by model name; `default` for all others."""

    def __init__(self, default: Script, scripts: dict[str, Script] | None = None) -> None:
        self.default = default
        self.scripts = scripts or {}
        self.truths: list[Truth] = []
        self.flushes = 0
        self.flush_refusals = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._hang = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with double._lock:
                    double.connections += 1

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                double._get(self)

            def do_POST(self) -> None:
                double._post(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def port(self) -> int:
        """Its port."""
        return int(self._server.server_address[1])

    def __enter__(self) -> SseDouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._hang.set()
        self._server.shutdown()
        self._server.server_close()

    def _json(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        engine = self.default.engine
        if handler.path == "/health":
            self._json(handler, 200, {"status": "ok"})
        elif handler.path == "/props" and engine == "llamacpp":
            self._json(handler, 200, {"build_info": "double", "chat_template": "x" * 1000})
        elif handler.path == "/server_info" and engine == "sglang":
            self._json(handler, 200, {"version": "double", "stream_interval": 1})
        else:
            self._json(handler, 404, {"error": "no such page"})

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        data = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        received = time.monotonic()
        if handler.path == "/flush_cache":
            if self.flush_refusals:
                self.flush_refusals -= 1
                self._json(handler, 400, {"message": "requests are running"})
            else:
                self.flushes += 1
                self._json(handler, 200, {"message": "flushed"})
            return
        body = json.loads(data)
        truth = Truth(body, received)
        with self._lock:
            self.truths.append(truth)
        script = self.scripts.get(body["model"], self.default)
        if script.status != 200:
            self._json(handler, script.status, {"error": {"message": "refused by the double"}})
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        if script.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Connection", "close")
        handler.end_headers()
        self._stream(handler, script, truth)

    def _stream(self, handler: BaseHTTPRequestHandler, script: Script, truth: Truth) -> None:
        due = truth.received_s
        tokens = 0
        self._event(handler, script, {"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        for number, chunk in enumerate(script.chunks):
            if script.fault and number == script.fault_at:
                self._fail(handler, script)
                return
            due += chunk.after_s
            time.sleep(max(0.0, due - time.monotonic()))
            tokens += chunk.tokens
            names = ("reasoning_content", "reasoning") if chunk.kind == "both" else (chunk.kind,)
            event: dict[str, Any] = {"choices": [{"index": 0, "delta": dict.fromkeys(names, chunk.text)}]}
            if script.per_chunk_usage:
                event["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
            truth.sent_s.append(time.monotonic())
            self._event(handler, script, event)
        truth.finished_s = time.monotonic()
        if script.finish_reason is not None:
            last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": script.finish_reason}]}
            self._event(handler, script, last)
        if script.usage:
            usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": script.tokens}
            if script.cached_tokens is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
            final: dict[str, Any] = {"choices": [], "usage": usage}
            if script.timings is not None:
                final["timings"] = script.timings
            self._event(handler, script, final)
        if script.done:
            self._write(handler, script, b"data: [DONE]" + script.newline * 2)
        if script.chunked:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.close_connection = True

    def _fail(self, handler: BaseHTTPRequestHandler, script: Script) -> None:
        if script.fault == "error_object":
            self._event(handler, script, {"error": {"message": "out of memory", "code": 500}})
            handler.wfile.write(b"0\r\n\r\n")
        elif script.fault == "not_json":
            self._write(handler, script, b"data: {half" + script.newline * 2)
            handler.wfile.write(b"0\r\n\r\n")
        elif script.fault == "hang":
            self._hang.wait(30)
            handler.close_connection = True
        else:
            handler.close_connection = True  # truncate: no end of the chunked body

    def _event(self, handler: BaseHTTPRequestHandler, script: Script, event: dict[str, Any]) -> None:
        comment = b": keep-alive" + script.newline * 2 if script.comments else b""
        self._write(handler, script, comment + b"data: " + json.dumps(event).encode() + script.newline * 2)

    def _write(self, handler: BaseHTTPRequestHandler, script: Script, data: bytes) -> None:
        size = script.split_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            if script.chunked:
                piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
            handler.wfile.write(piece)
