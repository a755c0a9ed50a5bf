"""Actions against a host that answers as hosts in trouble do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from action_double import run_action
from ansible.errors import AnsibleError
from ansible_collections.specswap.core.plugins.action import host_facts, slot_rollback, slot_status, slot_swap
from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from inventory_data import collection_root, inventory


@pytest.fixture
def services(tmp_path: Path) -> list[dict[str, Any]]:
    return resolve.services(inventory(), collection_root(tmp_path))


def host(outcome: str, exit_code: int) -> Any:
    """A host whose next job ends with `outcome`."""

    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        if command.startswith("test -x"):
            return 0, "", ""
        if " submit" in command:
            plan = json.loads(data or b"")
            return 0, json.dumps({"job": plan["job"], "slot": plan["slot"], "after": 0}), ""
        detail = {"outcome": outcome, "exit_code": exit_code, "seconds": 0.2, "cause": "x", "advice": "y"}
        end = {"seq": 1, "t_wall": 0.0, "t_mono": 0.0, "job": "j", "tier": None, "event": "job_finished"}
        return 0, json.dumps({**end, "detail": detail}) + "\n", ""

    return answer


@pytest.mark.parametrize(
    ("outcome", "code", "changed"),
    [("swapped", 0, True), ("noop", 0, False), ("refused", 5, False), ("rolled_back", 3, True)],
)
def test_a_job_that_touched_nothing_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], outcome: str, code: int, changed: bool
) -> None:
    for plugin, args in ((slot_swap, {"variant": "ngram"}), (slot_rollback, {})):
        given = {"services": services, **args}
        result, _ = run_action(monkeypatch, plugin.ActionModule, given, shell=host(outcome, code))
        assert (result["changed"], result["failed"]) == (changed, code != 0), result


def bare(command: str, data: bytes | None) -> tuple[int, str, str]:
    return 127, "", "/bin/sh: 1: /usr/local/bin/specswap-host: not found"


def test_check_of_a_swap_on_a_bare_host_fails_as_the_swap_would(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]]
) -> None:
    args = {"services": services, "variant": "ngram"}
    result, _ = run_action(monkeypatch, slot_swap.ActionModule, args, shell=bare, check=True)
    assert result["failed"] and "ansible-playbook site.yml" in result["msg"], result
    args["after_toolkit"] = True
    result, said = run_action(monkeypatch, slot_swap.ActionModule, args, shell=bare, check=True)
    assert not result.get("failed") and result["changed"]
    assert "start llamacpp-ngram-smoke.service" in said[0]


def no_password(command: str, data: bytes | None) -> tuple[int, str, str]:
    raise AnsibleError("Missing sudo password")


def no_sudo(command: str, data: bytes | None) -> tuple[int, str, str]:
    return 127, "", "/bin/sh: 1: sudo: not found\n"


@pytest.mark.parametrize(
    ("shell", "words"), [(no_password, "Missing sudo password"), (no_sudo, "sudo: not found")], ids=["password", "sudo"]
)
def test_a_login_that_cannot_become_root_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, shell: Any, words: str
) -> None:
    result, _ = run_action(monkeypatch, slot_status.ActionModule, {}, shell=shell)
    assert result["failed"] and words in result["msg"] and "ansible_become_password" in result["msg"], result
    assert "Provision it first" not in result["msg"]


def test_the_first_contact_of_a_play_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, args: Any) -> dict[str, Any]:
        return {"failed": True, "rc": 127, "module_stderr": "/bin/sh: 1: sudo: not found\n", "msg": "MODULE FAILURE"}

    result, _ = run_action(monkeypatch, host_facts.ActionModule, {}, module=module)
    assert result["failed"] and "-K" in result["msg"] and "sudo: not found" in result["msg"], result


def test_another_error_of_ansible_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: str, data: bytes | None) -> tuple[int, str, str]:
        raise AnsibleError("no such thing")

    with pytest.raises(AnsibleError, match="no such thing"):
        run_action(monkeypatch, slot_status.ActionModule, {}, shell=broken)
