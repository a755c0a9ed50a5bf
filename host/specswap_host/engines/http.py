"""One HTTP request with a hard deadline. Never through a proxy, never to another machine's name."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

MAX_BODY = 4 << 20


class HttpError(Exception):
    """No usable reply: refused, reset, past the deadline, too large."""


@dataclass(frozen=True)
class Reply:
    """Status, body and the seconds from the connection attempt to the last byte."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise HttpError(f"HTTP {self.status}, but the body is not JSON: {self.body[:120]!r}") from error


def reachable_address(bind: str) -> str:
    """The address to connect to for a server that is bound to `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)


def request(
    bind: str, port: int, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 2.0
) -> Reply:
    """Send one request and read the whole reply within `timeout_s`, else `HttpError`.

    Socket time-outs count per operation, so a server that sends a byte now and then would outlive them:
    a timer closes the connection at the deadline.
    """
    start = time.monotonic()
    connection = http.client.HTTPConnection(reachable_address(bind), port, timeout=timeout_s)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    timer.start()
    payload = None if body is None else json.dumps(body).encode()
    headers = {"Connection": "close", "Content-Type": "application/json"} if payload else {"Connection": "close"}
    try:
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        data = response.read(MAX_BODY + 1)
    except (OSError, http.client.HTTPException) as error:
        if expired.is_set() or isinstance(error, TimeoutError):
            raise HttpError(f"{method} {path}: no complete reply within {timeout_s:g} s") from error
        raise HttpError(f"{method} {path}: {type(error).__name__}: {error}") from error
    finally:
        timer.cancel()
        connection.close()
    if expired.is_set():
        raise HttpError(f"{method} {path}: no complete reply within {timeout_s:g} s")
    if len(data) > MAX_BODY:
        raise HttpError(f"{method} {path}: reply larger than {MAX_BODY} bytes")
    return Reply(response.status, data, time.monotonic() - start)
