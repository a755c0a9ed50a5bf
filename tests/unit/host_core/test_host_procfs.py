"""Listeners and cgroups, from a made-up /proc and from the real one."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from specswap_host.procfs import Listener, ProcFs, in_cgroup, unit_of
from specswap_host.systemd import parse_show

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, port: int, inode: int, state: str = "0A") -> str:
    rest = "00000000:00000000 00:00000000 00000000     0        0"
    return f"   0: {address}:{port:04X} 00000000:0000 {state} {rest} {inode} 1\n"


class Proc:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir()
        (root / "net/tcp").write_text(HEAD)
        (root / "net/tcp6").write_text(HEAD)

    def process(
        self, pid: int, cgroup: str, inodes: tuple[int, ...] = (), state: str = "S", argv: str = "srv\0-x\0"
    ) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "stat").write_text(f"{pid} (a ) b) {state} 1 1")
        (folder / "cmdline").write_text(argv)
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def listen(self, *rows: str, table: str = "tcp") -> None:
        (self.root / "net" / table).write_text(HEAD + "".join(rows))

    @property
    def fs(self) -> ProcFs:
        return ProcFs(self.root)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


V1 = "12:memory:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/elsewhere\n"


def test_listener_with_its_process(proc: Proc) -> None:
    proc.listen(row("0100007F", 30001, 555), row("0100007F", 30001, 556, state="01"), row("0100007F", 30002, 557))
    proc.process(42, V1, (555,))
    proc.process(43, "0::/user.slice/x.scope\n", (557,))
    assert proc.fs.listeners(30001) == [Listener("127.0.0.1", 30001, 555, 42, "/system.slice/a.service", "srv -x")]


def test_every_holder_of_a_shared_socket_is_seen(proc: Proc) -> None:
    proc.listen(row("00000000", 30001, 555))
    proc.process(42, V1, (555,))
    proc.process(43, "0::/user.slice/x.scope\n", (555,))
    assert [one.pid for one in proc.fs.listeners(30001)] == [42, 43]


def test_socket_without_a_visible_holder(proc: Proc) -> None:
    proc.listen(row("00000000", 30001, 555))
    (one,) = proc.fs.listeners(30001)
    assert one.pid is None and "root" in one.describe()


@pytest.mark.parametrize(
    ("address", "table", "bind", "answers"),
    [
        ("0100007F", "tcp", "127.0.0.1", True),
        ("00000000", "tcp", "127.0.0.1", True),
        ("0101A8C0", "tcp", "127.0.0.1", False),
        ("0101A8C0", "tcp", "0.0.0.0", True),
        ("00000000000000000000000000000000", "tcp6", "127.0.0.1", True),
        ("00000000000000000000000001000000", "tcp6", "127.0.0.1", True),
        ("0000000000000000FFFF00000100007F", "tcp6", "127.0.0.1", True),
        ("B80D0120000000000000000001000000", "tcp6", "127.0.0.1", False),
    ],
)
def test_which_addresses_answer_for_a_bind(proc: Proc, address: str, table: str, bind: str, answers: bool) -> None:
    proc.listen(row(address, 30001, 555), table=table)
    assert bool(proc.fs.listeners(30001, bind)) is answers


def test_members_leave_out_zombies_and_neighbours(proc: Proc) -> None:
    proc.process(1, "0::/init.scope\n")
    proc.process(42, "0::/system.slice/a.service\n")
    proc.process(43, "0::/system.slice/a.service/worker\n")
    proc.process(44, "0::/system.slice/a.service\n", state="Z")
    proc.process(45, "0::/system.slice/a.service2\n")
    assert sorted(proc.fs.members("/system.slice/a.service")) == [42, 43]
    assert proc.fs.members("") == []


def test_cgroup_below_a_prefix_is_named_as_systemd_names_it(proc: Proc) -> None:
    proc.process(1, "0::/machine/h1/init.scope\n")
    proc.process(42, "0::/machine/h1/system.slice/a.service\n")
    assert proc.fs.cgroup(42) == "/system.slice/a.service"


def test_gone_process_is_empty_not_an_error(proc: Proc) -> None:
    assert proc.fs.cmdline(99) == [] and proc.fs.cgroup(99) == "" and proc.fs.command(99) == ""


def test_names() -> None:
    assert in_cgroup("/a/b.service/x", "/a/b.service") and not in_cgroup("/a/b.service2", "/a/b.service")
    assert not in_cgroup("/a", "")
    assert unit_of("/system.slice/x.service/worker") == "x.service" and unit_of("/user.slice") == ""


def test_real_socket_of_this_process_is_found_quickly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        fs = ProcFs()
        best = 1.0
        for _ in range(5):
            start = time.perf_counter()
            found = fs.listeners(port, "127.0.0.1")
            best = min(best, time.perf_counter() - start)
        assert [one.pid for one in found] == [os.getpid()]
        assert found[0].cgroup == fs.cgroup(os.getpid())
        # 30 ms is the aim on a quiet machine; ten times that still tells a scan from a defect.
        assert best < 0.3
    assert ProcFs().listeners(port) == []
    assert fs.cmdline(os.getpid())[0]


def test_drop_ins_of_a_unit_without_the_gates_own() -> None:
    paths = "/run/systemd/system/x.service.d/90-specswap-gate.conf /etc/systemd/system/x.service.d/50-slow.conf"
    state = parse_show("x.service", f"FragmentPath=/etc/systemd/system/x.service\nDropInPaths={paths}\n")
    assert state.fragment == "/etc/systemd/system/x.service"
    assert state.drop_ins == ("/etc/systemd/system/x.service.d/50-slow.conf",)
    assert parse_show("x.service", "DropInPaths=\n").drop_ins == ()
