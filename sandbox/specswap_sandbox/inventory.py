"""The files a controller needs to reach the hosts: Ansible inventory, ssh_config, known_hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

USER = "ops"
GROUP = "embedded"
PYTHON = "/usr/bin/python3"
#: A Unix socket path holds 107 characters; ssh appends a random suffix of 17 to Ansible's 10 characters.
MAX_CONTROL_FOLDER = 75


@dataclass(frozen=True)
class Access:
    """How one host is reached; `public_key` is the host's own key, `TYPE BASE64`."""

    name: str
    address: str
    public_key: str


def ssh_options(state: Path) -> list[str]:
    """Options that make SSH independent of the user's own configuration, keys and known hosts."""
    options = [
        f"UserKnownHostsFile={state}/known_hosts",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "BatchMode=yes",
    ]
    return ["-F", "/dev/null", *(word for option in options for word in ("-o", option))]


def render_inventory(hosts: Sequence[Access], state: Path) -> str:
    """The YAML inventory: hosts in the group `embedded`, with everything needed to connect. JSON strings are YAML."""
    lines = [
        "# Written by the sandbox at every `up`; put your own variables elsewhere.",
        "all:",
        "  children:",
        f"    {GROUP}:",
        "      hosts:" if hosts else "      hosts: {}",
    ]
    for host in hosts:
        lines += [f"        {json.dumps(host.name)}:", f"          ansible_host: {json.dumps(host.address)}"]
    variables: dict[str, str | bool] = {
        "ansible_connection": "ssh",
        "ansible_user": USER,
        "ansible_become": True,
        "ansible_python_interpreter": PYTHON,
        "ansible_ssh_private_key_file": f"{state}/id_ed25519",
        "ansible_ssh_common_args": " ".join(ssh_options(state)),
    }
    # Ansible keeps SSH connections open for a while: in our folder, `down` can end them.
    control = f"{state}/control"
    if len(control) <= MAX_CONTROL_FOLDER:
        variables["ansible_control_path_dir"] = control
    lines.append("      vars:")
    lines += [f"        {key}: {json.dumps(value)}" for key, value in variables.items()]
    return "\n".join(lines) + "\n"


def render_ssh_config(hosts: Sequence[Access], state: Path) -> str:
    """An ssh_config with one entry per host, for `ssh -F` and tools that read such a file."""
    blocks = []
    for host in hosts:
        blocks.append(
            f"Host {host.name}\n"
            f"  HostName {host.address}\n"
            f"  User {USER}\n"
            f"  IdentityFile {state}/id_ed25519\n"
            "  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {state}/known_hosts\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
        )
    return "\n".join(blocks)


def render_known_hosts(hosts: Sequence[Access]) -> str:
    """known_hosts with the keys that were made before the hosts' first start: no trust on first use."""
    return "".join(f"{host.address},{host.name} {host.public_key}\n" for host in hosts)
