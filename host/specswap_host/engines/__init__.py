"""Engine adapters: how one server software is asked whether it is alive, who it is, and to generate."""

from __future__ import annotations

from .base import Answer, Ask, Engine, EngineError, Finding, GenerateError, Probe

__all__ = ["Answer", "Ask", "Engine", "EngineError", "Finding", "GenerateError", "Probe", "get_engine"]

ENGINES = ("llamacpp", "sglang")


def get_engine(name: str) -> Engine:
    """The adapter called `name`; raises `EngineError` with the known names."""
    if name == "llamacpp":
        from .llamacpp import LlamaCpp

        return LlamaCpp()
    if name == "sglang":
        from .sglang import SgLang

        return SgLang()
    raise EngineError(f'engine "{name}": this specswap-host has no such adapter (known: {", ".join(ENGINES)})')
