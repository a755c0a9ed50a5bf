"""State, locks, arguments and errors of `Sandbox`, without a host."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from specswap_sandbox import Sandbox, SandboxError, core, require, state
from specswap_sandbox.__main__ import main
from specswap_sandbox.processes import find, init_of
from specswap_sandbox.shell import locked_folder, run, write_file
from specswap_sandbox.state import HostRecord, State


def content(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    registry = tmp_path / "registry"
    monkeypatch.setattr(state, "REGISTRY", registry)
    return registry


def some_state(tag: str = "utest") -> State:
    return State(tag, "10.203.9", "nspawn", "/nowhere/hosts", [HostRecord("a", 1, "/r"), HostRecord("b", 4, "/r")])


def test_state_survives_a_round_trip_and_registers_the_tag(tmp_path: Path, own_registry: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    state.save(folder, some_state())
    assert state.load(folder) == some_state()
    assert state.registered()["utest"]["state"] == str(folder)
    assert content(folder) == ["state.json"]
    state.unregister("utest")
    assert not own_registry.exists()


def test_hosts_and_addresses_come_from_the_state(tmp_path: Path) -> None:
    state.save(tmp_path, some_state())
    box = Sandbox(state=tmp_path, tag="utest")
    assert box.hosts() == ["a", "b"]
    assert box.address("b") == "10.203.9.14"
    with pytest.raises(SandboxError, match=r"host c: .*hosts: a, b.*up c"):
        box.address("c")


def test_without_a_sandbox_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    box = Sandbox(state=tmp_path / "none", tag="utest")
    assert box.hosts() == []
    with pytest.raises(SandboxError, match="up NAME"):
        box.wait(1)


def test_a_foreign_tag_in_the_state_folder_is_named(tmp_path: Path) -> None:
    state.save(tmp_path, some_state("other"))
    with pytest.raises(SandboxError, match="--tag other"):
        Sandbox(state=tmp_path, tag="utest").address("a")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}'])
def test_a_broken_state_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(SandboxError, match=r"state\.json"):
        state.load(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="down needs root")
def test_a_folder_that_is_not_ours_is_neither_used_nor_removed(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    box = Sandbox(state=folder, tag="utest")
    with pytest.raises(SandboxError, match="other files"):
        box.up(["a"])
    with pytest.raises(SandboxError, match="not made by a sandbox"):
        box.down()
    assert content(folder) == ["thesis.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="up and down need root")
def test_what_a_play_left_behind_the_back_of_down_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A play that runs during `down` makes ssh's folder anew: neither `up` nor `down` may refuse it."""

    def stop(_: str) -> str:
        raise SandboxError("as far as the test goes")

    monkeypatch.setattr(require, "choose_backend", stop)
    box = Sandbox(state=Path(tempfile.mkdtemp(dir="/run")), tag="utest")  # a socket's path must be short
    control = box.state / "control"
    try:
        control.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(control / "0123abcd"))
        with pytest.raises(SandboxError, match="as far as the test goes"):
            box.up(["a"])
        control.mkdir(parents=True)
        (control / "thesis.txt").write_text("years of work")
        for refused in (lambda: box.up(["a"]), box.down):
            with pytest.raises(SandboxError, match=r"other files|not made by a sandbox"):
                refused()
        (control / "thesis.txt").unlink()
        box.down()
        assert not box.state.exists()
    finally:
        shutil.rmtree(box.state, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("trap", ["other owner", "open to all", "link"])
def test_disks_are_never_put_where_another_user_has_a_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    disks = tmp_path / "disks"
    monkeypatch.setattr(core, "DISKS_ON_DISK", disks)
    box = Sandbox(state=Path(tempfile.mkdtemp(dir="/dev/shm")), tag="utest")
    try:
        assert box._choose_disks() == disks / "utest"
        if trap == "other owner":
            os.chown(disks / "utest", 65534, 65534)
        elif trap == "open to all":
            disks.chmod(0o777)
        else:
            (disks / "utest").rmdir()
            (disks / "utest").symlink_to(tmp_path)
        with pytest.raises(SandboxError, match="belongs to root alone"):
            box._choose_disks()
    finally:
        box.state.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="up needs root")
def test_a_tag_in_use_is_refused_with_the_owners_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    state.save(first, some_state())
    with pytest.raises(SandboxError, match=str(first)):
        Sandbox(state=second, tag="utest").up(["a"])
    assert not second.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="up needs root")
def test_a_failed_first_up_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> str:
        raise SandboxError("no backend")

    monkeypatch.setattr(require, "choose_backend", refuse)
    with pytest.raises(SandboxError, match="no backend"):
        Sandbox(state=tmp_path / "s", tag="utest").up(["a"])
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("folder", ["/tmp/a b", "/tmp/a,b", "/tmp/a:b", "/tmp/a'b", "/tmp/a%b"])
def test_state_folders_that_ssh_or_mount_would_misread_are_refused(folder: str) -> None:
    with pytest.raises(SandboxError, match="state folder"):
        Sandbox(state=Path(folder))


def test_up_checks_every_name_before_it_does_anything(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="Bad"):
        Sandbox(state=tmp_path / "s", tag="utest").up(["good", "Bad"])
    assert not (tmp_path / "s").exists()


def test_without_root_everything_goes_through_sudo_with_cache_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word" >> "{tmp_path}/words"; done\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(require, "SEARCH_PATH", os.environ["PATH"] + f":{sudo.parent}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("SPECSWAP_CACHE", "/some/cache")
    box = Sandbox(state=tmp_path / "s", tag="utest", net="10.203.9")
    box.up(["a", "b"], lambda _: None)
    words = (tmp_path / "words").read_text().splitlines()
    # The first call asks whether sudo works without a password.
    assert words[:2] == ["-n", "true"]
    assert words[2:4] == ["-n", "env"] and "SPECSWAP_CACHE=/some/cache" in words
    options = ["--state", str(tmp_path / "s"), "--tag", "utest", "--net", "10.203.9", "--backend", "auto"]
    assert words[-11:] == [*options, "up", "a", "b"]


def test_sudo_that_wants_a_password_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\nexit 1\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(require, "SEARCH_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxError, match="sudo -v"):
        Sandbox(state=tmp_path / "s", tag="utest").up(["a"])


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    marker = f"3600.{os.getpid()}"
    with pytest.raises(SandboxError, match=r"did not end within 0\.3 s"):
        run(["sh", "-c", f"sleep {marker} & sleep {marker}"], timeout_s=0.3)
    deadline = time.monotonic() + 5
    while find(lambda process: marker in process.argv) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert find(lambda process: marker in process.argv) == []


def test_a_failing_command_is_told_with_its_last_line() -> None:
    with pytest.raises(SandboxError, match="ended with 3: second"):
        run(["sh", "-c", "echo first >&2; echo second >&2; exit 3"])
    with pytest.raises(SandboxError, match="not installed"):
        run(["specswap-no-such-program"])


def test_a_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    before = os.umask(0o077)
    try:
        write_file(path, "new", mode=0o644)
    finally:
        os.umask(before)
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o644
    assert content(tmp_path) == ["f"]


def test_a_waiter_gets_a_new_folder_when_the_owner_removed_the_locked_one(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    seen: list[bool] = []

    def waiter() -> None:
        with locked_folder(folder):
            seen.append(folder.is_dir())

    with locked_folder(folder):
        thread = threading.Thread(target=waiter)
        thread.start()
        time.sleep(0.2)
        assert seen == []
        folder.rmdir()
    thread.join(timeout=5)
    assert seen == [True]


def test_a_process_without_a_namespace_of_its_own_has_no_init() -> None:
    assert init_of(os.getppid()) is None


def test_command_line_errors_are_one_line_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state", str(tmp_path / "s"), "--tag", "utest", "wait"]) == 1
    assert capsys.readouterr().err.startswith("error: no sandbox in ")
    assert main(["--tag", "BAD", "status"]) == 1
    assert "tag 'BAD'" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for word in (
        "up",
        "wait",
        "status",
        "exec",
        "crash",
        "start",
        "cut",
        "heal",
        "inventory",
        "ssh",
        "down",
        "selftest",
    ):
        with pytest.raises(SystemExit) as ended:
            main([word, "--help"])
        assert ended.value.code == 0
        assert word in capsys.readouterr().out


def test_the_command_line_runs_as_a_module() -> None:
    result = run([sys.executable, "-m", "specswap_sandbox", "--help"])
    assert "examples:" in result.stdout
    assert str(core.DEFAULT_STATE) in result.stdout


def test_the_half_written_entry_of_a_killed_process_goes_with_its_tag() -> None:
    state.REGISTRY.mkdir(parents=True, exist_ok=True)
    torn, other = state.REGISTRY / ".mine.json.4501", state.REGISTRY / ".else.json.4502"
    torn.write_text("{")
    other.write_text("{")
    state.unregister("mine")
    assert not torn.exists() and other.exists()
    state.unregister("else")
    assert not state.REGISTRY.exists()
