"""Commands that make hosts, control groups, requirements: all that can be judged without making a host."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from specswap_sandbox import cgroups, nspawn, require
from specswap_sandbox.container import create_argv, seed_archive
from specswap_sandbox.errors import SandboxError
from specswap_sandbox.names import Names
from specswap_sandbox.nspawn import SUPERVISOR, nspawn_argv, unit_argv
from specswap_sandbox.seed import SeedFile
from specswap_sandbox.state import HostRecord

NAMES = Names("ssb", "10.203.0")
HOST = HostRecord("ct200", 3, "/cache/rootfs-0123456789ab")


def test_nspawn_gets_root_names_and_network_of_the_host() -> None:
    argv = nspawn_argv(NAMES, HOST, Path("/s/hosts/ct200/root"), ["--bind=/a:/b"])
    assert argv[0] == "systemd-nspawn" and argv[-1] == "--bind=/a:/b"
    for word in ("--directory=/s/hosts/ct200/root", "--hostname=ct200", "--keep-unit", "--register=no"):
        assert word in argv
    assert "--network-namespace-path=/run/netns/ssb-ns3" in argv


def test_a_transient_unit_delegates_and_restarts_on_reboot_only() -> None:
    argv = unit_argv("u.service", ["systemd-nspawn", "--boot"], Path("/s/console.log"))
    assert argv[-3:] == ["--", "systemd-nspawn", "--boot"]
    assert "--property=Delegate=yes" in argv and "--property=RestartForceExitStatus=133" in argv
    assert not any(word.startswith("--property=Restart=") for word in argv)


def supervise(tmp_path: Path, codes: list[int], groups: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run the supervisor over a program that ends with `codes`, one per start."""
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    program = tmp_path / "program"
    program.write_text(
        f'#!/bin/sh\ncd "{tmp_path}"; echo "$$ $*" >> starts\ncode=$(head -n 1 codes); sed -i 1d codes; exit $code\n'
    )
    program.chmod(0o755)
    argv = ["sh", "-c", SUPERVISOR, "marker", "\n".join(map(str, groups)), str(program), "--first", "two words"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=10)


@pytest.mark.parametrize(("codes", "starts"), [([0], 1), ([1], 1), ([133, 133, 0], 3), ([133, 1, 0], 2)])
def test_the_supervisor_starts_again_after_a_reboot_and_after_nothing_else(
    tmp_path: Path, codes: list[int], starts: int
) -> None:
    result = supervise(tmp_path, codes, [])
    lines = (tmp_path / "starts").read_text().splitlines()
    assert len(lines) == starts
    assert all(line.endswith("--first two words") for line in lines)
    assert result.stdout == f"systemd-nspawn ended with {codes[starts - 1]}\n"


def test_the_started_program_itself_joins_every_group(tmp_path: Path) -> None:
    groups = [tmp_path / "group one", tmp_path / "group2"]
    supervise(tmp_path, [0], groups)
    pid = (tmp_path / "starts").read_text().split()[0]
    assert [group.read_text().strip() for group in groups] == [pid, pid]


def test_what_the_boot_before_left_in_a_group_is_cleared_before_the_join(tmp_path: Path) -> None:
    group = tmp_path / "group"
    (group / "payload" / "system.slice").mkdir(parents=True)
    control = group / "cgroup.subtree_control"
    control.write_text("cpu memory pids\n")
    supervise(tmp_path, [0], [group / "cgroup.procs"])
    assert not (group / "payload").exists()
    assert control.read_text() == "-cpu -memory -pids\n"
    assert (group / "cgroup.procs").exists()


def test_the_program_is_not_started_outside_its_groups(tmp_path: Path) -> None:
    result = supervise(tmp_path, [0], [tmp_path / "missing" / "cgroup.procs"])
    assert not (tmp_path / "starts").exists()
    assert "ended with 97" in result.stdout


def make_v1(root: Path) -> None:
    for name in ("memory", "cpuset", "pids", "systemd", "unified"):
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").touch()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")


def test_on_v1_a_host_has_a_group_in_every_hierarchy_and_writes_to_its_own(tmp_path: Path) -> None:
    make_v1(tmp_path)
    procs = cgroups.make("specswap-ssb", "m", tmp_path)
    assert {path.relative_to(tmp_path).parts[0] for path in procs} == {"memory", "cpuset", "pids", "systemd", "unified"}
    assert (tmp_path / "cpuset/specswap-ssb/cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "cpuset/specswap-ssb/m/cpuset.mems").read_text() == "0\n"
    options = cgroups.nspawn_options("specswap-ssb", "m", tmp_path)
    assert f"--bind={tmp_path}/memory/specswap-ssb/m:/sys/fs/cgroup/memory" in options
    # systemd inside must not get the machine's own hierarchy as a bind: nspawn mounts it itself.
    assert not any("/systemd/" in option or "/unified/" in option for option in options)


def test_on_v2_controllers_are_handed_down_two_levels(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "specswap-ssb").mkdir()
    (tmp_path / "specswap-ssb" / "cgroup.controllers").write_text("pids\n")
    assert cgroups.make("specswap-ssb", "m", tmp_path) == [tmp_path / "specswap-ssb/m/cgroup.procs"]
    assert (tmp_path / "specswap-ssb/cgroup.subtree_control").read_text() == "+pids"
    assert cgroups.nspawn_options("specswap-ssb", "m", tmp_path) == []


def test_groups_are_removed_deepest_first(tmp_path: Path) -> None:
    (tmp_path / "memory/specswap-ssb/m/system.slice/x.service").mkdir(parents=True)
    (tmp_path / "unified/specswap-ssb/m").mkdir(parents=True)
    (tmp_path / "memory/specswap-sbb").mkdir()
    cgroups.remove("specswap-ssb", tmp_path)
    assert cgroups.existing("specswap-ssb", tmp_path) == []
    assert (tmp_path / "memory/specswap-sbb").exists()


def test_a_group_in_use_is_named(tmp_path: Path) -> None:
    busy = tmp_path / "memory/specswap-ssb/m"
    busy.mkdir(parents=True)
    (busy / "held").touch()
    with pytest.raises(SandboxError, match="memory/specswap-ssb"):
        cgroups.remove("specswap-ssb", tmp_path, timeout_s=0.1)


def test_mounts_are_listed_innermost_first_and_only_below_the_folder() -> None:
    lines = ["/", "/run/s", "/run/s/a/root", "/run/s/a/root/in\\040side", "/run/sx/b"]
    text = "".join(f"36 35 98:0 / {target} rw - overlay overlay rw\n" for target in lines)
    assert nspawn.mounts_below(Path("/run/s"), text) == ["/run/s/a/root/in side", "/run/s/a/root"]


def test_requirements_list_packages_once_and_only_what_is_missing() -> None:
    assert require.requirements("nspawn", has=lambda _: True) == []
    assert require.requirements("auto", has=lambda program: program not in ("ssh", "ssh-keygen", "systemd-nspawn")) == [
        "openssh-client",
        "systemd-container",
    ]
    assert require.requirements("container", has=lambda program: program not in ("podman", "docker")) == ["podman"]
    assert require.requirements("container", has=lambda program: program != "podman") == []
    with pytest.raises(SandboxError, match="nspawn or container"):
        require.requirements("lxc")


def test_without_packages_the_error_names_them_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require, "which", lambda program: "/usr/bin/apt-get" if program == "apt-get" else None)
    with pytest.raises(SandboxError, match=r"mmdebstrap .*systemd-container.*specswap_sandbox install"):
        require.choose_backend("auto")


def test_a_machine_where_nothing_works_hears_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require, "requirements", lambda _: [])
    monkeypatch.setattr(require, "nspawn_obstacles", lambda: ["the kernel has no overlay file system"])
    monkeypatch.setattr(require, "container_engine", lambda: None)
    with pytest.raises(SandboxError, match=r"(?s)overlay.*neither podman nor docker"):
        require.choose_backend("auto")


def test_a_working_engine_is_taken_where_nspawn_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require, "requirements", lambda _: [])
    monkeypatch.setattr(require, "nspawn_obstacles", lambda: ["no namespaces"])
    monkeypatch.setattr(require, "container_engine", lambda: "docker")
    assert require.choose_backend("auto") == "container"
    with pytest.raises(SandboxError, match="no namespaces"):
        require.choose_backend("nspawn")


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_container_runs_systemd_on_the_internal_network(engine: str) -> None:
    argv = create_argv(engine, NAMES, HOST)
    assert argv[:2] == [engine, "create"]
    assert argv[-2:] == [HOST.rootfs, "/lib/systemd/systemd"]
    assert "--ip=10.203.0.13" in argv and "--stop-signal=SIGRTMIN+3" in argv
    assert ("--systemd=always" in argv) == (engine == "podman")


def test_the_seed_archive_keeps_owners_and_modes() -> None:
    files = [SeedFile("/etc/keys", 0o755, None), SeedFile("/etc/key", 0o600, b"secret")]
    with tarfile.open(fileobj=io.BytesIO(seed_archive(files))) as archive:
        folder, key = archive.getmembers()
        assert (folder.name, folder.isdir(), folder.mode, folder.uid) == ("etc/keys", True, 0o755, 0)
        assert (key.name, key.mode, key.uid, key.size) == ("etc/key", 0o600, 0, 6)


def test_seed_files_get_their_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        nspawn._write_seed(tmp_path, SeedFile("/hosts", 0o644, b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "hosts").stat().st_mode & 0o777 == 0o644
