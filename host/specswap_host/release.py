"""Releases: immutable environments, built from a lock and a wheelhouse alone, stamped when they hold."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import fsync_directory, read_json, sha256_bytes, sha256_file, write_bytes, write_json, write_text
from .lock import flock_within, open_private
from .procfs import named_by_processes
from .wheels import LockedPackage, adopt_files, fits_python, missing_files, package_of, parse_lock_text

__all__ = ["ReleaseError", "adopt_files", "ensure_release", "missing_files", "prune_releases", "verify_release"]

SCHEMA = 1
STAMP = "specswap-release.json"
MANIFEST = "specswap-files.txt"
# Mode bits that let others than the owner change a file that the owner vouches for.
WRITABLE = 0o022
_PYTHON_DIRS = ("/usr/local/bin", "/usr/bin")
# The service's user can enter neither, and both are hidden from the units.
_PRIVATE_DIRS = ("/root/", "/home/")
_NEWEST_MINOR = 19
# The largest builds (CUDA wheels of some GB on a slow disk) take minutes.
_BUILD_PATIENCE_S = 1800.0


class ReleaseError(RuntimeError):
    """A release cannot be built or trusted; the message names the file or package and the way out."""


@dataclass(frozen=True)
class _Spec:
    """The wanted release and where things lie; `wheels` is {wheel file name: sha256}."""

    release: str
    environment: str
    flavour: str
    minor: int
    lock_text: str
    packages: dict[str, LockedPackage]
    wheelhouse: Path
    wheels: dict[str, str]
    envs: Path
    uv: Path
    keep: int
    incoming: Path | None
    units_dir: Path
    slots_dir: Path
    state_dir: Path

    @property
    def path(self) -> Path:
        return self.envs / self.release

    @property
    def building(self) -> Path:
        return self.envs / f".building-{self.release}"


def _parse(spec: Mapping[str, Any]) -> _Spec:
    try:
        release, environment, lock_text = str(spec["release"]), str(spec["environment"]), str(spec["lock_text"])
        major, minor = (int(part) for part in str(spec["python"]).split("."))
        wheelhouse, envs, uv = Path(spec["wheelhouse"]), Path(spec["envs"]), Path(spec["uv"])
    except KeyError as error:
        raise ReleaseError(f"release specification lacks the key {error.args[0]}") from None
    except ValueError:
        raise ReleaseError(f"python {spec['python']!r} of release {release}: write it like 3.11") from None
    if major != 3:
        raise ReleaseError(f"python {spec['python']} of release {release}: only Python 3 is known")
    digest = sha256_bytes(lock_text.encode("utf-8"))
    if release != f"{environment}-{digest[:12]}":
        raise ReleaseError(
            f"release {release} does not name its lock: {environment} with this lock is {environment}-{digest[:12]};"
            " take both from the same checkout"
        )
    try:
        packages = parse_lock_text(lock_text)
    except ValueError as error:
        raise ReleaseError(f"lock of release {release}: {error}") from None
    return _Spec(
        release,
        environment,
        str(spec.get("flavour", "cpu")),
        minor,
        lock_text,
        packages,
        wheelhouse,
        dict(spec.get("wheels") or {}),
        envs,
        uv,
        max(1, int(spec.get("keep", 3))),
        Path(spec["incoming"]) if spec.get("incoming") else None,
        Path(spec.get("units_dir", "/etc/systemd/system")),
        Path(spec.get("slots_dir", "/etc/specswap/slots")),
        Path(spec.get("state_dir", "/var/lib/specswap")),
    )


def ensure_release(spec: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Have the release stamped at `<envs>/<release>`; nothing is done when it is and its files are as they were built.

    `spec`: release, environment, flavour, python ("3.11", the oldest that will do), lock_text, wheelhouse, wheels
    ({file name: sha256} of all wheels of the lock and of uv), envs, uv (path of the binary, made from its wheel), keep,
    and optionally incoming (a directory whose verified files are moved into the wheelhouse first).
    Result: changed, path, seconds, diff {before, after}, missing (wheel files that the wheelhouse lacks: nothing was
    built then), removed (old releases), python (version built with, or None). With `check` nothing on disk changes.
    Errors: ReleaseError, ValueError (an incoming file is not the locked one), OSError.
    """
    started = time.monotonic()
    want = _parse(spec)
    result: dict[str, Any] = {
        "changed": False,
        "path": str(want.path),
        "seconds": 0.0,
        "diff": {"before": "", "after": ""},
        "missing": [],
        "removed": [],
        "python": None,
    }
    stamp = _stamp_of(want.path)
    if stamp is not None:
        _trust(want, stamp)
        result["python"] = stamp["python"]
        result["removed"] = _prune(want, check)
    else:
        result["diff"] = {"before": f"{want.path}: absent\n", "after": _describe(want)}
        if want.incoming is not None and not check:
            adopt_files(want.incoming, want.wheelhouse, want.wheels)
        result["missing"] = missing_files(want.wheelhouse, want.wheels)
        if check:
            result["changed"] = True
        elif not result["missing"]:
            want.envs.mkdir(parents=True, exist_ok=True)
            with _only_one(want.envs / ".lock"):
                if _stamp_of(want.path) is None:  # another run may have built it while this one waited
                    result["python"] = _build(want)
                    result["changed"] = True
                result["removed"] = _prune(want, check)
    result["changed"] = bool(result["changed"] or result["removed"])
    result["seconds"] = round(time.monotonic() - started, 3)
    return result


def verify_release(path: Path, full: bool = False) -> list[str]:
    """What is not as it was built: texts that each name one file; empty when all is well.

    Quick: names, sizes, times and modes of all files, and the content of those whose time changed. Full: all contents.
    Errors: ReleaseError when the release has no readable manifest.
    """
    stamp = _stamp_of(path)
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
    except OSError as error:
        raise ReleaseError(f"{path / MANIFEST}: {error.strerror}; {_way_out(path)}") from error
    if stamp is None or stamp.get("files_sha256") != sha256_bytes(text.encode("utf-8")):
        return [f"{path / MANIFEST} is not the list that the release was stamped with"]
    problems = []
    present = dict(_walk(path))
    for line in text.splitlines():
        digest, size, mtime_ns, name = line.split(" ", 3)
        info = present.pop(name, None)
        if info is None:
            problems.append(f"{path / name} is gone")
        elif _is_link(info):
            if _digest(path / name, info) != digest:
                problems.append(f"{path / name} points elsewhere")
        elif info.st_mode & WRITABLE:
            problems.append(f"{path / name} may be written by others than its owner")
        elif info.st_size != int(size):
            problems.append(f"{path / name} has {info.st_size} bytes instead of {size}")
        elif (full or info.st_mtime_ns != int(mtime_ns)) and _digest(path / name, info) != digest:
            problems.append(f"{path / name} has other contents")
    # Python may have cached bytecode for an option that was not compiled for; that is no change of the release.
    added = [name for name in sorted(present) if not ("__pycache__/" in name and name.endswith(".pyc"))]
    problems += [f"{path / name} was added by hand" for name in added]
    return problems


def _trust(want: _Spec, stamp: Mapping[str, Any]) -> None:
    if stamp.get("lock_sha256") != sha256_bytes(want.lock_text.encode("utf-8")):
        raise ReleaseError(f"{want.path / STAMP}: built from another lock; {_way_out(want.path)}")
    problems = verify_release(want.path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ReleaseError(
            f"release {want.release} was changed after it was built: {problems[0]}{more}; {_way_out(want.path)}"
        )


def _way_out(path: Path) -> str:
    return (
        f"stop what runs from it, remove {path} (chmod -R u+w, rm -r) and run site.yml: it is built again from its lock"
    )


def _describe(want: _Spec) -> str:
    pins = "".join(f"  {pin.name}=={pin.version}\n" for pin in sorted(want.packages.values(), key=lambda p: p.name))
    return f"{want.path}:\n{pins}"


def _stamp_of(path: Path) -> dict[str, Any] | None:
    """The stamp of a finished release; None when there is none, or none that can be read: the build did not finish."""
    try:
        stamp = read_json(path / STAMP)
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and "lock_sha256" in stamp and "python" in stamp else None


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    fd = open_private(path)
    try:
        if not flock_within(fd, _BUILD_PATIENCE_S, poll_s=0.2):
            held = f"{path}: another run has built releases for {_BUILD_PATIENCE_S:g} s"
            raise ReleaseError(f"{held}; find it (fuser -v {path}) and run site.yml again")
        yield
    finally:
        os.close(fd)


def _build(want: _Spec) -> str:
    """Build, check, stamp and rename into place; the Python version. A torn older build is removed."""
    uv = _ensure_uv(want)
    python, version = _find_python(want)
    for torn in (want.building, want.path):
        _remove_tree(torn)
    cache = want.envs / f".cache-{want.release}"
    _remove_tree(cache)
    lock = want.envs / f".lock-{want.release}.txt"
    try:
        write_text(lock, want.lock_text)
        _run_uv(uv, cache, "venv", "--quiet", "--relocatable", "--python", python, str(want.building))
        # Hard links from a cache of this build alone, which goes afterwards: as safe as copies, at half of the writing.
        _run_uv(
            *(uv, cache, "pip", "sync", "--quiet", "--python", str(want.building / "bin" / "python")),
            *("--require-hashes", "--no-index", "--find-links", str(want.wheelhouse), "--only-binary", ":all:"),
            *("--compile-bytecode", "--link-mode", "hardlink", str(lock)),
        )
        packages = _check_imports(want)
        manifest = "".join(
            f"{_digest(want.building / name, info)} {info.st_size} {info.st_mtime_ns} {name}\n"
            for name, info in _walk(want.building)
        )
        write_text(want.building / MANIFEST, manifest)
        stamp = {
            "schema": SCHEMA,
            "release": want.release,
            "lock_sha256": sha256_bytes(want.lock_text.encode("utf-8")),
            "python": version,
            "flavour": want.flavour,
            "packages": packages,
            "built_at": time.time(),
            "files_sha256": sha256_bytes(manifest.encode("utf-8")),
        }
        os.sync()  # the stamp must not reach the disk before what it vouches for
        write_json(want.building / STAMP, stamp)
        _make_read_only(want.building)
        want.building.rename(want.path)
        fsync_directory(want.envs)
    except BaseException:
        _remove_tree(want.building)
        raise
    finally:
        _remove_tree(cache)
        lock.unlink(missing_ok=True)
    return version


def _ensure_uv(want: _Spec) -> Path:
    """The uv binary at its place, taken from the verified wheel; a note beside it says from which."""
    wheel = next((name for name in sorted(want.wheels) if package_of(name) == "uv"), None)
    note = want.uv.with_name("uv.json")
    if wheel is None:
        if not want.uv.is_file():
            raise ReleaseError(
                f"{want.uv} is missing and no wheel of uv is named; run `./specswap wheelhouse`, then site.yml"
            )
        return want.uv
    source = {"wheel": wheel, "sha256": want.wheels[wheel]}
    try:
        if want.uv.is_file() and read_json(note) == source:
            return want.uv
    except (OSError, ValueError):
        pass  # without a note its origin is unknown: take it anew
    with zipfile.ZipFile(want.wheelhouse / wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".data/scripts/uv")), None)
        if member is None:
            raise ReleaseError(f"{want.wheelhouse / wheel}: no uv binary inside; compile locks/uv.txt anew")
        want.uv.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(want.uv, archive.read(member), 0o755)
    write_json(note, source)
    return want.uv


def _find_python(want: _Spec) -> tuple[str, str]:
    """Path and full version of the newest Python of this host that is new enough and that all wheels fit."""
    seen = []
    for minor in range(_NEWEST_MINOR, want.minor - 1, -1):
        lacking = _without_wheel(want, minor)
        # Never PATH: what root runs here must come from folders that root alone writes.
        for directory in _PYTHON_DIRS:
            candidate = Path(directory) / f"python3.{minor}"
            if not candidate.is_file():
                continue
            real, version = _ask_python(candidate)
            if real is None or not version.startswith(f"3.{minor}."):
                continue
            if lacking:
                seen.append(f"{candidate} (no wheel of {', '.join(lacking)} for it)")
            elif real.startswith(_PRIVATE_DIRS):
                seen.append(f"{candidate} (in {real}, where the service's user may not go)")
            else:
                return str(candidate), version
    found = "; found " + "; ".join(seen) if seen else ""
    raise ReleaseError(
        f"release {want.release} needs Python 3.{want.minor} or newer in /usr/bin or /usr/local/bin{found}."
        f" Install one, e.g. apt-get install python3 (Debian 12, Ubuntu 24.04 or newer)"
    )


def _without_wheel(want: _Spec, minor: int) -> list[str]:
    """Packages of the lock for which no known wheel fits Python 3.`minor`; empty when no wheels are named."""
    if not want.wheels:
        return []
    fitting = {package_of(name) for name in want.wheels if fits_python(name, minor)}
    return sorted(want.packages.keys() - fitting)


def _ask_python(candidate: Path) -> tuple[str | None, str]:
    """Real path and version as the interpreter says; shims of version managers exist and fail."""
    code = "import os,sys,platform;print(os.path.realpath(sys.executable));print(platform.python_version())"
    try:
        done = subprocess.run(
            [str(candidate), "-I", "-c", code], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    lines = done.stdout.split("\n")
    return (lines[0], lines[1]) if done.returncode == 0 and len(lines) >= 2 else (None, "")


def _run_uv(uv: Path, cache: Path, *words: str) -> None:
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(cache),
        "LANG": "C.UTF-8",
        "UV_CACHE_DIR": str(cache),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    done = subprocess.run([str(uv), *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise ReleaseError(f"uv {words[0]} failed with status {done.returncode}:\n{lines}")


# Runs in the new environment: imports the top-level modules of every distribution, prints names, versions and failures.
_IMPORT_CHECK = """
import importlib, importlib.metadata as metadata, json, sys, traceback
packages, failed = {}, {}
for dist in metadata.distributions():
    name = dist.metadata["Name"]
    packages[name.lower().replace("_", "-").replace(".", "-")] = dist.version
    tops = set()
    for file in dist.files or ():
        parts = file.parts
        if parts[0].startswith("..") or parts[0].endswith((".dist-info", ".data", ".libs")):
            continue
        if len(parts) == 2 and parts[1] == "__init__.py":
            tops.add(parts[0])
        elif len(parts) == 1 and parts[0].endswith((".py", ".so")):
            tops.add(parts[0].split(".")[0])
    for top in sorted(tops):
        if top.isidentifier() and not top.startswith("_"):
            try:
                importlib.import_module(top)
            except BaseException:
                failed[top] = traceback.format_exc().strip().splitlines()[-1]
print("\\n" + json.dumps({"packages": packages, "failed": failed}))
"""


def _check_imports(want: _Spec) -> dict[str, str]:
    """Versions by canonical name as installed; ReleaseError when a module does not import or a pin is not there."""
    python = str(want.building / "bin" / "python")
    done = subprocess.run(
        [python, "-I", "-B", "-c", _IMPORT_CHECK], capture_output=True, text=True, timeout=600, check=False
    )
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ReleaseError(
            f"release {want.release}: the import check died with status {done.returncode}: {last}"
        ) from None
    if answer["failed"]:
        text = "; ".join(f"{name}: {why}" for name, why in sorted(answer["failed"].items()))
        raise ReleaseError(
            f"release {want.release} installs but does not import: {text}. The wheels do not fit this host"
            " (C library, CPU, driver) or lack a package: correct the lock's source and compile it again"
        )
    packages: dict[str, str] = answer["packages"]
    wrong = [pin.name for pin in want.packages.values() if packages.get(pin.name) != pin.version]
    if wrong:
        raise ReleaseError(f"release {want.release}: not installed at the locked version: {', '.join(sorted(wrong))}")
    return packages


def _is_link(info: os.stat_result) -> bool:
    return stat.S_ISLNK(info.st_mode)


def _walk(path: Path, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Relative name and lstat of every file and link below `path` but our own two, in sorted order."""
    with os.scandir(path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False) and prefix + entry.name not in (STAMP, MANIFEST):
            yield prefix + entry.name, entry.stat(follow_symlinks=False)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")


def _digest(path: Path, info: os.stat_result) -> str:
    """SHA-256 of a file's content or of a link's target."""
    return sha256_bytes(os.fsencode(path.readlink())) if _is_link(info) else sha256_file(path)


def _make_read_only(path: Path) -> None:
    for folder, _, files in os.walk(path):
        for name in files:
            file = Path(folder, name)
            if not file.is_symlink():
                file.chmod(0o555 if file.stat().st_mode & 0o111 else 0o444)
        Path(folder).chmod(0o555)


def _remove_tree(path: Path) -> None:
    """Remove a tree that may be read-only; none is fine."""
    if not path.is_dir() or path.is_symlink():
        return
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)
    shutil.rmtree(path)


def _prune(want: _Spec, check: bool) -> list[str]:
    return prune_releases(want.envs, want.environment, want.keep, want.units_dir, want.slots_dir, want.state_dir, check)


def prune_releases(
    envs: Path, environment: str, keep: int, units_dir: Path, slots_dir: Path, state_dir: Path, check: bool = False
) -> list[str]:
    """Remove all but the `keep` newest releases of `environment`; names of those removed (with `check`: to be removed).

    One that a unit, a registry file, a slot's state or a running process names is never removed.
    """
    dated = []
    for path in envs.glob(f"{environment}-*"):
        stamp = _stamp_of(path)
        if stamp is not None and path.name.rpartition("-")[0] == environment:
            dated.append((float(stamp.get("built_at", 0.0)), path))
    old = [path for _, path in sorted(dated, reverse=True)[keep:]]
    if not old:
        return []
    used = (
        _texts(units_dir.glob("*.service")) + _texts(slots_dir.glob("*.json")) + _texts(state_dir.glob("*/state.json"))
    )
    removable = [path for path in old if f"{path}/" not in used]
    running = named_by_processes(removable, ("cmdline", "maps"))
    removable = [path for path in removable if path not in running]
    for path in removable:
        if not check:
            grave = path.with_name(f".removing-{path.name}")
            path.rename(grave)  # gone as a release at once, however long the removal takes
            _remove_tree(grave)
    return sorted(path.name for path in removable)


def _texts(paths: Any) -> str:
    parts = []
    for path in paths:
        try:
            parts.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:
            continue  # the file went away while we looked
    return "\n".join(parts)
