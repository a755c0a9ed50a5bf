"""Run programs of the machine, with errors that say which command failed and why."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import SandboxError


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 60.0,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return its captured result.

    On a time-out the whole process group is killed, because helpers such as nsenter fork: killing only the child that
    we know would leave the other one behind. Raises SandboxError when the program is missing, exceeds `timeout_s`
    seconds or, with `check`, ends with another code than 0.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise SandboxError(
            f"{argv[0]}: not installed; `python -m specswap_sandbox install` installs what is missing"
        ) from error
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"`{shlex.join(argv)}` did not end within {timeout_s:g} s") from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if check and process.returncode != 0:
        detail = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise SandboxError(f"`{shlex.join(argv)}` ended with {process.returncode}: {detail}")
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def ip_json(*args: str) -> list[dict[str, Any]]:
    """The answer of `ip -j ARGS` as a list of objects."""
    out = run(["ip", "-j", *args]).stdout.strip()
    return [entry for entry in json.loads(out or "[]") if entry]


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` so that a reader, also after a crash, sees either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def locked_folder(folder: Path, *, create: bool = True) -> Iterator[int]:
    """Hold an exclusive lock on a folder, without a lock file that somebody would have to remove.

    Yields the file descriptor that carries the lock. The previous owner may have removed the folder while we waited:
    then the lock belongs to a folder without a name, and we try again.
    """
    while True:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(descriptor), folder.stat())
            except FileNotFoundError:
                same = False
            if same:
                yield descriptor
                return
        finally:
            os.close(descriptor)
