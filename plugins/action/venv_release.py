"""Build a release on the host; send the wheels that it lacks first, and only those."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import parcel, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "release": {"type": "dict", "required": True},
        "keep": {"type": "int", "default": 3},
        "wheelhouse": {"type": "str", "default": ""},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        release = args["release"]
        house = parcel.Wheelhouse(args["wheelhouse"])
        folders = (release["lock_hash"], uv_hash())
        order: dict[str, Any] = {
            "release": release,
            "keep": args["keep"],
            "lock_text": Path(release["lock"]).read_text(encoding="utf-8"),
            "wheels": house.wheels(*folders),
        }
        result = self.module("venv_release", order, task_vars)
        # Also in check mode: the run itself would fail here, after earlier tasks have changed the host.
        if order["wheels"] is None and result["diff"]["after"]:
            raise house.lacking(f"release {release['release']}")
        files = house.files(result["missing"], *folders)
        if files and not self.checking:
            order["incoming"] = parcel.push(self, files)
            result = self.module("venv_release", order, task_vars)
        return result


def uv_hash() -> str:
    """The folder of the pinned uv in the wheelhouse, which builds releases on hosts."""
    return hashlib.sha256((resolve.ROOT / "locks" / "uv.txt").read_bytes()).hexdigest()[:12]
