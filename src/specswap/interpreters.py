"""Finds the Python interpreters of this machine by running them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Versions that may run the console and the plays.
CONTROLLER_VERSIONS = ("3.11", "3.12", "3.13")
#: Versions that a target may have besides those: `host/` must import there.
TARGET_ONLY_VERSIONS = ("3.9", "3.10")
_PROBE = (
    "import sys; print('%d.%d' % sys.version_info[:2]); print(getattr(sys, '_base_executable', None) or sys.executable)"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python that answered: its version (`3.12`) and its own path."""

    version: str
    path: Path


def search_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Folders that may hold interpreters: PATH first, then those of pyenv and uv, whose shims do not always run."""
    for entry in environment.get("PATH", os.defpath).split(os.pathsep):
        if entry:
            yield Path(entry)
    home = Path(environment.get("HOME", "/nonexistent"))
    pyenv = Path(environment.get("PYENV_ROOT", home / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin"))
    data = Path(environment.get("XDG_DATA_HOME", home / ".local/share"))
    yield from sorted(data.glob("uv/python/*/bin"))


def probe(command: Path) -> Interpreter | None:
    """Runs an interpreter and asks who it is; None when it does not run."""
    try:
        done = subprocess.run(
            [str(command), "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split("\n")
    if done.returncode != 0 or len(lines) < 2:
        return None
    return Interpreter(lines[0], Path(lines[1]))


def this_interpreter() -> Interpreter:
    """The interpreter that runs the console."""
    return Interpreter(f"{sys.version_info.major}.{sys.version_info.minor}", Path(sys.executable))


def find_interpreters(versions: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, Interpreter]:
    """The first working interpreter of each version: `{"3.12": Interpreter}`; versions not found are left out."""
    folders = list(search_folders(os.environ if environment is None else environment))
    found: dict[str, Interpreter] = {}
    for version in versions:
        for folder in folders:
            command = folder / f"python{version}"
            if not command.exists():
                continue
            interpreter = probe(command)
            if interpreter is not None and interpreter.version == version:
                found[version] = interpreter
                break
    return found
