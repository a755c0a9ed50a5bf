"""`Sandbox`: real systemd hosts with real SSH on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from . import cgroups, network, processes, require, rootfs, seed, state
from .backend import Backend
from .container import ContainerBackend
from .errors import SandboxError
from .inventory import Access, render_inventory, render_known_hosts, render_ssh_config
from .names import Names, check_host_name, check_net, check_tag, next_index
from .nspawn import NspawnBackend, mounts_below
from .shell import locked_folder, run, write_file
from .state import HostRecord, State

DEFAULT_STATE = Path("/run/specswap-sandbox")
DEFAULT_TAG = "ssb"
#: Where the hosts' files go when the state folder is in memory: models and environments are large. Only root may make
#: folders there: below a place that everybody can write to, another user could have laid a folder or a link in our way.
DISKS_ON_DISK = Path("/var/lib/specswap-sandbox")
#: Written into every folder that `down` may remove as a whole.
MARKER = ".specswap-sandbox"


def _only_sockets(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and all(path.is_socket() for path in folder.iterdir())


def _silent(_: str) -> None:
    return None


class Sandbox:
    """Hosts of one sandbox. Every method may be called from any process: all that matters is kept in the state folder.

    state:    folder for keys, inventory and state; removed by `down`
    tag:      1 to 7 characters; prefix of every kernel object; two sandboxes need two tags and two state folders
    net:      first three octets of the hosts' /24, or `auto`: the first free 10.203.N
    backend:  `nspawn`, `container` or `auto`

    Without root, what needs it is done through `sudo -n`. All methods raise SandboxError with the way out.
    """

    def __init__(
        self, state: Path = DEFAULT_STATE, tag: str = DEFAULT_TAG, net: str = "auto", backend: str = "auto"
    ) -> None:
        self.state = Path(state).absolute()
        self.tag = check_tag(tag)
        self.net = net if net == "auto" else check_net(net)
        self.backend = backend
        if any(character.isspace() or character in ",:\"'\\%" for character in str(self.state)):
            raise SandboxError(
                f"state folder {self.state}: no blanks, quotes, commas or colons (ssh and mount options hold it)"
            )
        if backend not in ("auto", *require.BACKENDS):
            raise SandboxError(f"backend {backend!r}: use auto, {' or '.join(require.BACKENDS)}")

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # --- files for the controller --------------------------------------------------------------------------------

    @property
    def inventory(self) -> Path:
        """YAML inventory of the hosts (group `embedded`) with all connection variables; written by `up`."""
        return self.state / "inventory.yml"

    @property
    def ssh_config(self) -> Path:
        """ssh_config with one entry per host, for `ssh -F`; written by `up`."""
        return self.state / "ssh_config"

    # --- reading -------------------------------------------------------------------------------------------------

    def _load(self) -> State:
        found = state.load(self.state)
        if found is None:
            raise SandboxError(f"no sandbox in {self.state}; `up NAME` makes one")
        if found.tag != self.tag:
            raise SandboxError(
                f"{self.state} belongs to tag {found.tag}, not {self.tag}; give --tag {found.tag} or another --state"
            )
        return found

    def hosts(self) -> list[str]:
        """Names of the hosts, in the order of their making; empty without a sandbox."""
        found = state.load(self.state)
        return [host.name for host in found.hosts] if found else []

    def backend_in_use(self) -> str:
        """`nspawn` or `container`."""
        return self._load().backend

    def address(self, name: str) -> str:
        """IPv4 address of a host."""
        found = self._load()
        return Names(found.tag, found.net).address(found.host(name).index)

    def status(self) -> dict[str, dict[str, object]]:
        """Per host: address, `running`, `connected` (not cut) and `system`, the answer of systemd inside or None."""
        if not self._is_root():
            return dict(json.loads(self._through_sudo("status", "--json").stdout))
        found = state.load(self.state)
        if found is None:
            return {}
        backend = self._backend(found)
        report: dict[str, dict[str, object]] = {}
        for host in found.hosts:
            running = backend.running(host)
            system: str | None = None
            if running:
                with contextlib.suppress(SandboxError):
                    system = (
                        self.exec(host.name, ["systemctl", "is-system-running"], timeout_s=10.0).stdout.strip() or None
                    )
            report[host.name] = {
                "address": Names(found.tag, found.net).address(host.index),
                "running": running,
                "connected": backend.connected(host),
                "system": system,
            }
        return report

    # --- making --------------------------------------------------------------------------------------------------

    def up(self, names: Sequence[str], progress: Callable[[str], None] | None = None) -> None:
        """Make and start the hosts `names`, next to those that exist; a host that runs is left alone.

        Builds the root file system first when the cache has none (about half a minute, needs the machine's apt source).
        `progress` gets lines for a person. Returns when the hosts are starting; `wait` waits until they answer.
        """
        progress = progress or _silent
        for name in names:
            check_host_name(name)
        if not names:
            raise SandboxError("up: name at least one host")
        if not self._is_root():
            self._through_sudo("up", *names, progress=progress)
            return
        self._check_tag_is_free()
        with locked_folder(self.state):
            self.state.chmod(0o755)
            (self.state / MARKER).touch()
            try:
                self._up(names, progress)
            except BaseException:
                # Nothing of the machine was touched before the state was written: then the folder is all there is.
                if not state.state_file(self.state).exists():
                    shutil.rmtree(self.state, ignore_errors=True)
                    shutil.rmtree(DISKS_ON_DISK / self.tag, ignore_errors=True)
                raise

    def _up(self, names: Sequence[str], progress: Callable[[str], None]) -> None:
        found = state.load(self.state)
        kind = require.choose_backend(found.backend if found else self.backend)
        if found is None:
            network.pick(self.tag, self.net)
        disks = Path(found.disks) if found else self._choose_disks()
        base = self._make_backend(kind, Names(self.tag, self.net), disks).prepare(progress)
        with network.allocation():
            found = self._claim(found, kind, disks)
            backend = self._backend(found)
            backend.network_up()
        self._make_keys()
        client_key = seed.public_key((self.state / "id_ed25519.pub").read_text(encoding="utf-8"))
        for name in dict.fromkeys(names):
            self._up_host(found, backend, name, base, client_key, progress)
        self._write_access(found)

    def _up_host(
        self, found: State, backend: Backend, name: str, base: str, client_key: str, progress: Callable[[str], None]
    ) -> None:
        if name not in [host.name for host in found.hosts]:
            found.hosts.append(HostRecord(name, next_index(host.index for host in found.hosts), base))
            state.save(self.state, found)
        host = found.host(name)
        address = Names(found.tag, found.net).address(host.index)
        known = self.state / f"host-key-{host.index}"
        if backend.exists(host) and known.exists():
            backend.create(host, ())
        else:
            files, key = seed.seed(name, address, client_key)
            write_file(known, key + "\n")
            backend.create(host, files)
        if not backend.running(host):
            progress(f"{name}: starting at {address}")
            backend.start(host)

    def _claim(self, found: State | None, kind: str, disks: Path) -> State:
        if found is None:
            names = network.pick(self.tag, self.net)
            found = State(self.tag, names.net, kind, str(disks))
        elif self.net not in ("auto", found.net):
            raise SandboxError(f"sandbox {self.tag} uses net {found.net}, not {self.net}; `down` first to change it")
        elif kind == "nspawn":
            # Somebody may have taken the net since; a container engine looks after its own networks.
            network.pick(found.tag, found.net)
        state.save(self.state, found)
        return found

    def _check_tag_is_free(self) -> None:
        entry = state.registered().get(self.tag)
        if entry and entry.get("state") != str(self.state):
            raise SandboxError(
                f"tag {self.tag} is in use by the sandbox in {entry.get('state')}; give another --tag, or end it: "
                f"`python -m specswap_sandbox --tag {self.tag} --state {entry.get('state')} down`"
            )
        found = state.load(self.state)
        if found is not None and found.tag != self.tag:
            self._load()
        if found is None and not self._may_be_removed():
            raise SandboxError(f"state folder {self.state}: holds other files; give a folder that is new or empty")

    def _may_be_removed(self) -> bool:
        """Whether the state folder is absent, made by a sandbox, or holds only what a play still running at `down` puts
        there anew: ssh's folder for kept connections."""
        if not self.state.exists() or (self.state / MARKER).exists():
            return True
        return all(path.name == "control" and _only_sockets(path) for path in self.state.iterdir())

    def _choose_disks(self) -> Path:
        kind = run(["stat", "--file-system", "--format=%T", str(self.state)]).stdout.strip()
        # An overlay cannot lie on an overlay, and memory is too small for models and environments.
        unsuitable = kind in ("tmpfs", "ramfs", "overlayfs")
        if not unsuitable:
            disks = self.state / "hosts"
            disks.mkdir(exist_ok=True)
            return disks
        disks = DISKS_ON_DISK / self.tag
        for folder in (DISKS_ON_DISK, disks):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise SandboxError(f"{folder}: is not a folder that belongs to root alone; look at it and remove it")
        return disks

    def _make_keys(self) -> None:
        key = self.state / "id_ed25519"
        if not key.with_suffix(".pub").exists():
            key.unlink(missing_ok=True)
            seed.make_key(key, f"specswap-{self.tag}")
        control = self.state / "control"
        control.mkdir(mode=0o700, exist_ok=True)
        # Called through sudo, the files that a client needs belong to the person who called.
        if owner := os.environ.get("SUDO_UID"):
            for path in (key, control):
                os.chown(path, int(owner), int(os.environ.get("SUDO_GID", owner)))

    def _write_access(self, found: State) -> None:
        names = Names(found.tag, found.net)
        access = []
        for host in found.hosts:
            known = self.state / f"host-key-{host.index}"
            if known.exists():
                access.append(Access(host.name, names.address(host.index), known.read_text(encoding="utf-8").strip()))
        write_file(self.state / "known_hosts", render_known_hosts(access))
        write_file(self.ssh_config, render_ssh_config(access, self.state))
        write_file(self.inventory, render_inventory(access, self.state))

    def wait(self, timeout_s: float = 60.0) -> dict[str, str]:
        """Wait until every host answers over SSH and its systemd has finished starting.

        Returns the answer of `systemctl is-system-running` per host: `running`, or `degraded` when units failed. Raises
        SandboxError that names the first host which did not answer within `timeout_s` seconds, with the end of its log.
        """
        found = self._load()
        deadline = time.monotonic() + timeout_s
        answers: dict[str, str] = {}
        for host in found.hosts:
            last = "no answer"
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    log = self._backend(found).log(host) if self._is_root() else ""
                    raise SandboxError(
                        f"host {host.name}: not up after {timeout_s:g} s ({last})"
                        + (f"; its console:\n{log}" if log else "")
                    )
                with contextlib.suppress(SandboxError):
                    answer = run(
                        [*self.ssh_argv(host.name, connect_timeout_s=2), "systemctl is-system-running --wait"],
                        check=False,
                        timeout_s=min(left, 30.0),
                    )
                    word = answer.stdout.strip()
                    if word in ("running", "degraded"):
                        answers[host.name] = word
                        break
                    last = word or (answer.stderr.strip().splitlines() or ["no answer"])[-1]
                time.sleep(0.1)
        return answers

    def ssh_argv(self, name: str, connect_timeout_s: int = 10) -> list[str]:
        """The ssh command to a host as user `ops`; append the remote command as one word."""
        return [
            "ssh",
            "-F",
            str(self.ssh_config),
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={connect_timeout_s}",
            name,
        ]

    # --- one host ------------------------------------------------------------------------------------------------

    def exec(
        self, name: str, argv: Sequence[str], timeout_s: float = 30.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside a host, without SSH; works while its network is cut.

        Returns the result whatever its exit code; raises SandboxError when the host does not run or on a time-out.
        """
        if self._is_root():
            return run(self.exec_argv(name, argv), check=False, timeout_s=timeout_s, stdin=stdin)
        # A process that sudo made root cannot be killed from here: the limit has to go along.
        started = time.monotonic()
        result = run(self.exec_argv(name, argv, timeout_s), check=False, timeout_s=timeout_s + 10.0, stdin=stdin)
        if result.returncode in (137, -9) and time.monotonic() - started >= timeout_s:
            raise SandboxError(f"host {name}: `{shlex.join(argv)}` did not end within {timeout_s:g} s")
        return result

    def exec_argv(self, name: str, argv: Sequence[str], timeout_s: float | None = None) -> list[str]:
        """The command on this machine that runs `argv` as root inside a host, through sudo where that is needed.

        With `timeout_s` the command inside is killed after so many seconds.
        """
        found = self._load()
        host = found.host(name)
        if not self._is_root():
            limit = [] if timeout_s is None else ["--timeout", str(timeout_s)]
            words = [self._python(), "-m", "specswap_sandbox", *self._options(), "exec", *limit, name, "--", *argv]
            return require.as_root([*self._environment(), *words])
        limit = [] if timeout_s is None else ["timeout", "--signal=KILL", str(timeout_s)]
        return self._backend(found).exec_argv(host, [*limit, *argv])

    def crash(self, name: str) -> None:
        """Kill the host's PID 1: a power loss. Its disk stays; `start` starts it again."""
        self._on_host("crash", name, lambda backend, host: backend.crash(host))

    def start(self, name: str) -> None:
        """Start a host that crashed or was powered off; a running one is left alone."""
        self._on_host("start", name, lambda backend, host: backend.start(host))

    def cut(self, name: str) -> None:
        """Cut the host's network: packets vanish, as in a partition."""
        self._on_host("cut", name, lambda backend, host: backend.cut(host))

    def heal(self, name: str) -> None:
        """Restore the network of a host that was cut."""
        self._on_host("heal", name, lambda backend, host: backend.heal(host))

    def _on_host(self, word: str, name: str, action: Callable[[Backend, HostRecord], None]) -> None:
        if not self._is_root():
            self._through_sudo(word, name)
            return
        found = self._load()
        action(self._backend(found), found.host(name))

    # --- end -----------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """End all hosts and leave nothing: no process, mount, namespace, link, control group, route, file.

        Works from the names alone, so also after a crash of whoever called `up`, in the middle of it, or with a lost
        state folder. Does nothing, and says nothing, when there is nothing.
        """
        if not self._is_root():
            if self.state.exists() or self.tag in state.registered():
                self._through_sudo("down")
            return
        entry = state.registered().get(self.tag, {})
        if entry and entry.get("state") != str(self.state):
            entry = {}
            if state.load(self.state) is None:
                return
        if not self.state.exists() and not entry:
            state.unregister(self.tag)  # what a killed process half wrote
            return
        if not entry and not self._may_be_removed():
            raise SandboxError(
                f"state folder {self.state}: not made by a sandbox, so not removed; give the right --state"
            )
        with locked_folder(self.state):
            found: State | None = None
            with contextlib.suppress(SandboxError):
                found = state.load(self.state)
            if found is not None and found.tag != self.tag:
                self._load()
            if found is None:
                disks = entry.get("disks", str(self.state / "hosts"))
                found = State(self.tag, entry.get("net", ""), entry.get("backend", "nspawn"), disks)
            self._end_clients()
            self._backend(found).destroy(found.hosts)
            if Path(found.disks).parent == DISKS_ON_DISK:
                with contextlib.suppress(OSError):
                    DISKS_ON_DISK.rmdir()
            shutil.rmtree(self.state)
        state.unregister(self.tag)

    def _end_clients(self) -> None:
        """End SSH connections that Ansible kept open to our hosts: they would outlive the hosts by a minute."""
        control = f"{self.state}/control/"

        def is_master(process: processes.Process) -> bool:
            # ssh shows a persisted connection as `ssh: SOCKET [mux]`.
            return process.argv[0].startswith(f"ssh: {control}")

        for process in processes.find(is_master):
            processes.kill(process.pid)

    def leftovers(self) -> list[str]:
        """What this sandbox still has on the machine, in words; empty after `down`. Needs root to see all."""
        found = state.load(self.state)
        net = found.net if found else state.registered().get(self.tag, {}).get("net", "")
        names = Names(self.tag, net)
        left = [f"link {link}" for link in network.links() if names.owns_link(link)]
        left += [f"namespace {netns}" for netns in network.namespaces() if names.owns_netns(netns)]
        left += [f"route {route.get('dst')}" for route in network.routes() if net and route.get("dst") == names.subnet]
        places = [self.state, DISKS_ON_DISK / self.tag, state.REGISTRY / f"{self.tag}.json"]
        for place in places:
            left += [f"mount {target}" for target in mounts_below(place)]
            left += [f"path {place}"] if place.exists() else []
        left += [f"control group {folder}" for folder in cgroups.existing(names.cgroup)]
        left += [
            f"process {process.pid} {process.argv[0]}"
            for process in processes.find(lambda p: any(f"{place}/" in word for word in p.argv for place in places[:2]))
        ]
        return left

    # --- helpers -------------------------------------------------------------------------------------------------

    def _backend(self, found: State) -> Backend:
        return self._make_backend(found.backend, Names(found.tag, found.net), Path(found.disks))

    @staticmethod
    def _make_backend(kind: str, names: Names, disks: Path) -> Backend:
        if kind == "container":
            return ContainerBackend(names, disks)
        return NspawnBackend(names, disks)

    @staticmethod
    def _is_root() -> bool:
        return os.geteuid() == 0

    @staticmethod
    def _python() -> str:
        return sys.executable

    def _options(self) -> list[str]:
        return ["--state", str(self.state), "--tag", self.tag, "--net", self.net, "--backend", self.backend]

    @staticmethod
    def _environment() -> list[str]:
        """`env` words that carry what sudo drops: where the package is, and the caller's cache."""
        package = Path(__file__).resolve().parent.parent
        return ["env", f"PYTHONPATH={package}", f"SPECSWAP_CACHE={rootfs.cache_folder()}"]

    def _through_sudo(
        self, *words: str, progress: Callable[[str], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of our own command line as root."""
        argv = require.as_root(
            [*self._environment(), self._python(), "-m", "specswap_sandbox", *self._options(), *words]
        )
        if progress is None:
            result = run(argv, check=False, timeout_s=120.0)
            if result.returncode != 0:
                raise SandboxError(result.stderr.strip().removeprefix("error: ") or f"{words[0]} failed")
            return result
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            progress(line.rstrip())
        if process.wait() != 0:
            raise SandboxError("\n".join(lines[-8:]).removeprefix("error: ") or f"{words[0]} failed")
        return subprocess.CompletedProcess(argv, 0, "\n".join(lines), "")

    def install_requirements(self, progress: Callable[[str], None] | None = None) -> list[str]:
        """Install the Debian packages that the backend needs; returns those that were installed."""
        return require.install_requirements(progress or _silent, self.backend)


@contextmanager
def sandbox(
    names: Sequence[str], *, state: Path, tag: str, net: str = "auto", progress: Callable[[str], None] | None = None
) -> Iterator[Sandbox]:
    """A sandbox with running hosts for the length of a `with` block."""
    with Sandbox(state=state, tag=tag, net=net) as made:
        made.up(names, progress)
        made.wait()
        yield made


def down_all(progress: Callable[[str], None]) -> None:
    """End every sandbox of this machine, whatever its tag."""
    for tag, entry in state.registered().items():
        progress(f"ending sandbox {tag} in {entry.get('state')}")
        Sandbox(state=Path(entry["state"]), tag=tag).down()
