"""The journal of a slot: one JSON line per event, appended and fsynced, read while it is written.

Everybody may read it. Writers take turns through `journal.lock` beside it, which root alone may open.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .lock import flock_within, open_private

SCHEMA = 1
Event = dict[str, Any]
# An append takes milliseconds: whoever holds the lock for longer is stuck on a dead disk.
LOCK_PATIENCE_S = 10.0
# Some hundred events: how a job gave the slot back, and how it ended.
RESERVE_BYTES = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TAIL = 1 << 16


class JournalError(Exception):
    """An event could not be made durable; the message names the file and the way out."""


def unfinished(events: Iterable[Event]) -> list[str]:
    """Jobs that were accepted and have no end, oldest first: one may run, the others broke off."""
    found: dict[str, None] = {}
    for event in events:
        if event["event"] == "job_accepted":
            found[event["job"]] = None
        elif event["event"] == "job_finished":
            found.pop(event["job"], None)
    return list(found)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Journal:
    """Append-only events of one slot. Several processes may append: each append holds the journal's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boot = _boot_id()
        self._started: dict[str, float] = {}

    def append(self, job: str, event: str, tier: int | None = None, **detail: Any) -> Event:
        """Write one event and return it once it is on disk. `detail` also gets `elapsed_s` since the job's first event.

        Raises `JournalError` when the disk is full, the file cannot be written or another writer does not let go of it;
        no torn line is left behind.
        """
        lock_path, lock, fd = self.path.with_name("journal.lock"), -1, -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open_private(lock_path)
            if not flock_within(lock, LOCK_PATIENCE_S, poll_s=0.005):
                held = f"{lock_path}: held by another process for {LOCK_PATIENCE_S:g} s"
                raise JournalError(f"{held}; find it (fuser -v {lock_path}) and run the job again")
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            seq, cut = self._repair(fd)
            if cut:
                seq += 1
                self._write(fd, self._record(seq, job, "journal_repaired", None, {"cut_bytes": cut}))
            record = self._record(seq + 1, job, event, tier, detail)
            self._write(fd, record)
            return record
        except OSError as error:
            raise self._error(error) from error
        finally:
            for one in (fd, lock):
                if one >= 0:
                    os.close(one)

    def append_at_last(self, job: str, event: str, tier: int | None = None, **detail: Any) -> Event:
        """As `append`, but where the disk is full the reserve is given up for it: for events that must be told."""
        try:
            return self.append(job, event, tier, **detail)
        except JournalError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _FULL:
                raise
            try:
                self._reserve.unlink()
            except OSError:
                raise error from error.__cause__
            return self.append(job, event, tier, **detail)

    def reserve(self) -> None:
        """Set space aside for the events of a job that meets a full disk; without any space left, nothing is done."""
        try:
            fd = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            # A part of it would only be in the way of others.
            with contextlib.suppress(OSError):
                self._reserve.unlink()

    @property
    def _reserve(self) -> Path:
        return self.path.with_name("journal.reserve")

    def read(self, after_seq: int = 0, job: str | None = None) -> list[Event]:
        """Events with `seq` > `after_seq`, of one job or of all; a torn last line is left out."""
        return [
            event for event in self._events() if event["seq"] > after_seq and (job is None or event.get("job") == job)
        ]

    def last_seq(self) -> int:
        """`seq` of the last event, 0 for an empty journal."""
        try:
            with self.path.open("rb") as stream:
                return self._last_seq(stream.fileno())[0]
        except FileNotFoundError:
            return 0

    def follow(self, job: str, after_seq: int = 0, wait_s: float = 0.0, poll_s: float = 0.05) -> list[Event]:
        """Events of `job` after `after_seq`; waits up to `wait_s` seconds for at least one."""
        deadline = time.monotonic() + wait_s
        size = -1
        while True:
            try:
                now_size = self.path.stat().st_size
            except FileNotFoundError:
                now_size = 0
            if now_size != size:
                size = now_size
                events = self.read(after_seq, job)
                if events:
                    return events
            if time.monotonic() >= deadline:
                return []
            time.sleep(poll_s)

    def _events(self) -> Iterator[Event]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        for line in data.split(b"\n"):
            with contextlib.suppress(ValueError):
                event = json.loads(line) if line else None
                if isinstance(event, dict) and isinstance(event.get("seq"), int):
                    yield event

    def _record(self, seq: int, job: str, event: str, tier: int | None, detail: dict[str, Any]) -> Event:
        now = time.monotonic()
        if job not in self._started:
            # Elapsed time runs across processes (submit, run, benchmark) but not across boots.
            first = next((e for e in self._events() if e.get("job") == job and e.get("boot") == self._boot), None)
            self._started[job] = float(first["t_mono"]) if first else now
        return {
            "schema": SCHEMA,
            "seq": seq,
            "t_wall": round(time.time(), 3),
            "t_mono": round(now, 3),
            "boot": self._boot,
            "job": job,
            "event": event,
            "tier": tier,
            "detail": {**detail, "elapsed_s": round(max(0.0, now - self._started[job]), 3)},
        }

    def _write(self, fd: int, record: Event) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str).encode(
            "utf-8", "backslashreplace"
        )
        line += b"\n"
        size = os.fstat(fd).st_size
        try:
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise

    def _repair(self, fd: int) -> tuple[int, int]:
        """Cut a torn last line; returns the last seq and the number of bytes cut."""
        size = os.fstat(fd).st_size
        seq, end = self._last_seq(fd)
        if end < size:
            os.ftruncate(fd, end)
        return seq, size - end

    def _last_seq(self, fd: int) -> tuple[int, int]:
        """The last readable event's seq and the offset behind it, looking back from the end in growing steps."""
        size = os.fstat(fd).st_size
        span = _TAIL
        while True:
            start = max(0, size - span)
            data = os.pread(fd, size - start, start)
            end = size
            if not data.endswith(b"\n"):
                data = data[: data.rfind(b"\n") + 1]
                end = start + len(data)
            while data:
                begin = data.rfind(b"\n", 0, len(data) - 1) + 1
                if begin == 0 and start > 0:
                    break
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    return int(json.loads(data[begin:])["seq"]), end
                # A whole line that is no event is damage too (a block of zeros after a power loss).
                end = start + begin
                data = data[:begin]
            if start == 0:
                return 0, end if data else 0
            span *= 8

    def _error(self, error: OSError) -> JournalError:
        fix = "free some space there" if error.errno in _FULL else "check its permissions"
        return JournalError(f"{self.path}: cannot append ({error.strerror or error}); {fix} and run the job again")
