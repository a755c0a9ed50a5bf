"""Models: weights at a pinned hash, read-only, with a stamp that says what was verified."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .atomic import fsync_directory, read_json, write_json
from .wheels import adopt_files, missing_files

STAMP = "specswap-model.json"
_CHUNK_BYTES = 1 << 20


class ModelError(RuntimeError):
    """A model cannot be had or is not the wanted one; the message names the file and the way out."""


def ensure_model(spec: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Have `<models>/<name>-<first 12 digits of sha256>/<file>`, verified, read-only and stamped.

    `spec`: name, source ("wheel" or "path"), sha256 and size (bytes) of the model file, models, wheelhouse; for a
    wheel: wheel (file name), wheel_sha256 (optional), member (path inside), incoming (optional directory whose verified
    wheel is moved into the wheelhouse first); for a path: path (a file on this host).
    Result: changed, path, diff {before, after}, missing (wheels that the wheelhouse lacks: nothing was done then).
    A stamped file of the stamped size and time is taken as it is; one whose size or time changed is read again.
    Errors: ModelError, ValueError (an incoming wheel is not the pinned one), OSError.
    """
    for key in ("name", "source", "sha256", "size", "models"):
        if spec.get(key) in (None, ""):
            raise ModelError(f"model {spec.get('name', '?')}: specification lacks the key {key}")
    name, sha256, size = str(spec["name"]), str(spec["sha256"]), int(spec["size"])
    if spec["source"] not in ("wheel", "path"):
        raise ModelError(f"model {name}: unknown source {spec['source']!r} (known: wheel, path)")
    origin = str(spec["member"] if spec["source"] == "wheel" else spec["path"])
    folder = Path(spec["models"]) / f"{name}-{sha256[:12]}"
    file = folder / Path(origin).name
    result: dict[str, Any] = {"changed": False, "path": str(file), "diff": {"before": "", "after": ""}, "missing": []}
    if _is_intact(file, sha256, size, check):
        return result
    result["diff"] = {"before": f"{file}: absent\n", "after": f"{file}: {size} bytes, sha256 {sha256}\n"}
    if spec["source"] == "wheel":
        wanted = {str(spec["wheel"]): str(spec["wheel_sha256"])} if spec.get("wheel_sha256") else {}
        if spec.get("incoming") and not check:
            adopt_files(spec["incoming"], spec["wheelhouse"], wanted)
        if wanted:
            result["missing"] = missing_files(spec["wheelhouse"], wanted)
        elif not (Path(spec["wheelhouse"]) / str(spec["wheel"])).is_file():
            result["missing"] = [str(spec["wheel"])]
    elif not Path(origin).is_file():
        raise ModelError(f"model {name}: {origin} is not a file on this host; copy it there or correct `path`")
    if check:
        result["changed"] = True
    elif not result["missing"]:
        _install(spec, name, origin, folder, file, sha256, size)
        result["changed"] = True
    return result


def _is_intact(file: Path, sha256: str, size: int, check: bool) -> bool:
    """Whether `file` is the stamped, wanted one; a changed size or content is an error, never silently replaced.

    Where only the time had changed, the stamp gets the new one, so that nobody need read the file again.
    """
    try:
        stamp = read_json(file.parent / STAMP)
    except (FileNotFoundError, ValueError):
        return False
    if stamp.get("sha256") != sha256 or stamp.get("file") != file.name:
        return False
    way_out = f"remove {file.parent} (rm -r) and run site.yml to install it again"
    try:
        info = file.stat()
    except FileNotFoundError:
        return False
    if info.st_size != size:
        raise ModelError(f"{file}: has {info.st_size} bytes, was verified with {size}; {way_out}")
    if info.st_mtime_ns == stamp.get("mtime_ns"):
        return True
    with file.open("rb") as stream:
        found = _copy(stream, None)
    if found[0] != sha256:
        raise ModelError(f"{file}: sha256 is {found[0]}, was verified as {sha256}; {way_out}")
    if not check:
        write_json(file.parent / STAMP, {**stamp, "mtime_ns": info.st_mtime_ns}, 0o444)
    return True


def _install(spec: Mapping[str, Any], name: str, origin: str, folder: Path, file: Path, sha256: str, size: int) -> None:
    models = folder.parent
    models.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(models).free
    if free < size * 1.05:
        raise ModelError(
            f"model {name}: {size / 1e6:.0f} MB wanted in {models}, {free / 1e6:.0f} MB free; make room there"
        )
    building = models / f".building-{folder.name}"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        staged = building / file.name
        with staged.open("wb") as target:
            found = _read_wheel(spec, name, origin, target) if spec["source"] == "wheel" else _read_path(origin, target)
            target.flush()
            os.fsync(target.fileno())
        if found != (sha256, size):
            raise ModelError(
                f"model {name}: {origin} has sha256 {found[0]} and {found[1]} bytes, wanted {sha256} and {size};"
                " it is another revision or damaged: correct the inventory or fetch it again"
            )
        staged.chmod(0o444)
        stamp = {"schema": 1, "name": name, "sha256": sha256, "size": size, "file": file.name}
        stamp.update(source=spec["source"], origin=origin, mtime_ns=staged.stat().st_mtime_ns)
        write_json(building / STAMP, stamp, 0o444)
        building.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)  # only ever a torn one: an intact one ended before this
        building.rename(folder)
        fsync_directory(models)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _read_wheel(spec: Mapping[str, Any], name: str, member: str, target: IO[bytes]) -> tuple[str, int]:
    wheel = Path(spec["wheelhouse"]) / str(spec["wheel"])
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            return _copy(source, target)
    except KeyError:
        with zipfile.ZipFile(wheel) as archive:
            inside = ", ".join(sorted(entry for entry in archive.namelist() if ".dist-info/" not in entry)[:8])
        raise ModelError(f"model {name}: {wheel.name} has no member {member} (it has: {inside})") from None
    except zipfile.BadZipFile as error:
        raise ModelError(f"model {name}: {wheel}: {error}; remove it and run site.yml to send it again") from None


def _read_path(path: str, target: IO[bytes]) -> tuple[str, int]:
    with Path(path).open("rb") as source:
        return _copy(source, target)


def _copy(source: IO[bytes], target: IO[bytes] | None) -> tuple[str, int]:
    """Copy and hash in one pass; sha256 and size in bytes."""
    digest, size = hashlib.sha256(), 0
    for chunk in iter(lambda: source.read(_CHUNK_BYTES), b""):
        digest.update(chunk)
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest(), size
