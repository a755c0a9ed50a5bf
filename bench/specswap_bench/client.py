"""One streamed chat request, measured.

The connection is opened and warmed before the clock; the clock starts when the request's bytes are written; nothing is
retried, so that no wait hides behind a retry; the receive loop only reads and stamps.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
import urllib3
import urllib3.exceptions

from .record import RequestRecord, interpret
from .sse import SseParser

_READ_BYTES = 65536


class ClientError(Exception):
    """The client cannot measure at all; the text says why and what to do."""


@dataclass(frozen=True)
class RequestSettings:
    """How requests are made. `stall_s`: longest wait for the next byte; `total_s`: longest request, seconds.

    `extra` goes into the body as it is (engine switches such as `cache_prompt`).
    """

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = 0
    connect_s: float = 5.0
    stall_s: float = 120.0
    total_s: float = 600.0
    per_chunk_usage: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "request") -> RequestSettings:
        """Settings of a plan. Errors: ValueError naming the key under `where`."""
        known = set(cls.__dataclass_fields__)
        for key in data:
            if key not in known:
                raise ValueError(f"{where}.{key}: unknown key; known: {', '.join(sorted(known))}")
        for key, value in data.items():
            if key == "extra":
                good = isinstance(value, Mapping)
            elif key == "per_chunk_usage":
                good = isinstance(value, bool)
            elif key == "seed":
                good = value is None or (isinstance(value, int) and not isinstance(value, bool))
            elif key == "max_tokens":
                good = isinstance(value, int) and not isinstance(value, bool) and value > 0
            else:
                good = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            if not good:
                raise ValueError(f"{where}.{key}: {value!r} does not fit; see the defaults: {cls()}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, all keys."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"extra": dict(self.extra)}


class _StampedBody(io.BytesIO):
    """A request body that notes when it is first read: the moment its bytes go to the socket."""

    t_first_read_s: float | None = None

    def read(self, size: int | None = -1) -> bytes:
        if self.t_first_read_s is None:
            self.t_first_read_s = time.monotonic()
        return super().read(size)


class ChatClient:
    """Streams chat completions from one server over one kept connection; one per thread.

    `base_url`: `http://host:port` without a path. `model`: name sent with every request. Errors: ClientError when the
    HTTP library is too old.
    """

    def __init__(self, base_url: str, model: str, settings: RequestSettings) -> None:
        if not hasattr(urllib3.HTTPResponse, "read1"):
            raise ClientError("this urllib3 cannot read unbuffered (read1): urllib3 >= 2.1 is needed")
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.settings = settings
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy and no .netrc from the environment

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def get_json(self, path: str, timeout_s: float = 10.0) -> Any:
        """GET `path` as JSON; None when the server has no such page or it is no JSON. Errors: ClientError without a
        connection."""
        try:
            reply = self._session.get(self.base_url + path, timeout=timeout_s, allow_redirects=False)
        except requests.RequestException as error:
            raise ClientError(f"{self.base_url}{path}: {_short(error)}") from error
        if reply.status_code != 200:
            return None
        try:
            return reply.json()
        except ValueError:
            return None

    def post_status(self, path: str, timeout_s: float = 10.0) -> tuple[int, str]:
        """POST an empty body to `path`: (status, first 200 characters). Errors: ClientError without a connection."""
        try:
            reply = self._session.post(self.base_url + path, timeout=timeout_s, allow_redirects=False)
        except requests.RequestException as error:
            raise ClientError(f"{self.base_url}{path}: {_short(error)}") from error
        return reply.status_code, reply.text[:200]

    def warm_connection(self) -> None:
        """Open a new connection, so that no request pays for it. Errors: ClientError without a connection.

        The old one is never used again: a server may close it after a stream, just when the next request is written.
        """
        self._session.close()
        self.get_json("/health")

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        prompt: str,
        category: str = "",
        turn: int = 1,
        max_tokens: int | None = None,
    ) -> RequestRecord:
        """Send one request and read its whole stream. Never raises for what the server or the network does."""
        record = RequestRecord(prompt=prompt, category=category, turn=turn)
        settings = self.settings
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens if max_tokens is not None else settings.max_tokens,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.per_chunk_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        if settings.seed is not None:
            body["seed"] = settings.seed
        body.update(settings.extra)
        try:
            self.warm_connection()
        except ClientError as error:
            record.error, record.error_detail = "connection", str(error)
            return record
        stamped = _StampedBody(json.dumps(body).encode("utf-8"))
        events: list[tuple[float, str]] = []
        response: requests.Response | None = None
        try:
            response = self._session.post(
                f"{self.base_url}/v1/chat/completions",
                data=stamped,
                headers={
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream",
                    "Accept-Encoding": "identity",
                },
                timeout=(settings.connect_s, settings.stall_s),
                stream=True,
                allow_redirects=False,
            )
            record.t_sent_s = stamped.t_first_read_s
            record.t_first_byte_s = time.monotonic()
            record.http_status = response.status_code
            if response.status_code != 200:
                record.error = "http_status"
                record.error_detail = f"{response.status_code}: {response.text[:300]}"
                return record
            record.chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
            self._receive(response, record, events)
        except requests.Timeout as error:
            record.error, record.error_detail = "timeout", _short(error)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            _note_break(record, error)
        finally:
            record.t_sent_s = stamped.t_first_read_s
            if response is not None:
                response.close()
        if record.http_status == 200:
            interpret(record, events)
        return record

    def _receive(self, response: requests.Response, record: RequestRecord, events: list[tuple[float, str]]) -> None:
        parser = SseParser()
        deadline = time.monotonic() + self.settings.total_s
        read1 = response.raw.read1
        done = False
        while True:
            data = read1(_READ_BYTES)
            now = time.monotonic()
            if not data:
                return
            for event in parser.feed(data):
                events.append((now, event.data))
                done = done or event.data.strip() == "[DONE]"
            if done and not record.chunked:
                return  # an identity body may stay open for as long as the server likes
            if now > deadline:
                record.error = "timeout"
                record.error_detail = f"the request took longer than {self.settings.total_s:g} s"
                return


def _note_break(record: RequestRecord, error: Exception) -> None:
    """Name what ended a request: the stall limit, a stream cut short, or no connection at all."""
    if isinstance(error, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        record.error, record.error_detail = "timeout", _short(error)
    elif record.http_status == 200:
        record.error, record.error_detail = "truncated", _short(error)
    else:
        record.error, record.error_detail = "connection", _short(error)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
