"""One job per slot: flock on `<slot>/lock`, with a record of who holds it.

flock asks for no more than read access, so a lock file that everybody may open is one that everybody may hold for ever.
All lock files are therefore the business of root alone (mode 0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def open_private(path: Path) -> int:
    """A descriptor of the lock file `path`, made when missing, that its owner alone may open. Errors: OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            os.fchmod(fd, 0o600)  # made by an earlier version
    except OSError:
        os.close(fd)
        raise
    return fd


def flock_within(fd: int, seconds: float, poll_s: float = 0.05) -> bool:
    """Take the lock of `fd` alone, trying for at most `seconds`; False when another process holds it all that time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_s)


@dataclass(frozen=True)
class Owner:
    """Who holds, or last held, the lock; `started` is Unix time. `job` is empty for one that holds it in passing."""

    pid: int
    job: str
    user: str = ""
    host: str = ""
    command: str = ""
    started: float = 0.0

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.started)

    def describe(self) -> str:
        what = f"job {self.job}" if self.job else "a change"
        who = f"{self.user or '?'}@{self.host or '?'}"
        pid = f", pid {self.pid}" if self.pid else ""
        return f"{what} of {who} ({self.command or '?'}){pid}, for {self.age_s:.0f} s"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "age_s": round(self.age_s, 1)}


def in_passing(command: str) -> Owner:
    """This process as an owner without a job: it changes what the slot's jobs read, and lets go."""
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or str(os.getuid())
    return Owner(os.getpid(), "", user, socket.gethostname(), command, time.time())


class LockBusy(Exception):
    """Another job holds the slot; `owner` is None when its record is unreadable."""

    def __init__(self, path: Path, owner: Owner | None) -> None:
        self.owner = owner
        who = f"{path} is locked"
        if owner is not None:
            who = owner.describe()
            if owner.job:
                slot = path.parent.name
                who += f"; wait for it (watch it: specswap-host follow --slot {slot} --job {owner.job} --wait 600)"
                who += f"; only if it hangs, end it by force: specswap-host swap VARIANT --break-lock {owner.job}"
        super().__init__(f"the slot is busy: {who}")


class SlotLock:
    """The kernel releases the lock with its holder, so a dead owner can only leave a record behind.

    After `acquire`, `leftover` is the record of an owner that ended without releasing, or None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.leftover: Owner | None = None
        self._fd = -1

    def acquire(self, owner: Owner) -> SlotLock:
        """Take the lock or raise `LockBusy` with the present owner, within a quarter of a second.

        The short patience is for `holder`, which itself holds a shared lock for an instant.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = open_private(self.path)
        if not flock_within(fd, 0.25):
            record = _read(fd)
            os.close(fd)
            raise LockBusy(self.path, record)
        self._fd = fd
        self.leftover = _read(fd)
        # The record is information only: a full disk must not keep anybody from the lock itself.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(owner)).encode(), 0)
        return self

    def fileno(self) -> int:
        """The locked descriptor; a child that inherits it keeps the slot locked for as long as it lives."""
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> SlotLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> Owner | None:
    """The live owner of the lock, or None when it is free or the caller may not look (who is not root); never waits."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _read(fd) or Owner(0, "?")
    finally:
        os.close(fd)


def has_open(path: Path, pid: int) -> bool:
    """Whether process `pid` has the lock file open: a record alone may name a process that is another one by now."""
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if entry.samefile(path):
                return True
    return False


def _read(fd: int) -> Owner | None:
    try:
        data = json.loads(os.pread(fd, 65536, 0) or b"null")
        return Owner(**data) if data else None
    except (OSError, ValueError, TypeError):
        return None
