"""An action plugin of ours on a host that exists only as the answers it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action

Answer = Callable[[str, bytes | None], tuple[int, str, str]]


class Told(list[str]):
    """Lines that the action printed."""


def run_action(
    monkeypatch: pytest.MonkeyPatch,
    plugin: type[Action],
    args: Mapping[str, Any],
    *,
    shell: Answer | None = None,
    module: Callable[[str, Mapping[str, Any]], dict[str, Any]] | None = None,
    check: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Told]:
    """`plugin` as Ansible runs it. `shell` answers commands, `module` answers modules: (name, arguments) -> result."""
    task = SimpleNamespace(check_mode=check, diff=False, args=dict(args), async_val=0, action="x", environment=None)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp/none"), has_pipelining=True)
    action = plugin(task, connection, SimpleNamespace(), None, None, None)
    said = Told()
    monkeypatch.setattr(plugin, "say", lambda self, line: said.append(line))
    monkeypatch.setattr(
        plugin, "controller", lambda self: {"user": "ops", "host": "laptop", "command": "ansible-playbook x.yml"}
    )

    def execute(self: Any, command: str, in_data: bytes | None = None, **_: Any) -> dict[str, Any]:
        assert shell is not None, f"nobody was to be asked, and {command} was"
        rc, out, err = shell(command, in_data)
        return {"rc": rc, "stdout": out, "stderr": err}

    def execute_module(self: Any, module_name: str, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert module is not None, f"no module was to run, and {module_name} did"
        return module(module_name.rpartition(".")[2], module_args)

    monkeypatch.setattr(plugin, "_low_level_execute_command", execute)
    monkeypatch.setattr(plugin, "_execute_module", execute_module)
    return action.run(None, {"inventory_hostname": "ct200", **(variables or {})}), said
