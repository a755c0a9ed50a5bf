"""Find and end the processes of a sandbox by their arguments: a pid in a file may be somebody else's by now."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import SandboxError


@dataclass(frozen=True)
class Process:
    """A process and its argument vector."""

    pid: int
    argv: tuple[str, ...]


def processes() -> Iterator[Process]:
    """All processes of the machine that have arguments."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                data = (Path(entry.path) / "cmdline").read_bytes()
                if data:
                    yield Process(int(entry.name), tuple(data.rstrip(b"\0").decode(errors="replace").split("\0")))


def find(test: Callable[[Process], bool]) -> list[Process]:
    """The processes that pass `test`, without our own."""
    own = os.getpid()
    return [process for process in processes() if process.pid != own and test(process)]


def status_field(pid: int, name: str) -> list[str]:
    """The words of one line of /proc/PID/status; empty when the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.split()
    return []


def init_of(parent: int) -> int | None:
    """The child of `parent` that is PID 1 of a process namespace of its own: a container's init, seen from outside."""
    children: list[str] = []
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    if not children:
        children = [
            entry.name
            for entry in os.scandir("/proc")
            if entry.name.isdigit() and status_field(int(entry.name), "PPid") == [str(parent)]
        ]
    for child in children:
        inner = status_field(int(child), "NSpid")
        if len(inner) > 1 and inner[-1] == "1":
            return int(child)
    return None


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(test: Callable[[Process], bool], *, what: str, timeout_s: float = 10.0) -> None:
    """Wait until no process passes `test`. Raises SandboxError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while found := find(test):
        if time.monotonic() > deadline:
            raise SandboxError(f"{what}: process {found[0].pid} did not end within {timeout_s:g} s")
        time.sleep(0.02)
