"""An independent look at the machine: what of a sandbox is there, by the names that its kernel objects carry.

Used before and after `demo --down`, so that "nothing left" is something that was looked up, not something assumed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trace:
    """Where the objects of one sandbox would be found.

    Attributes:
        tag: prefix of links, namespaces and cgroups.
        net: first three octets of the hosts' /24; empty when no sandbox is known.
        state: state folder.
        disks: folder of the hosts' own files, when it is not below `state`.
        proc, sys, run: roots of the kernel's file systems; other ones in tests.
    """

    tag: str
    net: str
    state: Path
    disks: Path | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    run: Path = Path("/run")

    def find(self) -> list[str]:
        """Everything that is there, each as `kind: name`."""
        return [
            *(f"process: {text}" for text in self._processes()),
            *(f"mount: {text}" for text in self._mounts()),
            *(f"network namespace: {text}" for text in _listed(self.run / "netns", f"{self.tag}-ns")),
            *(f"link: {text}" for text in self._links()),
            *(f"route: {text}" for text in self._routes()),
            *(f"cgroup: {text}" for text in self._cgroups()),
            *(f"folder: {path}" for path in (self.state, self.disks) if path is not None and path.exists()),
        ]

    def _folders(self) -> list[Path]:
        return [self.state] if self.disks is None else [self.state, self.disks]

    def _processes(self) -> Iterator[str]:
        own = str(os.getpid())
        marks = (f"specswap-{self.tag}-", *(f"{folder}/" for folder in self._folders()))
        for folder in sorted(self.proc.glob("[0-9]*")):
            if folder.name == own:
                continue
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                groups = (folder / "cgroup").read_text(errors="replace")
            except OSError:
                continue  # it ended while we looked
            if f"/specswap-{self.tag}/" in groups or any(mark in command for mark in marks):
                yield f"{folder.name} {command[:80]}"

    def _mounts(self) -> Iterator[str]:
        try:
            lines = (self.proc / "self" / "mountinfo").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            target = line.split(" ")[4]
            ours = any(target == str(folder) or target.startswith(f"{folder}/") for folder in self._folders())
            if ours or f"/netns/{self.tag}-ns" in target:
                yield target

    def _links(self) -> Iterator[str]:
        for name in _listed(self.sys / "class" / "net", f"{self.tag}-"):
            rest = name.removeprefix(f"{self.tag}-")
            if rest == "br" or (rest[:1] == "v" and rest[1:].isdigit()):
                yield name

    def _routes(self) -> Iterator[str]:
        if not self.net:
            return
        # /proc/net/route holds addresses as little-endian hexadecimal words.
        octets = [int(octet) for octet in self.net.split(".")]
        wanted = "00" + "".join(f"{octet:02X}" for octet in reversed(octets))
        try:
            lines = (self.proc / "net" / "route").read_text().splitlines()[1:]
        except OSError:
            return
        for line in lines:
            fields = line.split()
            if len(fields) > 1 and fields[1] == wanted:
                yield f"{self.net}.0/24 on {fields[0]}"

    def _cgroups(self) -> Iterator[str]:
        name = f"specswap-{self.tag}"
        top = self.sys / "fs" / "cgroup"
        for pattern in (name, f"*/{name}"):
            yield from (str(path) for path in sorted(top.glob(pattern)))


def _listed(folder: Path, prefix: str) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))
    except OSError:
        return []


def counted(found: list[str]) -> str:
    """`3 processes, 2 mounts, 1 link` for people."""
    plural = {"process": "processes"}
    counts = Counter(item.partition(":")[0] for item in found)
    return ", ".join(f"{n} {kind if n == 1 else plural.get(kind, kind + 's')}" for kind, n in counts.items())
