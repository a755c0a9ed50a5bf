"""Locks and wheels as files: what a lock names, which wheel fits which Python, what is missing, what may come in."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .atomic import fsync_directory, sha256_file

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PYTHON_TAG = re.compile(r"^(py|cp)3(\d*)$")


@dataclass(frozen=True)
class LockedPackage:
    """One pin: canonical name, version and the SHA-256 (64 hex digits) of each file that may stand for it."""

    name: str
    version: str
    sha256: frozenset[str]


def canonical_name(name: str) -> str:
    """The package name as indexes and wheels compare it: lower case, runs of `-_.` as one `-`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock_text(text: str) -> dict[str, LockedPackage]:
    """The pins of a lock by canonical name. Errors: ValueError for a line without exact pin or without a hash."""
    packages: dict[str, LockedPackage] = {}
    for line in (line.strip() for line in text.replace("\\\n", " ").splitlines()):
        if not line or line.startswith("#"):
            continue
        pin, hashes = _PIN.match(line), frozenset(_HASH.findall(line))
        if pin is None or not hashes:
            raise ValueError(f"not an exact pin with hashes: {line[:80]!r}; compile the lock anew, never edit it")
        name = canonical_name(pin["name"])
        packages[name] = LockedPackage(name, pin["version"], hashes)
    if not packages:
        raise ValueError("the lock names no package; compile it anew")
    return packages


def package_of(wheel: str) -> str:
    """The canonical package name in a wheel's file name."""
    return canonical_name(wheel.split("-", 1)[0])


def _tags(wheel: str) -> tuple[list[str], list[str]]:
    parts = wheel[: -len(".whl")].split("-")
    if not wheel.endswith(".whl") or len(parts) < 5:
        raise ValueError(f"{wheel} is not a wheel's file name")
    return parts[-3].split("."), parts[-2].split(".")


def bound_to_one_python(wheel: str) -> bool:
    """Whether a wheel, by its file name, is for one minor version of Python only."""
    pythons, abis = _tags(wheel)
    return "abi3" not in abis and not any(tag.startswith("py") for tag in pythons)


def fits_python(wheel: str, minor: int) -> bool:
    """Whether a wheel, by its file name, can be installed into CPython 3.`minor`."""
    pythons, abis = _tags(wheel)
    for tag in pythons:
        match = _PYTHON_TAG.match(tag)
        if match is None:
            continue
        wanted = int(match[2]) if match[2] else 0
        if wanted == minor or (wanted <= minor and (match[1] == "py" or "abi3" in abis)):
            return True
    return False


def missing_files(directory: str | os.PathLike[str], wanted: Mapping[str, str]) -> list[str]:
    """Names in `wanted` ({file name: sha256}) that `directory` lacks or holds with other contents, sorted."""
    folder = Path(directory)
    return sorted(
        name for name, sha256 in wanted.items() if not (folder / name).is_file() or sha256_file(folder / name) != sha256
    )


def adopt_files(
    incoming_dir: str | os.PathLike[str], directory: str | os.PathLike[str], wanted: Mapping[str, str]
) -> list[str]:
    """Move files of `incoming_dir` that `wanted` ({file name: sha256}) names into `directory`, mode 0644; their names.

    All are verified before the first one moves. Errors: ValueError for a wrong hash; it names the file and both hashes.
    """
    source, target = Path(incoming_dir), Path(directory)
    names = sorted(name for name in wanted if (source / name).is_file())
    for name in names:
        found = sha256_file(source / name)
        if found != wanted[name]:
            raise ValueError(
                f"{source / name}: sha256 is {found}, wanted {wanted[name]}; the copy is damaged or"
                " not the locked file: run `./specswap wheelhouse` on the controller and try again"
            )
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        _move(source / name, target / name)
    if names:
        fsync_directory(target)
    return names


def _move(source: Path, target: Path) -> None:
    """Rename, also from another file system; `target` appears complete or not at all."""
    staged = target.with_name(f".{target.name}.incoming")
    try:
        source.rename(staged)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, staged)
        source.unlink()
    with staged.open("rb") as stream:
        os.fsync(stream.fileno())
    staged.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(staged, 0, 0)
    staged.replace(target)
