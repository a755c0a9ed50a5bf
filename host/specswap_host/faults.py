"""From log lines to a known cause: the first traceback of a start, and a table of classified faults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_TRACEBACK = re.compile(r"^(?P<prefix>.*?)Traceback \(most recent call last\):\s*$")
_ERROR_LINE = re.compile(r"\b(error|fatal|failed|exception|cannot|abort(ed)?|no such)\b", re.IGNORECASE)
_MAX_LINES = 60


@dataclass(frozen=True)
class Fault:
    """A known kind of failure: how its line looks, what it means, what to do."""

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str


@dataclass(frozen=True)
class Cause:
    """What a failure was recognised as; `line` is the log line that told."""

    id: str
    cause: str
    fix: str
    line: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _fault(name: str, pattern: str, cause: str, fix: str) -> Fault:
    return Fault(name, re.compile(pattern, re.IGNORECASE), cause, fix)


# In order of precedence: the specific before the general.
FAULTS: tuple[Fault, ...] = (
    _fault(
        "cuda_oom",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|torch\.OutOfMemoryError",
        "the GPU has too little free memory",
        "see who holds it (nvidia-smi), lower the memory fraction or the context length of the variant",
    ),
    _fault(
        "cuda_library",
        r"lib(cudart|cublas|nvrtc|cudnn|nccl)[\w.-]*: cannot open shared object file",
        "the environment was built for another CUDA major version",
        "rebuild the environment from a lock of the flavour that the driver supports",
    ),
    _fault(
        "shared_library",
        r"[\w.+-]+\.so[.\d]*: cannot open shared object file",
        "a system library is missing on the host",
        "install the package that holds it (libgomp.so.1 comes with libgomp1)",
    ),
    _fault(
        "address_in_use",
        r"address already in use|EADDRINUSE|\[Errno 98\]|couldn't bind HTTP server socket|port \d+ is (taken|in use)",
        "another process holds the port",
        "find it with `ss -ltnp`, stop it, or give the slot another port",
    ),
    _fault(
        "no_space",
        r"no space left on device|ENOSPC|\[Errno 28\]|disk quota exceeded",
        "a file system is full",
        "free space (`df -h`), then swap again",
    ),
    _fault(
        "host_oom",
        r"\boom-kill|killed process \d+|MemoryError\b|std::bad_alloc|cannot allocate memory|failed to allocate",
        "the host ran out of memory",
        "lower the context length or raise the unit's memory limit",
    ),
    _fault(
        "import_error",
        r"^(\S+ )*(ModuleNotFoundError|ImportError)\b",
        "a Python package of the environment is missing or does not load",
        "rebuild the environment from its lock (run site.yml)",
    ),
    _fault(
        "unknown_argument",
        r"unrecognized arguments?|unknown argument|no such option|invalid choice|invalid argument: -|error: argument",
        "the engine does not know one of the variant's flags",
        "compare the variant's args and raw_args with `--help` of this engine release",
    ),
    _fault(
        "permission",
        r"permission denied|EACCES|\[Errno 13\]|operation not permitted|read-only file system|\[Errno 30\]",
        "the service user may not use a file or device",
        "check owner and mode of the path in the line, and the unit's sandbox (ProtectSystem, DeviceAllow)",
    ),
    _fault(
        "missing_file",
        r"no such file or directory|FileNotFoundError|\[Errno 2\]|does not exist|failed to open GGUF|status=203/EXEC",
        "a file that the service needs is missing",
        "run site.yml to put releases and models back in place",
    ),
    _fault(
        "model_unreadable",
        r"failed to load model|invalid magic|error loading model|safetensors.*(error|invalid)|not a GGUF",
        "the model's files cannot be loaded",
        "verify the model (site.yml checks its hash) and that this engine release supports it",
    ),
)

_TRACEBACK_FAULT = Fault(
    "python_traceback",
    re.compile("^"),
    "the server ended with a Python exception",
    "read the traceback: its last line names the error",
)


def first_traceback(lines: Sequence[str]) -> list[str]:
    """The first Python traceback in `lines`, down to its exception line; empty when there is none.

    The first one is the root: later ones are what other ranks and wrappers made of it. A prefix in front of
    `Traceback` (time stamps, rank names) is cut from the block's lines where they carry it too.
    """
    for start, line in enumerate(lines):
        match = _TRACEBACK.match(line)
        if not match:
            continue
        prefix = match.group("prefix")
        block = [line[len(prefix) :].rstrip()]
        for follower in lines[start + 1 : start + 1 + 400]:
            text = follower[len(prefix) :] if prefix and follower.startswith(prefix) else follower
            block.append(text.rstrip())
            if text and not text[0].isspace():
                break
        return block if len(block) <= _MAX_LINES else [*block[:10], "  ...", *block[-(_MAX_LINES - 11) :]]
    return []


def error_lines(lines: Sequence[str], limit: int = 8) -> list[str]:
    """The first lines that speak of an error, else the last lines."""
    found = [line.rstrip() for line in lines if _ERROR_LINE.search(line)]
    return found[:limit] if found else [line.rstrip() for line in lines[-limit:]]


def classify(lines: Sequence[str]) -> Cause | None:
    """The known cause of a failure, from the log of one invocation; None when nothing is recognised.

    The exception line of the first traceback decides before the rest of the log does.
    """
    traceback = first_traceback(lines)
    for group in ([traceback[-1]] if traceback else [], lines):
        for fault in FAULTS:
            line = next((text for text in group if fault.pattern.search(text)), None)
            if line is not None:
                return Cause(fault.id, fault.cause, fault.fix, line.strip()[:300])
        if group is not lines and traceback and not any(f.pattern.search(t) for f in FAULTS for t in traceback):
            return Cause(_TRACEBACK_FAULT.id, _TRACEBACK_FAULT.cause, _TRACEBACK_FAULT.fix, traceback[-1].strip()[:300])
    return None
