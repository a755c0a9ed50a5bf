"""Start the SGLang double as a real process on a free loopback port and talk to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "doubles" / "sglang_double.py"
FAST = {
    "load_s": 0.02,
    "kv_s": 0.0,
    "graph_s": 0.02,
    "warmup_poll_s": 0.03,
    "warmup_s": 0.0,
    "health_poll_s": 0.01,
    "term_poll_s": 0.05,
    "crash_pause_s": 0.1,
    "prefill_s": 0.0,
    "step_s": 0.0005,
    "escape_s": 30.0,
}
READY = "The server is fired up and ready to roll!"
Launch = Callable[..., "Double"]


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dead(pid: int) -> bool:
    """Whether the process is gone or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def soon(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@dataclass
class Double:
    """A running double: its process, port and log file."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_log(self, text: str, seconds: float = 10.0) -> None:
        """Wait until `text` is in the log; fails with the log when the process ends first or the time is up."""
        deadline = time.monotonic() + seconds
        while text not in self.log:
            ended = self.process.poll() is not None
            if (ended or time.monotonic() > deadline) and text not in self.log:
                pytest.fail(f"{text!r} not in the log (exit {self.process.poll()}):\n{self.log}")
            time.sleep(0.01)

    def wait_exit(self, seconds: float = 10.0) -> int:
        return self.process.wait(timeout=seconds)

    def raw(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout: float = 5.0,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One request on a connection of its own: (status, body). OSError or HTTPException when none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, body=data, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Any:
        status, body = self.raw("GET", path, **options)
        assert status == 200, (status, body)
        return json.loads(body)

    def post(self, path: str, body: object, **options: Any) -> Any:
        status, data = self.raw("POST", path, body, **options)
        assert status == 200, (status, data)
        return json.loads(data)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All SSE events of a streamed answer; the text [DONE] stays text."""
        status, data = self.raw("POST", path, {**body, "stream": True})
        assert status == 200, (status, data)
        events = [part[len("data: ") :] for part in data.decode().split("\n\n") if part]
        return [event if event == "[DONE]" else json.loads(event) for event in events]

    def complete(self, prompt: str = "Once upon a time", tokens: int = 24, **more: Any) -> Any:
        body = {"model": "t", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        return self.post("/v1/completions", body)

    def generate(self, prompt: str = "Once upon a time", tokens: int = 24, **sampling: Any) -> Any:
        params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, **sampling}
        return self.post("/generate", {"text": prompt, "sampling_params": params})

    def children(self) -> dict[int, str]:
        """Pids and comm of all processes below the server."""
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and fields[0] != "Z":
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit()
