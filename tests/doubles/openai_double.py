#!/usr/bin/env python3
"""A server with the face of an OpenAI-style engine and faults on demand; stdlib only, Python >= 3.9.

Takes the flags that the llama.cpp launcher takes (--host, --port, --alias, --model) and one switch per fault.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", action="append", default=[], help="a served name; repeat for several")
    parser.add_argument("--model", default="", help="shown by /props")
    parser.add_argument("--load-s", type=float, default=0.0, help="listen, but answer 503 for this long")
    parser.add_argument("--bind-delay-s", type=float, default=0.0, help="do not listen for this long")
    parser.add_argument("--stop-s", type=float, default=0.0, help="linger this long after SIGTERM")
    parser.add_argument("--ignore-term", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--crash-after", type=float, help="raise after this many seconds")
    parser.add_argument("--exit-after", type=float, help="exit with status 0 after this many seconds")
    parser.add_argument("--import-error", action="store_true", help="die at once with a ModuleNotFoundError")
    parser.add_argument("--hang", choices=("health", "completion"), help="never answer this request")
    parser.add_argument("--hang-crash-after", type=float, help="die by SIGSEGV after this many seconds")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--empty", action="store_true", help="generate an empty text")
    parser.add_argument("--wrong-model", action="store_true", help="serve under another name")
    parser.add_argument("--completion-status", type=int, default=200)
    parser.add_argument("--speculative", choices=("true", "false"), help="shown by /slots")
    parser.add_argument("--stamps", default="", help="append `ready SECONDS` and `exit SECONDS` (Unix time) here")
    return parser.parse_args()


class Handler(http.server.BaseHTTPRequestHandler):
    args: argparse.Namespace
    ready_at: float

    def do_GET(self) -> None:
        if self.path == "/health":
            if self.args.hang == "health":
                time.sleep(3600)
            ready = time.monotonic() >= self.ready_at
            self.reply(200 if ready else 503, {"status": "ok" if ready else "loading model"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.names()]})
        elif self.path == "/props" and self.args.model:
            self.reply(200, {"model_path": self.args.model})
        elif self.path == "/slots" and self.args.speculative:
            self.reply(200, [{"id": 0, "speculative": self.args.speculative == "true"}])
        else:
            self.reply(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        if self.args.hang == "completion":
            time.sleep(3600)
        if self.args.completion_status != 200:
            self.reply(self.args.completion_status, {"error": {"message": "scheduler is dead"}})
            return
        answer: dict[str, Any] = {
            "model": body.get("model", self.names()[0]),
            "choices": [
                {
                    "message": {"content": "" if self.args.empty else "1, 2, 3, 4, 5."},
                    "finish_reason": "stop",
                    "index": 0,
                }
            ],
        }
        if not self.args.no_usage:
            answer["usage"] = {"prompt_tokens": 9, "completion_tokens": 14, "total_tokens": 23}
        self.reply(200, answer)

    def names(self) -> list[str]:
        return ["somebody-else"] if self.args.wrong_model else self.args.alias or ["double"]

    def reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def later(seconds: float | None, action: Any) -> None:
    if seconds is not None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()


def stamp(path: str, word: str, moment: float) -> None:
    """What is true and since when, by the one who knows; measures compare verdicts with it."""
    if path:
        with Path(path).open("a") as file:
            file.write(f"{word} {moment:.6f}\n")


def crash(stamps: str = "") -> None:
    print("Traceback (most recent call last):", file=sys.stderr)
    print('  File "scheduler.py", line 7, in run', file=sys.stderr)
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr, flush=True)
    stamp(stamps, "exit", time.time())
    os._exit(1)


def main() -> None:
    args = parse_args()
    print("specswap: loading model", file=sys.stderr, flush=True)
    if args.import_error:
        import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
    later(args.crash_after, lambda: crash(args.stamps))
    later(args.exit_after, lambda: os._exit(0))
    later(args.hang_crash_after, lambda: os.kill(os.getpid(), signal.SIGSEGV))

    def stop(*_: object) -> None:
        if not args.ignore_term:
            time.sleep(args.stop_s)
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    time.sleep(args.bind_delay_s)
    Handler.args, Handler.ready_at = args, time.monotonic() + args.load_s
    server = Server((args.host, args.port), Handler)
    stamp(args.stamps, "ready", time.time() + args.load_s)
    print("specswap: READY", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
