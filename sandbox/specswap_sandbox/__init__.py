"""Real systemd hosts with real SSH on one machine, for demonstrations and tests."""

from __future__ import annotations

from .core import Sandbox, down_all, sandbox
from .errors import SandboxError
from .require import install_requirements, requirements

__all__ = ["Sandbox", "SandboxError", "down_all", "install_requirements", "requirements", "sandbox"]
