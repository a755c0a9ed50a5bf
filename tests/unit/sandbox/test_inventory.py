"""The inventory is YAML that Ansible and people read alike; known hosts are strict."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from specswap_sandbox.inventory import Access, render_inventory, render_known_hosts, render_ssh_config

HOSTS = [Access("ct200", "10.203.0.11", "ssh-ed25519 AAAA1"), Access("h2", "10.203.0.12", "ssh-ed25519 AAAA2")]
STATE = Path("/run/specswap-sandbox")


def test_hosts_are_in_the_group_with_all_connection_variables() -> None:
    group = yaml.safe_load(render_inventory(HOSTS, STATE))["all"]["children"]["embedded"]
    assert group["hosts"] == {"ct200": {"ansible_host": "10.203.0.11"}, "h2": {"ansible_host": "10.203.0.12"}}
    variables = group["vars"]
    assert variables["ansible_user"] == "ops" and variables["ansible_become"] is True
    assert variables["ansible_python_interpreter"] == "/usr/bin/python3"
    assert variables["ansible_ssh_private_key_file"] == "/run/specswap-sandbox/id_ed25519"
    words = shlex.split(variables["ansible_ssh_common_args"])
    assert "StrictHostKeyChecking=yes" in words
    assert "UserKnownHostsFile=/run/specswap-sandbox/known_hosts" in words


def test_an_inventory_without_hosts_is_still_valid() -> None:
    assert yaml.safe_load(render_inventory([], STATE))["all"]["children"]["embedded"]["hosts"] == {}


@pytest.mark.parametrize("name", ["123", "no", "null", "1e3"])
def test_names_that_yaml_would_read_as_something_else_stay_strings(name: str) -> None:
    text = render_inventory([Access(name, "10.203.0.11", "k")], STATE)
    assert list(yaml.safe_load(text)["all"]["children"]["embedded"]["hosts"]) == [name]


def test_ansibles_connections_live_in_our_folder_unless_a_socket_path_would_be_too_long() -> None:
    short = yaml.safe_load(render_inventory(HOSTS, STATE))["all"]["children"]["embedded"]["vars"]
    assert short["ansible_control_path_dir"] == "/run/specswap-sandbox/control"
    long = yaml.safe_load(render_inventory(HOSTS, Path("/" + "x" * 90)))["all"]["children"]["embedded"]["vars"]
    assert "ansible_control_path_dir" not in long


def test_known_hosts_and_ssh_config_have_one_entry_per_host() -> None:
    assert render_known_hosts(HOSTS).splitlines() == [
        "10.203.0.11,ct200 ssh-ed25519 AAAA1",
        "10.203.0.12,h2 ssh-ed25519 AAAA2",
    ]
    text = render_ssh_config(HOSTS, STATE)
    assert text.count("StrictHostKeyChecking yes") == 2
    assert "Host h2\n  HostName 10.203.0.12\n" in text
