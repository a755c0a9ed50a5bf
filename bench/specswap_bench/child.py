"""A block measured in a process of its own under the service's user: root swaps and never speaks to a server."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections import deque
from typing import Any

from .blocks import BlockError, Progress
from .client import RequestSettings
from .suites import Suite


def run_block_as(
    user: str,
    base_url: str,
    model: str,
    suite: Suite,
    request: RequestSettings,
    *,
    engine: str | None = None,
    warmup_cap: int = 6,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`run_block` by `python -m specswap_bench block --stdin` as `user`; the block in JSON form.

    Whoever is not root measures as themselves. What `progress` raises ends the client. Errors: BlockError, also when
    the client is killed or the user does not exist.
    """
    order = {
        "url": base_url,
        "model": model,
        "suite": suite.to_dict(),
        "request": request.to_dict(),
        "engine": engine,
        "warmup": warmup_cap,
    }
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        try:
            account = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        except KeyError:
            raise BlockError(f"there is no user {user} to run the client; site.yml makes it") from None
    last: deque[str] = deque(maxlen=3)
    # Files, not pipes: a pipe that nobody empties would stop the client in the middle of its measurement.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
        given.write(json.dumps(order).encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "specswap_bench", "block", "--stdin"],
            stdin=given,
            stdout=answer,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            **account,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                last.append(line.rstrip())
                if progress is not None:
                    progress(line.rstrip())
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
        if code != 0:
            words = " / ".join(last).removeprefix("specswap_bench: ")
            raise BlockError(words if code > 0 and words else f"the client ended with {code}: {words or 'no words'}")
        answer.seek(0)
        try:
            block = json.load(answer)
        except ValueError as error:
            raise BlockError(f"the client's answer is no JSON: {error}") from error
    if not isinstance(block, dict):
        raise BlockError(f"the client's answer is a {type(block).__name__}, not a block")
    return block
