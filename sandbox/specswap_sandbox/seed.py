"""What makes a host an individual: its keys, name and machine-id, written before its first start."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from .inventory import USER
from .shell import run


@dataclass(frozen=True)
class SeedFile:
    """One file or folder (`data` is None) of a host, owned by root; `path` is absolute inside the host."""

    path: str
    mode: int
    data: bytes | None


def make_key(path: Path, comment: str) -> None:
    """An ed25519 key pair at `path` and `path`.pub, without a passphrase."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def public_key(text: str) -> str:
    """`TYPE BASE64` of an OpenSSH public key, without its comment."""
    return " ".join(text.split()[:2])


def seed(name: str, address: str, client_key: str) -> tuple[list[SeedFile], str]:
    """The files of a new host and its SSH public key.

    The host's key is made on the machine, so that clients can check it strictly from the first connection on.
    """
    with tempfile.TemporaryDirectory(prefix="specswap-key-") as folder:
        path = Path(folder) / "key"
        make_key(path, name)
        private, public = path.read_bytes(), path.with_suffix(".pub").read_bytes()
    host_key = "/etc/ssh/ssh_host_ed25519_key"
    files = [
        SeedFile(host_key, 0o600, private),
        SeedFile(f"{host_key}.pub", 0o644, public),
        SeedFile("/etc/hostname", 0o644, f"{name}\n".encode()),
        SeedFile("/etc/hosts", 0o644, f"127.0.0.1 localhost\n::1 localhost\n{address} {name}\n".encode()),
        # A fixed id: the journal of a host lies in a folder of this name and must be found again after a crash.
        SeedFile("/etc/machine-id", 0o444, f"{uuid.uuid4().hex}\n".encode()),
        # Outside the home folder: container engines make root the owner of what they copy in, and sshd takes that here.
        SeedFile("/etc/ssh/authorized_keys", 0o755, None),
        SeedFile(f"/etc/ssh/authorized_keys/{USER}", 0o644, f"{client_key}\n".encode()),
    ]
    return files, public_key(public.decode())
