"""The one error type of the sandbox."""

from __future__ import annotations


class SandboxError(RuntimeError):
    """Something the user can act on: the message names the host, file or network and the way out."""
