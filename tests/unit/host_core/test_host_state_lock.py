"""State that is old or new, and a lock that tells its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_doubles import service_dict
from specswap_host import state as states
from specswap_host.journal import Journal
from specswap_host.lock import LockBusy, Owner, SlotLock, holder, in_passing
from specswap_host.plan import Service
from specswap_host.state import Active, State, StateError


def test_state_round_trip(tmp_path: Path) -> None:
    service = Service.from_dict(service_dict(tmp_path, "a"))
    other = Service.from_dict(service_dict(tmp_path, "b"))
    state = State("smoke", Active(service, 12.5, "job", "inv", (0, 1, 2, 3, 4)), other)
    path = tmp_path / "slot" / "state.json"
    states.save(path, state)
    assert states.load(path, "smoke") == state
    assert set(json.loads(path.read_text())) == {"schema", "slot", "active", "previous"}


def test_no_file_is_an_empty_state(tmp_path: Path) -> None:
    assert states.load(tmp_path / "state.json", "smoke") == State("smoke")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "not a state file"),
        ('{"schema": 2, "slot": "smoke"}', "schema 2 is newer"),
        ('{"schema": 1, "slot": "other", "active": null, "previous": null}', "belongs to slot 'other'"),
        ('{"schema": 1, "slot": "smoke", "active": {"service": {}}, "previous": null}', "active.service"),
        ('{"schema": 1, "slot": "smoke", "active": null}', "not a state file"),
    ],
)
def test_bad_state_names_file_and_way_out(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError) as caught:
        states.load(path, "smoke")
    assert str(path) in str(caught.value) and words in str(caught.value)
    assert "mv " in str(caught.value) or "site.yml" in str(caught.value)


def test_second_owner_is_told_who_holds_the_slot(tmp_path: Path) -> None:
    path = tmp_path / "slot" / "lock"
    owner = Owner(os.getpid(), "job-1", "ops", "laptop", "ansible-playbook swap.yml", time.time() - 30)
    assert holder(path) is None
    with SlotLock(path).acquire(owner) as lock:
        assert lock.leftover is None
        with pytest.raises(LockBusy) as caught:
            SlotLock(path).acquire(Owner(1, "job-2"))
        assert caught.value.owner == owner
        assert "ops@laptop" in str(caught.value) and "swap.yml" in str(caught.value) and "30 s" in str(caught.value)
        assert holder(path) == owner
    assert holder(path) is None
    with SlotLock(path).acquire(Owner(1, "job-2")) as lock:
        assert lock.leftover is None, "a released lock leaves no record"


def test_dead_owner_is_taken_over_and_said(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import os, time; from pathlib import Path; from specswap_host.lock import *\n"
        f"lock = SlotLock(Path({str(path)!r})).acquire(Owner(os.getpid(), 'dead-job', 'ann', 'desk', 'swap', 1.0))\n"
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    live = holder(path)
    assert live is not None and live.job == "dead-job"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with SlotLock(path).acquire(Owner(os.getpid(), "next")) as lock:
        assert lock.leftover is not None and lock.leftover.job == "dead-job" and lock.leftover.pid == process.pid


def test_a_child_that_inherits_the_lock_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = SlotLock(path).acquire(Owner(os.getpid(), "parent"))
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fileno(),))
    try:
        os.close(lock.fileno())  # what the kernel does when the parent is killed
        with pytest.raises(LockBusy):
            SlotLock(path).acquire(Owner(1, "other"))
    finally:
        child.kill()
        child.wait()
    SlotLock(path).acquire(Owner(1, "other")).release()


def test_nobody_but_the_owner_may_open_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("")
    path.chmod(0o644)
    with SlotLock(path).acquire(Owner(1, "job")):
        assert path.stat().st_mode & 0o777 == 0o600, "a lock of an earlier version keeps its mode"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_ordinary_user_cannot_block_the_slot(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("job", "job_accepted")
    with SlotLock(tmp_path / "lock").acquire(Owner(1, "job")):
        pass
    code = (
        "import fcntl, os, sys\nos.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "for name in ('lock', 'journal.lock', 'journal.jsonl'):\n"
        "    try: held = open(name); fcntl.flock(held, fcntl.LOCK_EX); globals()[name] = held; print('held', name)\n"
        "    except PermissionError: pass\n"
        "print('tried', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)  # the test's own folders; those of a slot are open to all
    tmp_path.chmod(0o755)
    user = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout is not None
        said = list(iter(user.stdout.readline, "tried\n"))
        assert said == ["held journal.jsonl\n"], "what everybody may read, everybody can lock"
        began = time.monotonic()
        SlotLock(tmp_path / "lock").acquire(Owner(1, "next")).release()
        assert journal.append("job", "lock_taken")["seq"] == 2
        assert time.monotonic() - began < 2
    finally:
        user.communicate("", timeout=10)


def test_an_owner_without_a_job_is_told_and_not_offered_to_be_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with SlotLock(path).acquire(in_passing("site.yml: units")), pytest.raises(LockBusy) as caught:
        SlotLock(path).acquire(Owner(1, "job-2"))
    assert "site.yml: units" in str(caught.value) and "--break-lock" not in str(caught.value)
