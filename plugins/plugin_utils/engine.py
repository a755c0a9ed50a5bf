"""Engine adapters on the controller: what a variant's arguments mean for one server program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Launch:
    """What an adapter gets to know of a variant in a slot. Paths are paths on the host."""

    release_path: str
    launcher_path: str
    models: Mapping[str, Mapping[str, Any]]
    served_model: str
    identity: str
    bind: str
    port: int
    args: Mapping[str, Any] = field(default_factory=dict)
    raw_args: tuple[str, ...] = ()
    drain_s: float = 10.0


class Engine(Protocol):
    """One server program. An adapter is pure data and pure functions; nothing here talks to a host."""

    name: str
    uses_gpus: bool
    model_roles: tuple[str, ...]
    budgets: Mapping[str, float]
    gate: Mapping[str, Any]
    # What the engine's wheels load from the system: file name -> Debian package.
    libraries: Mapping[str, str]
    # flag -> the inventory key that it is made from; such a flag may not come a second time out of `raw_args`
    owned_flags: Mapping[str, str]

    def problems(self, args: Mapping[str, Any], path: str) -> list[str]:
        """What is wrong with a variant's `args`, each line starting with its key path below `path`."""

    def argv(self, launch: Launch) -> list[str]:
        """The whole command line; `launch.identity` must be among the names it serves."""

    def settings(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What the live server must show about itself, in the words of the host's adapter."""

    def claims(self, args: Mapping[str, Any]) -> dict[str, bool]:
        """What the variant says of itself and the gate may hold it to, such as `drafts`."""


def get_engine(name: str) -> Engine | None:
    """The adapter of that name, or None."""
    return ENGINES.get(name)


def _load() -> dict[str, Engine]:
    from . import engine_llamacpp

    return {engine.name: engine for engine in (engine_llamacpp.LlamaCpp(),)}


ENGINES: dict[str, Engine] = _load()
