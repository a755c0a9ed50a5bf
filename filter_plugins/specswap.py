"""Doors from Jinja to plugins/plugin_utils/resolve.py; nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.checks import InventoryError


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with what is wrong in the inventory told as Ansible tells it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InventoryError as error:
            raise AnsibleFilterError(str(error)) from None

    return call


def slots(inventory: dict[str, Any]) -> list[dict[str, Any]]:
    """The slots of this host: name, port, bind, gpus."""
    found = {service["slot"]["name"]: service["slot"] for service in resolve.services(inventory)}
    return [found[name] for name in sorted(found)]


def releases(inventory: dict[str, Any], built_in: str | None = None) -> list[dict[str, str]]:
    """The releases to build, or the one of a built-in environment."""
    return resolve.releases(inventory, built_in=built_in)


class FilterModule:
    """The filters of this collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        functions: dict[str, Callable[..., Any]] = {
            "services": resolve.services,
            "service": resolve.pick,
            "wanted": resolve.wanted,
            "slots": slots,
            "slot": resolve.pick_slot,
            "arms": resolve.arms,
            "releases": releases,
            "models": resolve.models,
            "libraries": resolve.libraries,
        }
        return {name: _told(function) for name, function in functions.items()}
