"""Where a client on the host finds a service. Pure, so that the controller can say it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def service_url(service: Mapping[str, Any]) -> str:
    """Base URL of a service as a client on the host reaches it."""
    bind = service["slot"]["bind"]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
    return f"http://{f'[{address}]' if ':' in address else address}:{service['slot']['port']}"
