"""Who listens on a port, and which processes belong to which unit, read from /proc alone."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """One listening TCP socket and one process that holds it; `pid` is None when the holder cannot be seen."""

    address: str
    port: int
    inode: int
    pid: int | None = None
    cgroup: str = ""
    command: str = ""

    def describe(self) -> str:
        if self.pid is None:
            return f"{self.address}:{self.port} held by an unseen process (look as root)"
        return f"pid {self.pid} ({self.command or '?'}) on {self.address}:{self.port} in {self.cgroup or '?'}"


def in_cgroup(cgroup: str, control_group: str) -> bool:
    """True when `cgroup` is `control_group` or lies below it."""
    return bool(control_group) and (cgroup == control_group or cgroup.startswith(control_group + "/"))


def unit_of(cgroup: str) -> str:
    """The service that a cgroup path belongs to, or an empty text."""
    return next((part for part in reversed(cgroup.split("/")) if part.endswith(".service")), "")


def named_by_processes(paths: Iterable[Path], files: Iterable[str], proc: Path = Path("/proc")) -> set[Path]:
    """Those of `paths` that a process names in one of its `files` (`cmdline`, `environ`, `maps`): they are in use.

    A process that may not be looked into names nothing; root may look into all.
    """
    left = set(paths)
    found: set[Path] = set()
    for name in files:
        for file in proc.glob(f"[0-9]*/{name}"):
            if not left:
                return found
            try:
                data = file.read_bytes()
            except OSError:
                continue  # it has just ended
            named = {path for path in left if os.fsencode(path) in data}
            found, left = found | named, left - named
    return found


class ProcFs:
    """/proc of this host, or a copy of one below `root` (tests)."""

    def __init__(self, root: str | Path = "/proc") -> None:
        self.root = str(root)
        self._prefix: str | None = None

    def listeners(self, port: int, bind: str | None = None) -> list[Listener]:
        """Listening sockets on `port` with all their holders; with `bind`, only those that could answer for it."""
        found = [
            (address, inode) for address, inode in self._listening(port) if bind is None or _answers_for(address, bind)
        ]
        if not found:
            return []
        holders = self._holders({inode for _, inode in found})
        result = []
        for address, inode in found:
            pids = holders.get(inode)
            if not pids:
                result.append(Listener(address, port, inode))
                continue
            for pid in sorted(pids):
                result.append(Listener(address, port, inode, pid, self.cgroup(pid), self.command(pid)))
        return result

    def members(self, control_group: str) -> list[int]:
        """Live processes in the cgroup or below it; zombies hold nothing and do not count."""
        if not control_group:
            return []
        return [
            pid for pid in self._pids() if in_cgroup(self.cgroup(pid), control_group) and self._state(pid) not in "ZX"
        ]

    def cgroup(self, pid: int) -> str:
        """The process' cgroup as systemd names it (`/system.slice/x.service`); empty when the process is gone."""
        path = self._raw_cgroup(pid)
        prefix = self._root_prefix()
        return path[len(prefix) :] or "/" if prefix and path.startswith(prefix + "/") else path

    def cmdline(self, pid: int) -> list[str]:
        """The command line as the kernel has it; empty when the process is gone."""
        data = self._read(f"{pid}/cmdline")
        parts = data.split(b"\0")
        return [part.decode("utf-8", "surrogateescape") for part in parts[:-1]] if data else []

    def command(self, pid: int) -> str:
        """The command line for people, at most 160 characters."""
        text = " ".join(self.cmdline(pid)) or self._read(f"{pid}/comm").decode("utf-8", "replace").strip()
        return text if len(text) <= 160 else text[:157] + "..."

    def describe(self, pid: int) -> str:
        return f"pid {pid} ({self.command(pid) or 'gone'})"

    # /proc/PID/cgroup has one line per hierarchy; systemd's own is `name=systemd` on v1 and hybrid, `0::` on v2.
    def _raw_cgroup(self, pid: int) -> str:
        unified = ""
        for line in self._read(f"{pid}/cgroup").decode("utf-8", "replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "name=systemd":
                return path
            if not controllers:
                unified = path
        return unified

    def _root_prefix(self) -> str:
        if self._prefix is None:
            own = self._raw_cgroup(1)
            self._prefix = own[: -len("/init.scope")] if own.endswith("/init.scope") else ""
        return self._prefix

    def _listening(self, port: int) -> Iterator[tuple[str, int]]:
        wanted = f":{port:04X}"
        for table in ("net/tcp", "net/tcp6"):
            for line in self._read(table).decode("ascii", "replace").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(wanted):
                    yield _address(fields[1].split(":")[0]), int(fields[9])

    def _holders(self, inodes: set[int]) -> dict[int, set[int]]:
        wanted = {f"socket:[{inode}]": inode for inode in inodes}
        holders: dict[int, set[int]] = {}
        # os.scandir and os.readlink, as this runs in every poll and pathlib costs several times as much.
        for pid in self._pids():
            folder = f"{self.root}/{pid}/fd"
            try:
                names = os.listdir(folder)  # noqa: PTH208
            except OSError:
                continue
            for name in names:
                try:
                    inode = wanted.get(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
                except OSError:
                    continue
                if inode is not None:
                    holders.setdefault(inode, set()).add(pid)
        return holders

    def _pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self.root) if name.isdigit()]  # noqa: PTH208

    def _state(self, pid: int) -> str:
        # The command name in parentheses may itself contain blanks and parentheses.
        return self._read(f"{pid}/stat").decode("utf-8", "replace").rpartition(")")[2].strip()[:1] or "X"

    def _read(self, name: str) -> bytes:
        try:
            with open(f"{self.root}/{name}", "rb") as stream:  # noqa: PTH123
                return stream.read()
        except OSError:
            return b""


def _address(hexadecimal: str) -> str:
    """The kernel's form (32-bit words in host order, here little-endian) as an address."""
    words = [bytes.fromhex(hexadecimal[i : i + 8])[::-1] for i in range(0, len(hexadecimal), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _answers_for(address: str, bind: str) -> bool:
    """Could a socket on `address` take or block connections meant for `bind`?"""
    if "0.0.0.0" in (address, bind) or "::" in (address, bind):
        return True
    try:
        here, there = ipaddress.ip_address(address), ipaddress.ip_address(bind)
    except ValueError:
        return True
    # `localhost` may mean either loopback address, so a listener on the other one would catch our clients.
    return here == there or (here.is_loopback and there.is_loopback)
