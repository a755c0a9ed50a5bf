"""What is wrong in the data is said before any connection is made, with the known names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import Hosts


@pytest.fixture
def no_host(hosts: Hosts, tmp_path: Path) -> Hosts:
    """The same plays against an address where nothing listens: any contact would show as UNREACHABLE."""
    folder = tmp_path / "inventory"
    (folder / "host_vars").mkdir(parents=True)
    nobody = {"ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_ssh_common_args": "-o ConnectTimeout=1"}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"embedded": {"hosts": {"nobody": nobody}}}))
    made = Hosts(hosts.sandbox, tmp_path)
    made.extra_inventory = folder
    return made


@pytest.mark.parametrize(
    ("playbook", "extra", "words"),
    [
        ("swap.yml", {"variant": "ngrm"}, ["ngrm", "baseline", "ngram"]),
        ("swap.yml", {}, ["variant", "baseline", "ngram"]),
        ("swap.yml", {"variant": "ngram", "slot": "smok"}, ["smok", "smoke"]),
        ("compare.yml", {"arms": ["baseline", "nope"]}, ["nope", "baseline", "ngram"]),
        ("compare.yml", {"arms": ["baseline"]}, ["arms", "two"]),
        ("bench.yml", {"suite": "stori"}, ["stori", "story"]),
        (
            "site.yml",
            {
                "specswap_variants": {
                    "baseline": {"environment": "venv_llamacpp", "model": "target", "raw_args": ["--api-key", "hush"]}
                }
            },
            ["specswap_variants.baseline.raw_args", "carries a secret"],
        ),
        (
            "site.yml",
            {"specswap_slots": {"smoke": {"prot": 1, "variant": "baseline"}}},
            ["specswap_slots.smoke", "prot"],
        ),
        (
            "site.yml",
            {"specswap_slots": {"smoke": {"port": 30001, "bind": "0.0.0.0", "variant": "baseline"}}},
            ["bind"],
        ),
        (
            "site.yml",
            {
                "specswap_variants": {
                    "baseline": {"environment": "venv_llamacpp", "model": "target", "args": {"thread": 1}}
                }
            },
            ["specswap_variants.baseline", "thread"],
        ),
    ],
)
def test_bad_data_is_refused_without_contact(no_host: Hosts, playbook: str, extra: dict, words: list[str]) -> None:
    result = no_host.play(playbook, limit="nobody", **extra)
    assert result.rc != 0
    assert "UNREACHABLE" not in result.text, "a connection was tried"
    assert "Traceback" not in result.text
    for word in words:
        assert word in result.text, f"{word!r} is missing in:\n{result.text}"


def test_an_unreachable_host_is_named(no_host: Hosts) -> None:
    """The proof that the test above can fail: with good data the same host is contacted."""
    result = no_host.play("site.yml", limit="nobody")
    assert result.rc != 0
    assert "UNREACHABLE" in result.text
    assert "nobody" in result.text


def test_a_host_with_another_key_is_not_trusted(hosts: Hosts, tmp_path: Path) -> None:
    inventory = yaml.safe_load(hosts.sandbox.inventory.read_text())
    text = yaml.safe_dump(inventory)
    known = tmp_path / "known_hosts"
    key = hosts.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"], "ct201").split()[1]
    known.write_text(f"{hosts.sandbox.address('ct200')} ssh-ed25519 {key}\n")
    folder = tmp_path / "inventory"
    folder.mkdir()
    original = str(hosts.sandbox.inventory.parent / "known_hosts")
    assert original in text, text
    (folder / "hosts.yml").write_text(text.replace(original, str(known)))
    made = Hosts(hosts.sandbox, tmp_path)
    made.extra_inventory = folder
    result = made.play("status.yml")
    assert result.rc != 0
    assert "Host key verification failed" in result.text
