"""What dead processes leave in /dev/shm: found and removed once a slot has been handed over.

A segment goes only when nobody can still want it: a regular file of the service's user, held open or mapped by no
process, whose maker is gone. The maker is the pid at the end of the file's name; where the name has none, no process
of that user may live at all. Segments of root, and whatever cannot be judged, stay.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterable
from pathlib import Path

_PID = re.compile(r"[_.-](\d{2,7})\Z")


def sweep_shm(user: str, shm: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> list[str]:
    """Remove the leftovers of `user`; their paths, as they were before. Errors leave a file where it is."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return []
    return sweep(uid, shm, proc) if uid else []


def sweep(uid: int, shm: Path, proc: Path) -> list[str]:
    """See `sweep_shm`."""
    candidates = [path for path in _files(shm) if _is_ours(path, uid)]
    if not candidates:
        return []
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    used, blind = _in_use(proc, pids, shm)
    if blind:
        return []
    user_lives = any(_owner(proc / str(pid)) == uid for pid in pids)
    removed = []
    for path in candidates:
        maker = _PID.search(path.name)
        gone = int(maker.group(1)) not in pids if maker else not user_lives
        if gone and str(path) not in used:
            try:
                path.unlink()
            except OSError:
                continue
            removed.append(str(path))
    return removed


def _files(shm: Path) -> list[Path]:
    try:
        return sorted(shm.iterdir())
    except OSError:
        return []


def _is_ours(path: Path, uid: int) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == uid


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _in_use(proc: Path, pids: Iterable[int], shm: Path) -> tuple[set[str], bool]:
    """(paths below `shm` that a process holds open or mapped, whether a live process could not be looked into)."""
    used: set[str] = set()
    blind = False
    for pid in pids:
        folder = proc / str(pid)
        try:
            for name in os.listdir(folder / "fd"):  # noqa: PTH208
                target = _link(folder / "fd" / name)
                if target.startswith(f"{shm}/"):
                    used.add(target)
            for line in (folder / "maps").read_text(errors="replace").splitlines():
                _, found, rest = line.partition(f" {shm}/")
                if found:
                    used.add(f"{shm}/{rest}")
        except PermissionError:
            blind = True
        except OSError:
            continue  # it has just ended
    return used, blind


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""
