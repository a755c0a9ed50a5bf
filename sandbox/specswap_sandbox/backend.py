"""What a backend does for the sandbox. `Sandbox` keeps names, state and files; a backend makes hosts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .rootfs import Progress
from .seed import SeedFile
from .state import HostRecord


class Backend(Protocol):
    """Every method is idempotent; all raise SandboxError."""

    def prepare(self, progress: Progress) -> str:
        """Build what hosts start from; returns its name, kept in the records of new hosts."""

    def network_up(self) -> None:
        """Make the common network."""

    def exists(self, host: HostRecord) -> bool:
        """Whether the host's disk was created and seeded."""

    def create(self, host: HostRecord, files: Sequence[SeedFile]) -> None:
        """Make disk and network of the host; `files` are written when the disk is new."""

    def running(self, host: HostRecord) -> bool:
        """Whether the host's systemd process lives."""

    def start(self, host: HostRecord) -> None:
        """Start a host that does not run."""

    def crash(self, host: HostRecord) -> None:
        """Kill the host's PID 1 and wait until everything inside is gone: a power loss."""

    def connected(self, host: HostRecord) -> bool:
        """Whether the host's network is not cut."""

    def cut(self, host: HostRecord) -> None:
        """Cut the host's network; connections hang, nothing is refused."""

    def heal(self, host: HostRecord) -> None:
        """Restore the host's network."""

    def exec_argv(self, host: HostRecord, argv: Sequence[str]) -> list[str]:
        """The command on the machine that runs `argv` as root inside the host."""

    def log(self, host: HostRecord) -> str:
        """The last lines that the host wrote to its console, for error messages."""

    def destroy(self, hosts: Sequence[HostRecord]) -> None:
        """End all hosts and remove every kernel object that carries the sandbox's names, also of hosts not listed."""
