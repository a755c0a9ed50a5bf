"""The toolkit's way to a host: packed on the controller, unpacked into folders named after their content."""

from __future__ import annotations

import base64
import compileall
import gzip
import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .atomic import fsync_directory, write_text
from .procfs import named_by_processes

LIB_SOURCES = ("host/specswap_host", "bench/specswap_bench")
_KEEP_LIBS = 3
_HASH_DIGITS = 12
_IGNORED = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")

# The tree is resolved once, so that a command never mixes two of them; -I keeps the caller's folder and variables out.
DOOR = """#!/bin/sh
# Door to the toolkit: the tree that {lib}/current points to, with the host's own Python.
tree=$(readlink -f {lib}/current) && [ -d "$tree/specswap_host" ] || {{
  echo "specswap-host: {lib}/current is broken; run site.yml to install the toolkit again" >&2
  exit 1
}}
exec /usr/bin/python3 -I -B -c 'import sys
sys.path.insert(0, sys.argv.pop(1))
from specswap_host.cli import main
sys.exit(main())' "$tree" "$@"
"""


class ToolkitError(RuntimeError):
    """The payload is not what its names say; the message says what to do."""


def tree_hash(path: Path) -> str:
    """12 hex digits over the relative names and contents of all files below `path`, caches left out.

    Errors: FileNotFoundError when there is no such directory or nothing in it.
    """
    digest = hashlib.sha256()
    empty = True
    for name, file in _files(path):
        empty = False
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    if empty:
        raise FileNotFoundError(f"no files below {path}")
    return digest.hexdigest()[:_HASH_DIGITS]


def build_payload(root: Path) -> dict[str, Any]:
    """Pack `host/`, `bench/` and each `engines/<engine>/` below `root`: {"payload_b64": tar.gz, "trees": {tree: hash}}.

    Trees are "lib" and "engines/<engine>". The same content gives the same bytes, whoever packs it and whenever.
    """
    engines = sorted(path for path in (root / "engines").iterdir() if path.is_dir() and any(_files(path)))
    trees = {f"engines/{path.name}": tree_hash(path) for path in engines}
    sources = [(f"engines/{path.name}", path) for path in engines]
    libs = [root / source for source in LIB_SOURCES]
    trees["lib"] = _lib_hash(libs)
    sources += [(f"lib/{path.name}", path) for path in libs]
    tarball = io.BytesIO()
    with tarfile.open(fileobj=tarball, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for prefix, path in sources:
            for name, file in _files(path):
                content = file.read_bytes()
                entry = tarfile.TarInfo(f"{prefix}/{name}")
                entry.size = len(content)
                entry.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                archive.addfile(entry, io.BytesIO(content))
    packed = gzip.compress(tarball.getvalue(), 9, mtime=0)
    return {"payload_b64": base64.b64encode(packed).decode("ascii"), "trees": dict(sorted(trees.items()))}


def install_trees(spec: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Have every tree of the payload in its folder, `lib/current` on the wanted one, and the door in place.

    `spec`: payload_b64 and trees as `build_payload` makes them; optionally base (default /opt/specswap) and door
    (default /usr/local/bin/specswap-host). Result: changed, path (the lib tree), diff {before, after}, removed (old lib
    trees).
    Errors: ToolkitError when content and name differ, OSError.
    """
    if not spec.get("payload_b64") or not spec.get("trees"):
        raise ToolkitError("no payload: this module is called through its action plugin, which packs it")
    trees: dict[str, str] = dict(spec["trees"])
    base, door = Path(spec.get("base") or "/opt/specswap"), Path(spec.get("door") or "/usr/local/bin/specswap-host")
    lib, current = base / "lib" / trees["lib"], base / "lib" / "current"
    targets = {tree: lib if tree == "lib" else base / f"{tree}-{digest}" for tree, digest in trees.items()}
    # A tree that was edited in place no longer has the content that its name promises: it is replaced.
    absent = {tree: path for tree, path in targets.items() if _installed_hash(tree, path) != trees[tree]}
    door_text = DOOR.format(lib=base / "lib")
    before, after = [], []
    for tree, path in sorted(absent.items()):
        before.append(f"{path}: {'edited by hand' if path.is_dir() else 'absent'}")
        after.append(f"{path}: {tree}")
    now = str(current.readlink()) if current.is_symlink() else "absent"
    if now != lib.name:
        before.append(f"{current}: {now}")
        after.append(f"{current}: {lib.name}")
    if not door.is_file() or door.read_text(encoding="utf-8") != door_text:
        before.append(f"{door}: {'other text' if door.is_file() else 'absent'}")
        after.append(f"{door}: door to {current}")
    changed = bool(after)
    removed: list[str] = []
    if changed and not check:
        if absent:
            _unpack(base64.b64decode(spec["payload_b64"]), trees, absent)
        if now != lib.name:
            fresh = current.with_name(".current.new")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(lib.name)
            fresh.replace(current)
            fsync_directory(current.parent)
        door.parent.mkdir(parents=True, exist_ok=True)
        if not door.is_file() or door.read_text(encoding="utf-8") != door_text:
            write_text(door, door_text, 0o755)
        removed = _prune_libs(base / "lib", lib)
    diff = {"before": "".join(f"{line}\n" for line in before), "after": "".join(f"{line}\n" for line in after)}
    return {"changed": changed, "path": str(lib), "diff": diff, "removed": removed}


def _lib_hash(packages: list[Path]) -> str:
    together = "\n".join(f"{path.name} {tree_hash(path)}" for path in packages)
    return hashlib.sha256(together.encode()).hexdigest()[:_HASH_DIGITS]


def _installed_hash(tree: str, path: Path) -> str | None:
    """The hash of a tree as it lies at `path`; None when it is not there or not whole."""
    try:
        return _lib_hash([path / Path(source).name for source in LIB_SOURCES]) if tree == "lib" else tree_hash(path)
    except FileNotFoundError:
        return None


def _unpack(packed: bytes, trees: Mapping[str, str], absent: Mapping[str, Path]) -> None:
    """Write the absent trees beside their places, compile them, check them against their names, rename them."""
    building = {tree: path.with_name(f".building-{path.name}") for tree, path in absent.items()}
    for folder in building.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for entry in archive:
            tree = next((tree for tree in building if entry.name.startswith(f"{tree}/")), None)
            if tree is None:
                continue
            name = Path(entry.name[len(tree) + 1 :])
            source = archive.extractfile(entry)
            if source is None or name.is_absolute() or ".." in name.parts:
                raise ToolkitError(f"payload: {entry.name!r} is not a plain file inside a tree")
            target = building[tree] / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())
            target.chmod(0o755 if entry.mode & 0o100 else 0o644)
    for tree, folder in building.items():
        digest = _installed_hash(tree, folder)
        if digest != trees[tree]:
            raise ToolkitError(f"payload: tree {tree} has the hash {digest}, wanted {trees[tree]}; run the play again")
        # Compiled for the final path, so that tracebacks name files that exist.
        compileall.compile_dir(folder, quiet=2, stripdir=str(folder), prependdir=str(absent[tree]))
        _open_for_reading(folder)
        edited = absent[tree].with_name(f".removing-{absent[tree].name}")
        shutil.rmtree(edited, ignore_errors=True)
        if absent[tree].is_dir():
            absent[tree].rename(edited)
        folder.rename(absent[tree])
        shutil.rmtree(edited, ignore_errors=True)
        fsync_directory(absent[tree].parent)


def _open_for_reading(folder: Path) -> None:
    """The service's user reads these trees whatever the caller's umask was."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _prune_libs(folder: Path, current: Path) -> list[str]:
    """Remove old lib trees: neither the current one, nor the newest two others, nor one that a process runs from.

    A job keeps the tree it was started with: the door has it in its command line, a job's unit in PYTHONPATH.
    """
    trees = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and path.name[0] != "."]
    trees.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    old = [path for path in trees if path != current][_KEEP_LIBS - 1 :]
    running = named_by_processes(old, ("cmdline", "environ"))
    old = [path for path in old if path not in running]
    for path in old:
        shutil.rmtree(path)
    return sorted(path.name for path in old)


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every file below `path`, sorted by name, caches left out."""
    for file in sorted(path.rglob("*"), key=lambda entry: entry.relative_to(path).as_posix()):
        relative = file.relative_to(path)
        if file.is_file() and file.suffix != ".pyc" and not any(part in _IGNORED for part in relative.parts):
            yield relative.as_posix(), file
