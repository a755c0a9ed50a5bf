"""What the action plugins of this collection share."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible import context
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from .checks import InventoryError, plain
from .job import HostCommandError, HostJob, controller_identity
from .render import RenderError

# An argument specification, as modules have it.
Spec = Mapping[str, Mapping[str, Any]]
# What these mean to a user is in their text; a traceback would only hide it.
_OURS = (InventoryError, HostCommandError, RenderError)
COMMAND_NOT_FOUND = 127
_NO_ROOT = re.compile(r"(?:Missing|Incorrect) \w+ password|\b(?:sudo|su|doas): (?:command )?not found")


class ModuleFailed(Exception):
    """A module failed; its own result becomes the task's."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result.get("msg", "")))
        self.result = result


class Action(ActionBase):  # type: ignore[misc]
    """Base class: checks arguments, turns our errors into plain failures, runs commands on the host."""

    SPEC: ClassVar[Spec] = {}
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars) or {}
        self.host = str((task_vars or {}).get("inventory_hostname", "host"))
        _, checked = self.validate_argument_spec(argument_spec={key: dict(value) for key, value in self.SPEC.items()})
        try:
            result.update(self.work(plain(checked), task_vars or {}))
        except ModuleFailed as error:
            result.update(error.result)
        except _OURS as error:
            result.update(failed=True, msg=str(error))
        except AnsibleError as error:
            told = without_root(str(error))
            if told is None:
                raise
            result.update(failed=True, msg=told)
        return result

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def checking(self) -> bool:
        return bool(self._task.check_mode)

    @property
    def diffing(self) -> bool:
        return bool(self._task.diff)

    def say(self, line: str) -> None:
        """Print at once, while the task still runs."""
        Display().display(f"{self.host}: {line}")

    def shell(self, command: str, data: bytes | None = None) -> tuple[int, str, str]:
        # Input, even if nobody reads it, keeps SSH from making a terminal, which would mix stderr into stdout.
        answer = self._low_level_execute_command(command, in_data=data or b"\n")
        told = without_root(str(answer["stderr"])) if answer["rc"] == COMMAND_NOT_FOUND else None
        if told is not None:
            raise HostCommandError(told)
        return int(answer["rc"]), str(answer["stdout"]), str(answer["stderr"])

    def reset_connection(self) -> None:
        try:
            self._connection.reset()
        except (AnsibleConnectionFailure, NotImplementedError, OSError):
            # Nothing to reset; the next command connects anew or says why it cannot.
            return

    def host_job(self, reconnect_s: float = 180.0) -> HostJob:
        return HostJob(self.shell, self.reset_connection, self.say, reconnect_s)

    def brief(self, result: dict[str, Any]) -> dict[str, Any]:
        """A failed job's result without what was printed already or stands in its message; -v shows all."""
        if result.get("failed") and Display().verbosity == 0:
            return {key: value for key, value in result.items() if key not in ("events", "report", "cause", "advice")}
        return result

    def controller(self) -> dict[str, str]:
        """Who drives, with a command that finds this host again: inventories, host, playbook; no other argument."""
        words = ["ansible-playbook"]
        for inventory in context.CLIARGS.get("inventory") or ():
            words += ["-i", _from_here(str(inventory))]
        words += ["-l", self.host, *(str(name) for name in context.CLIARGS.get("args", ()) if isinstance(name, str))]
        return controller_identity(shlex.join(words))

    def module(self, name: str, args: Mapping[str, Any], task_vars: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One of our modules on the host; raises ModuleFailed when it failed."""
        result: dict[str, Any] = self._execute_module(
            module_name=f"specswap.core.{name}", module_args=dict(args), task_vars=task_vars, **more
        )
        if result.get("failed"):
            told = without_root(str(result.get("module_stderr"))) if result.get("rc") == COMMAND_NOT_FOUND else None
            raise ModuleFailed(result if told is None else {"failed": True, "msg": told})
        result.pop("invocation", None)
        return result


def _from_here(inventory: str) -> str:
    """An inventory as a user types it: Ansible makes the paths absolute. A list of hosts (`a,b`) stays."""
    path = Path(inventory)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else inventory


def without_root(text: str) -> str | None:
    """What to do when `text` says that the login user cannot become root; None when it says something else."""
    found = _NO_ROOT.search(text)
    if found is None:
        return None
    return (
        f"The login user cannot become root on the host: {found.group()}. Give the password (-K, or "
        "ansible_become_password in a vault), let the user run sudo without one, log in as root, or set "
        "ansible_become_method to what the host has (docs/your-own-host.md)."
    )


def as_diff(before: Any, after: Any, header: str) -> dict[str, str]:
    """One entry of a task's `diff`; everything but text is shown as JSON."""

    def text(value: Any) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True) + "\n"

    return {"before": text(before), "after": text(after), "before_header": header, "after_header": header}
