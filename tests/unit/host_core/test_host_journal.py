"""The journal stays whole: torn lines, several writers, full disks, readers that wait."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from specswap_host import journal as journals
from specswap_host.journal import RESERVE_BYTES, Journal, JournalError


def test_events_count_up_and_can_be_read_by_job(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "slot" / "journal.jsonl")
    journal.append("one", "job_accepted", user="ops")
    journal.append("two", "job_accepted")
    last = journal.append("one", "tier_passed", 2, seconds=1.5)
    assert last["seq"] == 3 and last["tier"] == 2 and last["detail"]["seconds"] == 1.5
    assert [e["seq"] for e in journal.read()] == [1, 2, 3]
    assert [e["event"] for e in journal.read(job="one")] == ["job_accepted", "tier_passed"]
    assert [e["seq"] for e in journal.read(after_seq=2)] == [3]
    assert journal.last_seq() == 3


def test_a_new_process_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append("one", "job_accepted")
    assert Journal(path).append("one", "lock_taken")["seq"] == 2


@pytest.mark.parametrize("tail", [b'{"seq": 2, "ev', b"\0" * 300, b"not json\n", b'{"no": "seq"}\n'])
def test_torn_last_line_is_cut_and_told(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append("one", "job_accepted")
    with path.open("ab") as stream:
        stream.write(tail)
    assert [e["seq"] for e in Journal(path).read()] == [1], "a reader leaves the torn line out"
    journal = Journal(path)
    assert journal.append("one", "lock_taken")["seq"] == 3
    events = journal.read()
    assert [e["event"] for e in events] == ["job_accepted", "journal_repaired", "lock_taken"]
    assert events[1]["detail"]["cut_bytes"] == len(tail)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_only_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"seq": 1')
    journal = Journal(path)
    journal.append("one", "job_accepted")
    assert [e["seq"] for e in journal.read()] == [1, 2]


def test_last_event_longer_than_the_tail_window(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("one", "small")
    journal.append("one", "big", text="x" * 200_000)
    assert Journal(journal.path).last_seq() == 2
    assert journal.append("one", "next")["seq"] == 3
    assert len(journal.read()) == 3


def test_several_processes_append_without_a_gap_or_a_double(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import sys; from pathlib import Path; from specswap_host.journal import Journal\n"
        f"j = Journal(Path({str(path)!r}))\n"
        "for _ in range(30): j.append(sys.argv[1], 'x')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [e["seq"] for e in Journal(path).read()] == list(range(1, 61))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_a_clear_error_and_leaves_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("one", "job_accepted")
    real = os.write

    def half(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(JournalError, match=r"journal\.jsonl: cannot append \(No space left on device\); free"):
        journal.append("one", "lock_taken")
    monkeypatch.undo()
    assert journal.append("one", "lock_taken")["seq"] == 2


def test_the_reserve_holds_the_last_events_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("one", "job_accepted")
    journal.reserve()
    reserve = tmp_path / "journal.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES, "really allocated, not a hole"
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError):
        journal.append("one", "tier_passed")
    assert journal.append_at_last("one", "job_finished", outcome="rolled_back")["seq"] == 2
    assert [e["event"] for e in Journal(journal.path).read()] == ["job_accepted", "job_finished"]


def test_a_full_disk_without_a_reserve_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "journal.jsonl")
    monkeypatch.setattr(os, "posix_fallocate", full)
    journal.reserve()
    assert not (tmp_path / "journal.reserve").exists(), "half a reserve would only fill the disk further"
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError, match="No space left"):
        journal.append_at_last("one", "job_finished")


def test_follow_wakes_up_for_a_new_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    threading.Timer(0.2, lambda: journal.append("one", "job_accepted")).start()
    start = time.monotonic()
    events = journal.follow("one", 0, wait_s=5.0)
    assert [e["event"] for e in events] == ["job_accepted"]
    assert time.monotonic() - start < 2.0


def test_follow_gives_up_after_its_time(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").follow("one", 0, wait_s=0.1) == []


def test_elapsed_time_runs_across_writers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append("one", "job_accepted")
    time.sleep(0.05)
    assert Journal(path).append("one", "lock_taken")["detail"]["elapsed_s"] >= 0.05


def test_a_writer_that_never_lets_go_is_named_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LOCK_PATIENCE_S", 0.1)
    journal = Journal(tmp_path / "journal.jsonl")
    with (tmp_path / "journal.lock").open("w") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with pytest.raises(JournalError, match=r"journal\.lock: held by another process .*; find it \(fuser -v "):
            journal.append("one", "job_accepted")
    assert journal.append("one", "job_accepted")["seq"] == 1
    assert (tmp_path / "journal.lock").stat().st_mode & 0o777 == 0o600
