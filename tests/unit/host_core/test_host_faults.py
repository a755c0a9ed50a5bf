"""Known causes are recognised in log lines, and the first traceback is the root."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sglang_double
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
    long = ["Traceback (most recent call last):", *[f"  line {i}" for i in range(300)], "ValueError: x", "after"]
    assert first_traceback(long) == long[:-1], "an unknown cause is shown whole"


EXPECTED = {
    "cuda_oom": "cuda_oom",
    "no_kv_memory": "kv_memory",
    "abi_undefined_symbol": "abi_mismatch",
    "abi_cudart13": "cuda_library",
    "abi_cudart12": "cuda_library",
    "libnuma": "numa_library",
    "xgrammar_import": "xgrammar_pair",
    "xgrammar_tvm_ffi": "xgrammar_pair",
    "flashinfer_version": "version_floor",
    "flashinfer_sm120": "flashinfer_arch",
    "flashinfer_no_arch": "flashinfer_arch",
    "trtllm_arch": "backend_arch",
    "ninja_missing": "ninja_missing",
    "nvcc_missing": "nvcc_missing",
    "no_kernel_image": "no_kernel_image",
    "no_gpu": "no_gpu",
    "address_in_use": "address_in_use",
}


def run_double(*flags: str) -> list[str]:
    """The whole log of a double that dies at its start."""
    quick = ("--double-load-s=0", "--double-kv-s=0", "--double-graph-s=0", "--double-crash-pause-s=0")
    argv = [sys.executable, sglang_double.__file__, "--model-path", "/m", "--port", "1", *quick, *flags]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=30, start_new_session=True)
    assert done.returncode != 0
    return done.stderr.splitlines()


@pytest.mark.parametrize("name", sglang_double.CRASHES)
def test_every_death_of_the_double_has_its_cause(name: str) -> None:
    lines = run_double(f"--double-crash-with={name}")
    cause = classify(lines)
    assert cause is not None and cause.id == EXPECTED[name], lines
    error = sglang_double.CRASHES[name].error
    if error:
        wanted = [line.rstrip() for line in error.splitlines()]
        assert first_traceback(lines)[-len(wanted) :] == wanted, "the root's exception is shown whole"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--no-such-flag",), "unknown_argument"),
        (("--speculative-algorithm", "DDTREE"), "unknown_algorithm"),
        (("--speculative-algorithm", "DFLASH"), "draft_model"),
        (("--served-model-name", "a:b"), "python_traceback"),
        (("--double-check-paths",), "missing_file"),
    ],
)
def test_refused_settings_of_the_double(flags: tuple[str, ...], expected: str) -> None:
    cause = classify(run_double(*flags))
    assert cause is not None and cause.id == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ImportError: x.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib", "abi_mismatch"),
        ("OSError: x.so: undefined symbol: _ZN3c104cuda9SetDeviceEa", "abi_mismatch"),
        ("ImportError: c10_cuda_check_implementation", "abi_mismatch"),
        ("ImportError: y.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs", "abi_mismatch"),
        ("ImportError: z.so: undefined symbol: cuGreenCtxStreamCreate", "driver_too_old"),
        ("OSError: z.so: undefined symbol: cudaLibraryGetKernel", "driver_too_old"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver_too_old"),
        ("ImportError: libnvrtc.so.13: cannot open shared object file: No such file or directory", "cuda_library"),
        ("ImportError: libcublasLt.so.12: cannot open shared object file: No such file", "cuda_library"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by a.so)", "glibc_too_old"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by a.so)", "glibc_too_old"),
        ("AttributeError: module 'xgrammar' has no attribute 'CachedGrammarCompiler'", "xgrammar_pair"),
        (
            "ValueError: 'qwen3_asr' is already used by a Transformers config, pick another name.",
            "transformers_version",
        ),
        ("RuntimeError: SM 12.x requires CUDA >= 12.9", "flashinfer_arch"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas_arch"),
        ("x.cu:5:10: fatal error: cuda_fp8.h: No such file or directory", "jit_header"),
        ("x.cu:5:10: fatal error: cublasLt.h: No such file or directory", "jit_header"),
        ("RuntimeError: Error building extension 'fused_ops'", "jit_failed"),
        ("LLVM ERROR: cannot allocate executable memory", "executable_memory"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch"),
        ("RuntimeError: CUDA error: system not yet initialized", "fabric_manager"),
        ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "gpu_lost"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_access"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error", "nccl"),
        ("ValueError: DFLASH fc.weight shape mismatch: (1, 2) != (3, 4)", "draft_model"),
        ("ValueError: Both --speculative-num-draft-tokens and --x are set but they differ.", "settings_conflict"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "model_access"),
        ("ValueError: Port 30234 is used by a process already", "internal_port"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "shm_full"),
        ("DataLoader worker is killed by signal: Bus error.", "shm_full"),
        ("OSError: [Errno 24] Too many open files", "too_many_files"),
        ("ibv_reg_mr failed: Cannot allocate memory", "memlock"),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/flashinfer'", "jit_cache"),
        ("OSError: [Errno 30] Read-only file system: '/home/x/.triton/cache'", "jit_cache"),
        ("x.service: Main process exited, code=killed, status=31/SYS", "bad_system_call"),
        ("x.service: Failed at step CREDENTIALS spawning: status=243/CREDENTIALS", "credentials"),
        ("x.service: Start request repeated too quickly.", "start_limit"),
        ("Watchdog timeout (self.watchdog_timeout=300)", "watchdog"),
        ("Initialization failed. warmup error: connection refused", "warmup_failed"),
        ("Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup...", "child_died"),
    ],
)
def test_symptoms_of_engines_and_hosts(line: str, expected: str) -> None:
    cause = classify(["loading", line])
    assert cause is not None and (cause.id, cause.line) == (expected, line[:300])


def test_harmless_lines_of_a_healthy_start_are_no_cause() -> None:
    assert classify([f"[2026-12-01 15:00:00] {line}" for line in sglang_double.HARMLESS_LINES]) is None


def test_an_exception_that_only_tells_of_another_death_is_not_the_cause() -> None:
    lines = [
        "[2026-12-01 15:00:00] Rank 0 scheduler is dead. Please check if there are relevant logs.",
        "Traceback (most recent call last):",
        '  File "engine.py", line 1, in wait',
        "EOFError",
    ]
    cause = classify(lines)
    assert cause is not None and cause.id == "child_died"


def test_every_fault_says_cause_and_fix() -> None:
    assert all(fault.cause and fault.fix and not fault.cause.endswith(".") for fault in FAULTS)


def test_error_lines_fall_back_to_the_end() -> None:
    assert error_lines(["a", "fatal: b", "c"]) == ["fatal: b"]
    assert error_lines([str(i) for i in range(20)]) == [str(i) for i in range(12, 20)]


def test_ids_are_unique() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
