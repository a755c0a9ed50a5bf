"""Fixtures: a factory of doubles, and two healthy ones that tests share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from double_process import FAST, PROGRAM, READY, Double, Launch, free_port


@pytest.fixture(scope="session")
def launch_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """A factory of doubles; whatever it started, escaped children included, is gone at the end."""
    started: list[Double] = []

    def launch(
        *flags: str, wait: str | None = READY, port: int | None = None, command: Any = None, **switches: Any
    ) -> Double:
        chosen = port or free_port()
        log_path = tmp_path_factory.mktemp("double") / "log"
        argv = [
            *(command or [sys.executable, str(PROGRAM)]),
            "--model-path",
            "/models/t",
            "--port",
            str(chosen),
            *flags,
        ]
        environment = {
            **os.environ,
            **switches.pop("environment", {}),
            "SGLANG_DOUBLE": json.dumps({**FAST, **switches}),
        }
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        double = Double(process, chosen, log_path)
        started.append(double)
        if wait:
            double.wait_log(wait)
        return double

    yield launch
    for double in started:
        if double.process.poll() is None:
            for pid in double.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            double.process.kill()
        double.process.wait(timeout=10)
        for pid in re.findall(r"scheduler (\d+) left the process tree", double.log):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def launch(launch_session: Launch) -> Launch:
    return launch_session


@pytest.fixture(scope="session")
def baseline(launch_session: Launch) -> Double:
    """A healthy server without speculation."""
    return launch_session("--served-model-name", "tiny", "--enable-metrics", "--attention-backend", "triton")


@pytest.fixture(scope="session")
def dflash(launch_session: Launch, tmp_path_factory: pytest.TempPathFactory) -> Double:
    """A healthy DFLASH server whose draft has block size 8."""
    draft = tmp_path_factory.mktemp("draft")
    (draft / "config.json").write_text(json.dumps({"block_size": 16, "dflash_config": {"block_size": 8}}))
    flags = ["--speculative-algorithm", "dflash", "--speculative-draft-model-path", str(draft)]
    return launch_session("--served-model-name", "tiny", "--enable-metrics", "--attention-backend", "triton", *flags)
