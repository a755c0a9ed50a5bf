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
    parser.add_argument("--drain-s", type=float, help="taken as the launcher takes it, and ignored")
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
    parser.add_argument("--text", default="", help="generate this text, whatever is asked")
    parser.add_argument("--drafted", type=int, help="accepted draft tokens of every answer, in `timings`")
    parser.add_argument("--wrong-model", action="store_true", help="serve under another name")
    parser.add_argument("--completion-status", type=int, default=200)
    parser.add_argument("--speculative", choices=("true", "false"), help="shown by /slots")
    parser.add_argument("--wedge-after", type=int, help="generation hangs after so many requests; /health stays 200")
    parser.add_argument("--slow-health-s", type=float, default=0.0, help="/health answers this much later")
    parser.add_argument("--sick-after", type=float, help="/health is 503 from so many seconds after readiness on")
    parser.add_argument("--drip", action="store_true", help="/health is sent one byte per half second")
    parser.add_argument("--nonsense", choices=("models", "completion"), help="200 with a page instead of JSON")
    parser.add_argument("--no-finish", action="store_true", help="no finish_reason")
    parser.add_argument("--shown-model", default="", help="/props shows this file instead of --model")
    parser.add_argument("--crash-on-request", action="store_true", help="die at the first generation")
    parser.add_argument("--kill-on-term", action="store_true", help="SIGKILL itself on SIGTERM")
    parser.add_argument(
        "--escape", action="store_true", help="a child in its own session, deaf to SIGTERM, shares the port"
    )
    parser.add_argument("--daemonize", action="store_true", help="the main process ends, a child serves")
    parser.add_argument("--eat-mb", type=int, default=0, help="allocate and touch so many MiB while loading")
    parser.add_argument("--cache-file", default="", help="write a file of this name below $HOME while loading")
    parser.add_argument("--cache-mb", type=int, default=1, help="size of that file")
    parser.add_argument("--crash-again", action="store_true", help="crash at the second and every later start")
    parser.add_argument("--stamps", default="", help="append `ready SECONDS` and `exit SECONDS` (Unix time) here")
    return parser.parse_args()


class Handler(http.server.BaseHTTPRequestHandler):
    args: argparse.Namespace
    ready_at: float
    requests = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            if self.args.hang == "health":
                time.sleep(3600)
            time.sleep(self.args.slow_health_s)
            age = time.monotonic() - self.ready_at
            ready = age >= 0 and not (self.args.sick_after is not None and age >= self.args.sick_after)
            self.reply(200 if ready else 503, {"status": "ok" if ready else "loading model"}, drip=self.args.drip)
        elif self.path == "/v1/models" and self.args.nonsense == "models":
            self.page()
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.names()]})
        elif self.path == "/props" and self.args.model:
            self.reply(200, {"model_path": self.args.shown_model or self.args.model})
        elif self.path == "/slots" and self.args.speculative:
            self.reply(200, [{"id": 0, "speculative": self.args.speculative == "true"}])
        else:
            self.reply(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        Handler.requests += 1
        wedged = self.args.wedge_after is not None and Handler.requests > self.args.wedge_after
        if self.args.hang == "completion" or wedged:
            time.sleep(3600)
        if self.args.crash_on_request:
            crash(self.args.stamps)
        if self.args.nonsense == "completion":
            self.page()
            return
        if self.args.completion_status != 200:
            self.reply(self.args.completion_status, {"error": {"message": "scheduler is dead"}})
            return
        text = "" if self.args.empty else self.args.text or "1, 2, 3, 4, 5."
        said = {"text": text} if self.path == "/v1/completions" else {"message": {"content": text}}
        answer: dict[str, Any] = {
            "model": body.get("model", self.names()[0]),
            "choices": [{**said, "finish_reason": None if self.args.no_finish else "stop", "index": 0}],
        }
        if self.args.drafted is not None:
            answer["timings"] = {"draft_n": 26, "draft_n_accepted": self.args.drafted}
        if not self.args.no_usage:
            answer["usage"] = {"prompt_tokens": 9, "completion_tokens": 14, "total_tokens": 23}
        self.reply(200, answer)

    def names(self) -> list[str]:
        return ["somebody-else"] if self.args.wrong_model else self.args.alias or ["double"]

    def page(self) -> None:
        """What a proxy or a captive portal answers to everything."""
        data = b"<html><body>It works!</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply(self, status: int, body: Any, drip: bool = False) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not drip:
            self.wfile.write(data)
            return
        for byte in data:
            time.sleep(0.5)
            self.wfile.write(bytes([byte]))
            self.wfile.flush()

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


def load(args: argparse.Namespace) -> None:
    """What can go wrong while a server takes its memory and fills its caches."""
    home = Path(os.environ.get("HOME", "."))
    marker = home / "started"
    if args.crash_again and marker.exists():
        crash(args.stamps)
    if args.crash_again:
        marker.touch()
    if args.eat_mb:
        block = bytearray(args.eat_mb << 20)
        block[::4096] = b"x" * len(block[::4096])
    if args.cache_file:
        target = home / args.cache_file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(args.cache_mb << 20))


def escape() -> None:
    """Leave a child that no process group and no SIGTERM reaches; it keeps the listening socket."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)


def main() -> None:
    args = parse_args()
    print("specswap: loading model", file=sys.stderr, flush=True)
    if args.import_error:
        import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
    later(args.crash_after, lambda: crash(args.stamps))
    later(args.exit_after, lambda: os._exit(0))
    later(args.hang_crash_after, lambda: os.kill(os.getpid(), signal.SIGSEGV))

    load(args)

    def stop(*_: object) -> None:
        if args.kill_on_term:
            os.kill(os.getpid(), signal.SIGKILL)
        if not args.ignore_term:
            time.sleep(args.stop_s)
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    time.sleep(args.bind_delay_s)
    Handler.args, Handler.ready_at = args, time.monotonic() + args.load_s
    server = Server((args.host, args.port), Handler)
    if args.escape:
        escape()
    if args.daemonize and os.fork() > 0:
        os._exit(0)
    stamp(args.stamps, "ready", time.time() + args.load_s)
    print("specswap: READY", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
