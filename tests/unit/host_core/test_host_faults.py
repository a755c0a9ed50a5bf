"""Known causes are recognised in log lines, and the first traceback is the root."""

from __future__ import annotations

import pytest
from specswap_host.faults import FAULTS, classify, error_lines, first_traceback


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("OSError: [Errno 98] Address already in use", "address_in_use"),
        ("srv  couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 30001", "address_in_use"),
        ("specswap: cannot bind 127.0.0.1:30001: Address already in use", "address_in_use"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "cuda_oom"),
        ("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory", "cuda_library"),
        ("specswap: error: libgomp.so.1: cannot open shared object file: No such file", "shared_library"),
        ("ModuleNotFoundError: No module named 'xgrammar'", "import_error"),
        ("serve.py: error: unrecognized arguments: --no-such-flag", "unknown_argument"),
        ("error: argument --spec-type: invalid choice: 'x'", "unknown_argument"),
        ("OSError: [Errno 28] No space left on device: '/var/cache/x'", "no_space"),
        ("PermissionError: [Errno 13] Permission denied: '/dev/nvidia0'", "permission"),
        ("specswap: cannot read model /m.gguf: No such file or directory", "missing_file"),
        ("x.service: Main process exited, code=exited, status=203/EXEC", "missing_file"),
        ("llama_model_load: error loading model: unknown architecture", "model_unreadable"),
        ("MemoryError", "host_oom"),
    ],
)
def test_known_causes(line: str, expected: str) -> None:
    cause = classify(["specswap: loading model", line])
    assert cause is not None and cause.id == expected and cause.line == line
    assert cause.fix


def test_healthy_log_has_no_cause() -> None:
    assert classify(["specswap: loading model", "specswap: READY after 0.3 s", "stopping"]) is None


def test_first_traceback_is_the_root() -> None:
    lines = [
        "loading",
        "[TP0] Traceback (most recent call last):",
        '[TP0]   File "scheduler.py", line 7, in run',
        "[TP0] torch.OutOfMemoryError: CUDA out of memory.",
        "[TP1] Traceback (most recent call last):",
        '[TP1]   File "group.py", line 1, in wait',
        "[TP1] RuntimeError: Connection closed by peer, address already in use",
    ]
    block = first_traceback(lines)
    assert block == [
        "Traceback (most recent call last):",
        '  File "scheduler.py", line 7, in run',
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    cause = classify(lines)
    assert cause is not None and cause.id == "cuda_oom", "the root cause decides, not a later message"


def test_unknown_exception_is_still_a_traceback() -> None:
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1', "KeyError: 'draft'"]
    cause = classify(lines)
    assert cause is not None and (cause.id, cause.line) == ("python_traceback", "KeyError: 'draft'")


def test_torn_traceback_and_long_traceback() -> None:
    assert first_traceback(["Traceback (most recent call last):", '  File "x.py"'])[-1] == '  File "x.py"'
    long = ["Traceback (most recent call last):", *[f"  line {i}" for i in range(300)], "ValueError: x"]
    block = first_traceback(long)
    assert len(block) <= 61 and block[-1] == "ValueError: x"


def test_error_lines_fall_back_to_the_end() -> None:
    assert error_lines(["a", "fatal: b", "c"]) == ["fatal: b"]
    assert error_lines([str(i) for i in range(20)]) == [str(i) for i in range(12, 20)]


def test_ids_are_unique() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
