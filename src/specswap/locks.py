"""Locks: which wheels, by hash, make an environment. Compiled by uv, committed, never edited by hand."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import uv
from specswap_host.atomic import write_text
from specswap_host.wheels import LockedPackage, parse_lock_text

HASH_DIGITS = 12
_PYTHON = re.compile(r"^3\.\d{1,2}$")
_GLIBC = re.compile(r"^2\.\d{1,2}$")


class LockError(Exception):
    """A lock is missing, stale or cannot be made; the message says which file and the way out."""


def lock_path(root: Path, environment: str, flavour: str, python: str, glibc: str) -> Path:
    """`<root>/locks/<environment>/<flavour>-py311-glibc2.28.txt` for python "3.11" and glibc "2.28"; it need not exist.

    Errors: LockError for a python or glibc that is not of that form.
    """
    if not _PYTHON.match(python):
        raise LockError(f"python {python!r} of environment {environment}: write it like 3.11")
    if not _GLIBC.match(glibc):
        raise LockError(f"glibc {glibc!r} of environment {environment}: write it like 2.28")
    return root / "locks" / environment / f"{flavour}-py{python.replace('.', '')}-glibc{glibc}.txt"


def lock_hash(path: Path) -> str:
    """First 12 hex digits of the lock file's SHA-256; part of the release's name. Errors: LockError when missing."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:HASH_DIGITS]
    except FileNotFoundError:
        raise LockError(f"no lock {path}; make it with `./specswap lock {path.parent.name}`") from None


def parse_lock(path: Path) -> dict[str, LockedPackage]:
    """The pins of a lock by canonical name. Errors: LockError for a line without exact pin or without a hash."""
    lock_hash(path)
    try:
        return parse_lock_text(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LockError(f"{path}: {error}") from None


def compile_lock(
    environment: str,
    flavour: str,
    python: str,
    glibc: str,
    check: bool = False,
    *,
    root: Path,
    upgrade: bool = False,
) -> Path:
    """Compile `locks/<environment>/<...>.in` to the hash-pinned `.txt` beside it; its path.

    Pins of an existing lock stay unless the source forbids them or `upgrade` is set. With `check` nothing is written.
    Errors: LockError when the source is missing, uv finds no solution, or (check) the lock differs from what it gives.
    """
    path = lock_path(root, environment, flavour, python, glibc)
    return _compile(
        path,
        ["--python-version", python, "--python-platform", f"x86_64-manylinux_{glibc.replace('.', '_')}"],
        f"./specswap lock {environment}",
        check,
        upgrade,
    )


def compile_uv_lock(check: bool = False, *, root: Path, upgrade: bool = False) -> Path:
    """The same for `locks/uv.in`: the pinned uv for every platform it has a wheel for. Errors: LockError."""
    return _compile(
        root / "locks" / "uv.txt", ["--universal", "--python-version", "3.9"], "./specswap lock uv", check, upgrade
    )


def known_locks(root: Path) -> list[Path]:
    """All environment locks of the project, sorted."""
    return sorted((root / "locks").glob("*/*.txt"))


def _compile(path: Path, target: list[str], command: str, check: bool, upgrade: bool) -> Path:
    source = path.parent / (path.name.removesuffix(".txt") + ".in")
    if not source.is_file():
        raise LockError(f"no source {source}; write the wanted packages there, one exact requirement a line")
    with tempfile.TemporaryDirectory(prefix="specswap-lock-") as scratch:
        output = Path(scratch) / path.name
        if path.is_file() and not upgrade:
            shutil.copyfile(path, output)  # uv prefers the pins that it finds in its output file
        options = ["--quiet", "--generate-hashes", "--no-annotate", "--custom-compile-command", command]
        if upgrade:
            options.append("--upgrade")
        done = subprocess.run(
            [uv.find_uv_bin(), "pip", "compile", *options, *target, "--output-file", str(output), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LockError(f"{source}: no lock could be made.\n{done.stderr.strip()}")
        text = output.read_text(encoding="utf-8")
    if check:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            raise LockError(f"{path} is not what {source.name} gives; run `{command}` and commit the result")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return path
