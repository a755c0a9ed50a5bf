"""Backend `container`: hosts are podman or docker containers that run systemd, from the same root file system.

For workstations where systemd-nspawn cannot work. Needs root: a container's address is reached through the engine's
bridge, which rootless engines do not have. The network is internal: no way out, as with the other backend.

Two limits against nspawn: a host shows the machine's boot id, so `ansible.builtin.reboot` and `journalctl -b -1` do not
see its boots; and podman, not the tag, names the bridge. Tried with podman 4.3 on Debian 12 (reboot, limits);
docker, and podman's cut and heal, are UNPROVEN.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import network, processes, require, rootfs
from .errors import SandboxError
from .names import Names
from .rootfs import Progress
from .seed import SeedFile
from .shell import run
from .state import HostRecord

#: A container whose systemd asked for a reboot ends with 128 + SIGHUP, as reboot(2) says for PID namespaces.
REBOOT_CODE = 129

#: $0 is the marker, $1 the engine, $2 the container.
SUPERVISOR = f"""
while code=$("$1" wait "$2") && [ "$code" = {REBOOT_CODE} ]; do "$1" start "$2" || break; done
"""


def create_argv(engine: str, names: Names, host: HostRecord) -> list[str]:
    """The command that makes a host's container."""
    argv = [
        engine,
        "create",
        f"--name={names.machine(host.index)}",
        f"--hostname={host.name}",
        f"--label=specswap-sandbox={names.tag}",
        "--privileged",
        "--cgroupns=private",
        f"--network={network_name(names)}",
        f"--ip={names.address(host.index)}",
        "--tmpfs=/run:mode=755",
        "--tmpfs=/run/lock",
        "--env=container=oci",
        "--stop-signal=SIGRTMIN+3",
        "--restart=no",
    ]
    if engine == "podman":
        # podman writes /etc/hosts by itself and prepares mounts for systemd when told to.
        argv += ["--systemd=always", "--no-hosts"]
    return [*argv, host.rootfs, "/lib/systemd/systemd"]


def network_name(names: Names) -> str:
    """Name of the sandbox's network in the engine."""
    return f"specswap-{names.tag}"


def seed_archive(files: Sequence[SeedFile]) -> bytes:
    """A tar archive of a host's own files, with modes, to be unpacked at /."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.mode = file.mode
            if file.data is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(file.data)
                archive.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


class ContainerBackend:
    """Hosts of one sandbox as containers; `disks` only keeps marks, files live in the engine's storage."""

    def __init__(self, names: Names, disks: Path) -> None:
        self.names = names
        self.disks = disks
        self._engine: str | None = None

    @property
    def engine(self) -> str:
        if self._engine is None:
            self._engine = require.container_engine()
        if self._engine is None:
            raise SandboxError("neither podman nor docker answers; start its daemon, or use --backend nspawn")
        return self._engine

    def _machine(self, host: HostRecord) -> str:
        return self.names.machine(host.index)

    def prepare(self, progress: Progress) -> str:
        """The image of the root file system, imported when the engine has none."""
        tree = rootfs.ensure(progress)
        image = f"specswap-sandbox:{tree.name.removeprefix('rootfs-')}"
        if run([self.engine, "image", "inspect", image], check=False).returncode == 0:
            return image
        progress(f"importing the root file system into {self.engine}")
        pack = subprocess.Popen(["tar", "--directory", str(tree), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE)
        load = subprocess.run([self.engine, "import", "-", image], stdin=pack.stdout, capture_output=True, text=True)
        if pack.stdout is not None:
            pack.stdout.close()
        if pack.wait() != 0 or load.returncode != 0:
            raise SandboxError(f"{self.engine} import failed: {load.stderr.strip() or 'tar ended early'}")
        return image

    def network_up(self) -> None:
        network.guard_up(self.names)
        name = network_name(self.names)
        if run([self.engine, "network", "inspect", name], check=False).returncode == 0:
            return
        argv = ["network", "create", "--internal", f"--subnet={self.names.subnet}", f"--gateway={self.names.gateway}"]
        # The label lets two engines' tools and `down` tell our networks from others.
        run([self.engine, *argv, f"--label=specswap-sandbox={self.names.tag}", self._bridge_option(), name])

    def _bridge_option(self) -> str:
        key = "com.docker.network.bridge.name" if self.engine == "docker" else "isolate"
        return f"--opt={key}={self.names.bridge if self.engine == 'docker' else 'true'}"

    def _inspect(self, host: HostRecord) -> dict[str, object] | None:
        answer = run([self.engine, "container", "inspect", self._machine(host)], check=False)
        if answer.returncode != 0:
            return None
        found = json.loads(answer.stdout)
        return dict(found[0]) if found else None

    def exists(self, host: HostRecord) -> bool:
        return (self.disks / host.name / "seeded").exists() and self._inspect(host) is not None

    def create(self, host: HostRecord, files: Sequence[SeedFile]) -> None:
        if self.exists(host):
            return
        run([self.engine, "rm", "--force", self._machine(host)], check=False)
        run(create_argv(self.engine, self.names, host))
        copy = subprocess.run(
            [self.engine, "cp", "-", f"{self._machine(host)}:/"], input=seed_archive(files), capture_output=True
        )
        if copy.returncode != 0:
            raise SandboxError(
                f"host {host.name}: {self.engine} cp failed: {copy.stderr.decode(errors='replace').strip()}"
            )
        folder = self.disks / host.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "seeded").touch()

    def _supervises(self, host: HostRecord, process: processes.Process) -> bool:
        return process.argv[-1] == self._machine(host) and self._marker in process.argv

    @property
    def _marker(self) -> str:
        return f"specswap-sandbox-{self.names.tag}"

    def running(self, host: HostRecord) -> bool:
        found = self._inspect(host) or {}
        state = found.get("State")
        return isinstance(state, dict) and bool(state.get("Running"))

    def start(self, host: HostRecord) -> None:
        if not self.running(host):
            run([self.engine, "start", self._machine(host)])
        if not processes.find(lambda p: self._supervises(host, p)):
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", SUPERVISOR, self._marker, self.engine, self._machine(host)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )

    def crash(self, host: HostRecord) -> None:
        if not self.running(host):
            raise SandboxError(f"host {host.name} does not run; `start {host.name}` starts it")
        run([self.engine, "kill", "--signal=KILL", self._machine(host)])
        deadline = time.monotonic() + 10.0
        while self.running(host):
            if time.monotonic() > deadline:
                raise SandboxError(f"host {host.name} did not end within 10 s")
            time.sleep(0.1)

    def connected(self, host: HostRecord) -> bool:
        settings = (self._inspect(host) or {}).get("NetworkSettings")
        networks = settings.get("Networks") if isinstance(settings, dict) else None
        return isinstance(networks, dict) and network_name(self.names) in networks

    def cut(self, host: HostRecord) -> None:
        if self.connected(host):
            run([self.engine, "network", "disconnect", "--force", network_name(self.names), self._machine(host)])

    def heal(self, host: HostRecord) -> None:
        if not self.connected(host):
            address = f"--ip={self.names.address(host.index)}"
            run([self.engine, "network", "connect", address, network_name(self.names), self._machine(host)])

    def exec_argv(self, host: HostRecord, argv: Sequence[str]) -> list[str]:
        if not self.running(host):
            raise SandboxError(f"host {host.name} does not run; `start {host.name}` starts it")
        return [self.engine, "exec", "--interactive", "--user=root", self._machine(host), *argv]

    def log(self, host: HostRecord) -> str:
        return run([self.engine, "logs", "--tail=8", self._machine(host)], check=False).stdout

    def destroy(self, hosts: Sequence[HostRecord]) -> None:
        for process in processes.find(lambda p: self._marker in p.argv):
            processes.kill(process.pid)
        label = f"--filter=label=specswap-sandbox={self.names.tag}"
        for container in run([self.engine, "ps", "--all", "--quiet", label]).stdout.split():
            run([self.engine, "rm", "--force", "--volumes", container])
        name = network_name(self.names)
        if run([self.engine, "network", "inspect", name], check=False).returncode == 0:
            run([self.engine, "network", "rm", name])
        run(["rm", "-rf", "--one-file-system", "--", str(self.disks)])
        network.remove_all(self.names)
