"""The look at what a sandbox left, on a made-up machine and on the real one."""

from __future__ import annotations

from pathlib import Path

from specswap.leftovers import Trace, counted


def machine(folder: Path) -> Trace:
    """A machine with one object of each kind of sandbox `ssb`, and neighbours that only look alike."""
    process = folder / "proc/42"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(b"systemd-nspawn\0--machine=specswap-ssb-1\0")
    (process / "cgroup").write_text("1:name=systemd:/specswap-ssb/1\n")
    inside = folder / "proc/43"
    inside.mkdir()
    (inside / "cmdline").write_bytes(b"/usr/sbin/sshd\0")
    (inside / "cgroup").write_text("1:name=systemd:/specswap-ssb/1/ssh.service\n")
    other = folder / "proc/44"
    other.mkdir()
    (other / "cmdline").write_bytes(b"systemd-nspawn\0--machine=specswap-ssbx-1\0")
    (other / "cgroup").write_text("1:name=systemd:/specswap-ssbx/1\n")
    (folder / "proc/self").mkdir()
    (folder / "proc/self/mountinfo").write_text(
        "1 1 0:1 / / rw\n"
        f"2 1 0:1 / {folder}/state/hosts/1/root rw\n"
        f"3 1 0:1 / {folder}/state-of-another rw\n"
        "4 1 0:4 net:[1] /run/netns/ssb-ns1 rw\n"
    )
    (folder / "proc/net").mkdir()
    (folder / "proc/net/route").write_text(
        "Iface\tDestination\tGateway\nssb-br\t0000CB0A\t00000000\neth0\t0000A8C0\t00000000\n"
    )
    for name in ("ssb-br", "ssb-v1", "ssb-vpn", "eth0"):
        (folder / "sys/class/net" / name).mkdir(parents=True)
    for name in ("memory/specswap-ssb", "memory/specswap-ssbx", "specswap-ssb"):
        (folder / "sys/fs/cgroup" / name).mkdir(parents=True)
    (folder / "run/netns").mkdir(parents=True)
    (folder / "run/netns/ssb-ns1").touch()
    (folder / "run/netns/ssbx-ns1").touch()
    (folder / "state").mkdir()
    return Trace("ssb", "10.203.0", folder / "state", proc=folder / "proc", sys=folder / "sys", run=folder / "run")


def test_everything_of_ours_and_nothing_else(tmp_path: Path) -> None:
    assert machine(tmp_path).find() == [
        "process: 42 systemd-nspawn --machine=specswap-ssb-1",
        "process: 43 /usr/sbin/sshd",
        f"mount: {tmp_path}/state/hosts/1/root",
        "mount: /run/netns/ssb-ns1",
        "network namespace: ssb-ns1",
        "link: ssb-br",
        "link: ssb-v1",
        "route: 10.203.0.0/24 on ssb-br",
        f"cgroup: {tmp_path}/sys/fs/cgroup/specswap-ssb",
        f"cgroup: {tmp_path}/sys/fs/cgroup/memory/specswap-ssb",
        f"folder: {tmp_path}/state",
    ]


def test_counted_for_people(tmp_path: Path) -> None:
    assert counted(["process: 1 a", "process: 2 b", "link: x"]) == "2 processes, 1 link"
    assert counted([]) == ""


def test_on_this_machine_a_tag_that_nobody_uses_leaves_nothing() -> None:
    assert Trace("zzunus", "", Path("/run/specswap-zzunus")).find() == []
