"""Backend `nspawn`: hosts are systemd-nspawn containers over one root file system, each with an overlay and a network.

On a machine whose PID 1 is not systemd a small shell loop supervises each host. Where systemd is PID 1, each host is a
transient unit with a delegated control group, as systemd-nspawn@.service does it.

`python -m specswap_sandbox selftest` says whether that works on a machine: it passed on cgroup v1 hybrid without
systemd, and on cgroup v2 with systemd.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from . import cgroups, network, processes, rootfs
from .errors import SandboxError
from .names import Names
from .rootfs import Progress
from .seed import SeedFile
from .shell import run
from .state import HostRecord

#: nspawn ends with this code when the host asked for a reboot; on every other code the host stays down.
REBOOT_CODE = 133

#: $0 is the marker, $1 the cgroup.procs files, one a line; the rest is the nspawn command. Only the inner shell, which
#: becomes nspawn, joins the groups: on cgroup v2 a group with a process of its own cannot hand controllers down, and
#: one that still hands them down, from the boot before, takes no process.
SUPERVISOR = f"""
groups=$1; shift
while :; do
  ( exec sh -c '
    IFS="
"
    for procs in $1; do
      group=${{procs%/*}}
      if [ -e "$group/cgroup.subtree_control" ]; then
        find "$group" -mindepth 1 -depth -type d -exec rmdir "{{}}" ";"
        words=$(sed "s/[^ ][^ ]*/-&/g" "$group/cgroup.subtree_control")
        if [ -n "$words" ]; then echo "$words" > "$group/cgroup.subtree_control"; fi
      fi
      echo $$ > "$procs" || exit 97
    done
    unset IFS; shift; exec "$@"' "$0" "$groups" "$@" )
  code=$?
  [ "$code" = {REBOOT_CODE} ] || break
done
echo "systemd-nspawn ended with $code"
"""


def nspawn_argv(names: Names, host: HostRecord, root: Path, cgroup_options: Sequence[str]) -> list[str]:
    """The systemd-nspawn command of a host whose root file system is mounted at `root`."""
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        "--settings=no",
        f"--directory={root}",
        f"--machine={names.machine(host.index)}",
        f"--hostname={host.name}",
        "--register=no",
        "--keep-unit",
        f"--network-namespace-path=/run/netns/{names.netns(host.index)}",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        "--kill-signal=SIGRTMIN+3",
        *cgroup_options,
    ]


def unit_argv(unit: str, command: Sequence[str], console: Path) -> list[str]:
    """The systemd-run command for machines that run systemd: delegated control group, restart on reboot only."""
    return [
        "systemd-run",
        "--quiet",
        f"--unit={unit}",
        "--collect",
        "--property=Delegate=yes",
        "--property=KillMode=mixed",
        "--property=Type=exec",
        f"--property=RestartForceExitStatus={REBOOT_CODE}",
        f"--property=SuccessExitStatus={REBOOT_CODE}",
        "--property=RestartSec=0",
        "--property=TimeoutStopSec=10",
        f"--property=MemoryMax={cgroups.MEMORY_LIMIT}",
        f"--property=StandardOutput=append:{console}",
        f"--property=StandardError=append:{console}",
        "--",
        *command,
    ]


def machine_runs_systemd() -> bool:
    """Whether systemd is PID 1 of this machine (as sd_booted(3) decides)."""
    return Path("/run/systemd/system").is_dir()


class NspawnBackend:
    """Hosts of one sandbox; `disks` is the folder that holds their files."""

    def __init__(self, names: Names, disks: Path) -> None:
        self.names = names
        self.disks = disks

    # --- files ---------------------------------------------------------------------------------------------------

    def _root(self, host: HostRecord) -> Path:
        return self.disks / host.name / "root"

    def _console(self, host: HostRecord) -> Path:
        return self.disks / host.name / "console.log"

    def prepare(self, progress: Progress) -> str:
        """The path of the root file system, built when the cache has none."""
        return str(rootfs.ensure(progress))

    def exists(self, host: HostRecord) -> bool:
        return (self.disks / host.name / "seeded").exists()

    def create(self, host: HostRecord, files: Sequence[SeedFile]) -> None:
        folder, root = self.disks / host.name, self._root(host)
        seeded = folder / "seeded"
        if not seeded.exists():
            # A half-made disk is of no use to anybody.
            if os.path.ismount(root):
                run(["umount", str(root)])
            shutil.rmtree(folder, ignore_errors=True)
        for part in (folder, folder / "upper", folder / "work", folder / "root"):
            part.mkdir(parents=True, exist_ok=True)
            # The root folder of the host takes its mode from the upper layer, whatever our umask is.
            part.chmod(0o755)
        if not os.path.ismount(root):
            if not Path(host.rootfs).is_dir():
                raise SandboxError(
                    f"host {host.name}: its root file system {host.rootfs} is gone; `down`, then `up {host.name}`"
                )
            layers = f"lowerdir={host.rootfs},upperdir={folder}/upper,workdir={folder}/work"
            run(["mount", "-t", "overlay", f"specswap-{self.names.tag}", "-o", layers, str(root)])
        if not seeded.exists():
            for file in files:
                _write_seed(root, file)
            seeded.touch()
        network.host_up(self.names, host.index)

    def network_up(self) -> None:
        network.bridge_up(self.names)

    # --- life ----------------------------------------------------------------------------------------------------

    def _belongs(self, host: HostRecord, process: processes.Process) -> bool:
        return f"--directory={self._root(host)}" in process.argv

    def _nspawn(self, host: HostRecord) -> int | None:
        for process in processes.find(lambda p: self._belongs(host, p)):
            if Path(process.argv[0]).name == "systemd-nspawn":
                return process.pid
        return None

    def leader(self, host: HostRecord) -> int | None:
        """The pid of the host's PID 1 as seen on the machine, or None."""
        parent = self._nspawn(host)
        return processes.init_of(parent) if parent is not None else None

    def running(self, host: HostRecord) -> bool:
        return bool(processes.find(lambda p: self._belongs(host, p)))

    def start(self, host: HostRecord) -> None:
        if self.running(host):
            return
        self.create(host, ())
        root, console = self._root(host), self._console(host)
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("SYSTEMD_", "NOTIFY_", "LISTEN_"))
        }
        environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        if machine_runs_systemd():
            run(unit_argv(self._unit(host), nspawn_argv(self.names, host, root, ()), console))
            return
        group, name = self.names.cgroup, self.names.machine(host.index)
        procs = cgroups.make(group, name)
        command = nspawn_argv(self.names, host, root, cgroups.nspawn_options(group, name))
        groups = "\n".join(str(path) for path in procs)
        with console.open("w", encoding="utf-8") as stream:
            # Own session, no inherited output: a caller read through a pipe can end before its hosts. With --fork
            # the supervisor is nobody's child here, so a long-lived caller keeps no zombie of it.
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", SUPERVISOR, f"specswap-sandbox-{self.names.tag}", groups, *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                umask=0o022,
                check=True,
            )

    def _unit(self, host: HostRecord) -> str:
        return f"{self.names.machine(host.index)}.service"

    def crash(self, host: HostRecord) -> None:
        pid = self.leader(host)
        if pid is None:
            raise SandboxError(f"host {host.name} does not run; `start {host.name}` starts it")
        processes.kill(pid)
        processes.wait_gone(lambda p: self._belongs(host, p), what=f"host {host.name}")

    def connected(self, host: HostRecord) -> bool:
        return network.link_is_up(self.names, host.index)

    def cut(self, host: HostRecord) -> None:
        network.set_link(self.names, host.index, up=False)

    def heal(self, host: HostRecord) -> None:
        network.set_link(self.names, host.index, up=True)

    def exec_argv(self, host: HostRecord, argv: Sequence[str]) -> list[str]:
        pid = self.leader(host)
        if pid is None:
            way_out = (
                "is restarting; try again" if self.running(host) else f"does not run; `start {host.name}` starts it"
            )
            raise SandboxError(f"host {host.name} {way_out}")
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        clean = [
            "env",
            "-i",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LANG=C.UTF-8",
        ]
        return ["nsenter", f"--target={pid}", *spaces, "--root", "--wd", "--", *clean, *argv]

    def log(self, host: HostRecord) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._console(host).read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
        return ""

    # --- end -----------------------------------------------------------------------------------------------------

    def _ours(self, process: processes.Process) -> bool:
        prefix = f"--directory={self.disks}/"
        return any(word.startswith(prefix) for word in process.argv)

    def destroy(self, hosts: Sequence[HostRecord]) -> None:
        if machine_runs_systemd():
            run(["systemctl", "stop", f"specswap-{self.names.tag}-*.service"], check=False, timeout_s=60.0)
        self._end_processes()
        self._unmount()
        cgroups.remove(self.names.cgroup)
        network.remove_all(self.names)
        shutil.rmtree(self.disks, ignore_errors=True)
        if self.disks.exists():
            raise SandboxError(f"{self.disks} could not be removed; `rm -r` it")

    def _end_processes(self) -> None:
        deadline = time.monotonic() + 10.0
        while found := processes.find(self._ours):
            # Supervisors first: none shall start a host again. The kernel ends everything inside with a host's PID 1,
            # and nspawn then ends by itself; only one that hangs before its PID 1 exists has to be killed.
            late = time.monotonic() > deadline - 5.0
            for process in found:
                if Path(process.argv[0]).name != "systemd-nspawn":
                    processes.kill(process.pid)
            for process in found:
                if Path(process.argv[0]).name == "systemd-nspawn":
                    inner = processes.init_of(process.pid)
                    if inner is not None:
                        processes.kill(inner)
                    if late:
                        processes.kill(process.pid)
            if time.monotonic() > deadline:
                raise SandboxError(f"process {found[0].pid} of the sandbox did not end; `kill -9 {found[0].pid}`")
            time.sleep(0.02)

    def _unmount(self) -> None:
        for target in mounts_below(self.disks):
            if run(["umount", target], check=False).returncode != 0:
                run(["umount", "--lazy", target])


def mounts_below(folder: Path, mountinfo: str | None = None) -> list[str]:
    """Mount points below `folder`, innermost first, from the text of /proc/self/mountinfo."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    # The kernel writes blanks in paths as octal escapes.
    targets = [
        re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), line.split()[4])
        for line in mountinfo.splitlines()
    ]
    return sorted((target for target in targets if target.startswith(f"{folder}/")), reverse=True)


def _write_seed(root: Path, file: SeedFile) -> None:
    path = root / file.path.lstrip("/")
    if file.data is None:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(file.data)
    path.chmod(file.mode)
