"""What a sandbox remembers: `state.json` in its state folder, and one registry entry per tag."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import SandboxError
from .shell import write_file

SCHEMA = 1
#: One file per tag; lets `down` find a sandbox whose state folder is lost, and `down --all` find every one.
REGISTRY = Path("/run/specswap-sandboxes")


@dataclass(frozen=True)
class HostRecord:
    """One host: its name, its index (from 1; gives address and link names) and the root file system below its disk."""

    name: str
    index: int
    rootfs: str


@dataclass
class State:
    """All that is needed to find a sandbox again. `disks` is the folder that holds the hosts' own files."""

    tag: str
    net: str
    backend: str
    disks: str
    hosts: list[HostRecord] = field(default_factory=list)

    def host(self, name: str) -> HostRecord:
        """The record of `name`; raises SandboxError that lists the hosts that exist."""
        for record in self.hosts:
            if record.name == name:
                return record
        known = ", ".join(record.name for record in self.hosts) or "none"
        raise SandboxError(f"host {name}: not in this sandbox (hosts: {known}); `up {name}` makes it")


def state_file(folder: Path) -> Path:
    return folder / "state.json"


def load(folder: Path) -> State | None:
    """The state in `folder`, or None when there is none. Raises SandboxError on a file that is not ours."""
    path = state_file(folder)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SandboxError(f"{path}: unreadable ({error}); `down` removes the sandbox and this file") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SandboxError(f"{path}: written by another version; `down` removes the sandbox and this file")
    return State(
        tag=data["tag"],
        net=data["net"],
        backend=data["backend"],
        disks=data["disks"],
        hosts=[HostRecord(**host) for host in data["hosts"]],
    )


def save(folder: Path, state: State) -> None:
    """Write `state.json` by rename, and the registry entry of the tag."""
    write_file(state_file(folder), json.dumps({"schema": SCHEMA, **asdict(state)}, indent=2) + "\n")
    REGISTRY.mkdir(parents=True, exist_ok=True)
    entry = {"state": str(folder), "disks": state.disks, "net": state.net, "backend": state.backend}
    write_file(REGISTRY / f"{state.tag}.json", json.dumps(entry) + "\n")


def registered() -> dict[str, dict[str, str]]:
    """Registry entries by tag: where the sandbox of each tag keeps its state."""
    entries: dict[str, dict[str, str]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(REGISTRY.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                entries[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def unregister(tag: str) -> None:
    """Drop the registry entry of `tag`, and the registry itself with its last entry."""
    (REGISTRY / f"{tag}.json").unlink(missing_ok=True)
    # A process killed before its rename leaves the half that it had written.
    for torn in REGISTRY.glob(f".{tag}.json.*"):
        torn.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        REGISTRY.rmdir()
