"""From log lines to a known cause: the first traceback of a start, and a table of classified faults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_TRACEBACK = re.compile(r"^(?P<prefix>.*?)Traceback \(most recent call last\):\s*$")
_ERROR_LINE = re.compile(r"\b(error|fatal|failed|exception|cannot|abort(ed)?|no such)\b", re.IGNORECASE)
# What a process says when another one has died: its cause stands elsewhere.
_CONSEQUENCE = re.compile(r"^(EOFError|BrokenPipeError|Connection\w*Error|KeyboardInterrupt|SystemExit)\b")
_EMPTY_MESSAGE = re.compile(r"^\w[\w.]*(Error|Exception|Exit|Interrupt):\s*$")
# The next record of a log, so the end of an exception's text: a time stamp, a level, another traceback.
_RECORD = re.compile(
    r"^\[?\d{4}-\d\d-\d\d|^(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|Traceback \(most recent call last\)|^specswap: "
)
_MAX_FRAMES = 400
_MAX_MESSAGE = 40


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


# In order of precedence: the specific before the general. The patterns stay close to the words of the engines.
FAULTS: tuple[Fault, ...] = (
    # --- GPU memory
    _fault(
        "kv_memory",
        r"Not enough memory\. Please try to increase --mem-fraction-static|No available memory for the cache blocks",
        "after the weights no memory is left for the KV cache",
        "raise mem_fraction_static, shorten the context, or use more GPUs; a draft model needs room, too",
    ),
    _fault(
        "cuda_oom",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|torch\.OutOfMemoryError",
        "the GPU has too little free memory",
        "see who holds it (nvidia-smi), lower the memory fraction or the context length of the variant",
    ),
    # --- what was built for something else
    _fault(
        "driver_too_old",
        r"undefined symbol: (cuGreenCtxStreamCreate|cudaLibraryGetKernel|cu[A-Z]\w+)"
        r"|CUDA driver version is insufficient|forward compatibility was attempted",
        "the NVIDIA driver is older than the CUDA version that the environment was built with",
        "update the driver, or build the environment from a lock of an older CUDA flavour",
    ),
    _fault(
        "abi_mismatch",
        r"undefined symbol: \S*(c10|at|torch|MessageLogger|parseSchemaOrName)|c10_cuda_check_implementation",
        "a compiled package was built for another version of torch",
        "rebuild the environment from one lock (site.yml); kernel packages and torch must be the pinned pair",
    ),
    _fault(
        "cuda_library",
        r"lib(cudart|cublas(Lt)?|nvrtc|cudnn|nccl)[\w.-]*: cannot open shared object",
        "a package of the environment was built for another CUDA major version than the others",
        "rebuild the environment from a lock of one flavour: .so.13 belongs to cu130, .so.12 to cu128 and cu129",
    ),
    _fault(
        "numa_library",
        r"libnuma\.so\.1: cannot open shared object",
        "libnuma is missing on the host",
        "install the package libnuma1 (numactl-libs on RPM systems)",
    ),
    _fault(
        "glibc_too_old",
        r"version `GLIBC(XX)?_[\d.]+' not found",
        "the host's C or C++ library is older than the environment's wheels need",
        "compile the lock for the host's glibc (./specswap lock), or use a newer host",
    ),
    _fault(
        "shared_library",
        r"[\w.+-]+\.so[.\d]*: cannot open shared object file",
        "a system library is missing on the host",
        "install the package that holds it (libgomp.so.1 comes with libgomp1)",
    ),
    _fault(
        "version_floor",
        r"is installed with version .*, which is less than the minimum required version",
        "a package of the environment is older than the engine demands",
        "compile the lock anew so that the engine's own pin wins (./specswap lock), then site.yml",
    ),
    _fault(
        "xgrammar_pair",
        r"Mismatched type on argument .*xgrammar|cannot import name '\w+' from 'xgrammar|CachedGrammarCompiler",
        "xgrammar and its partners (apache-tvm-ffi, the engine) are not the pinned versions",
        "rebuild the environment from its lock; never replace xgrammar alone; grammar_backend: none does not avoid it",
    ),
    _fault(
        "transformers_version",
        r"is already used by a Transformers config|does not recognize this architecture|"
        r"Transformers does not recognize|Could not import module '\w+'\. Are this object's requirements",
        "this version of transformers does not fit the engine or the model",
        "compile the lock with the engine's own pin of transformers",
    ),
    # --- kernels and their compilers
    _fault(
        "flashinfer_arch",
        r"FlashInfer requires GPUs with sm75 or higher|No supported CUDA architectures found|SM 12\.x requires CUDA",
        "FlashInfer's compiler does not know this GPU: the CUDA toolkit is too old (capability 12.x needs 12.9)",
        "give the unit a toolkit >= 12.9 (CUDA_HOME), or use attention_backend and draft back-end triton and greedy"
        " requests: sampling with top-k or top-p compiles, too",
    ),
    _fault(
        "backend_arch",
        r"Unsupported architecture|TllmGenFmhaRunner|trtllm\w* .*not supported on",
        "the attention back-end does not support this GPU",
        "set attention_backend (and the draft's) to triton; trtllm_* back-ends exist for compute capability 10.x only",
    ),
    _fault(
        "no_kernel_image",
        r"no kernel image is available for execution",
        "a compiled package holds no code for this GPU",
        "use a release of it that was built for this compute capability",
    ),
    _fault(
        "ptxas_arch",
        r"ptxas.*(sm_\d+a?|\.target).*|Value 'sm_\d+\w*' is not defined",
        "the assembler that Triton brings does not know this GPU",
        "set TRITON_PTXAS_PATH in the variant's env to the ptxas of a newer CUDA toolkit",
    ),
    _fault(
        "nvcc_missing",
        r"Could not find nvcc|nvcc: (command )?not found|No such file or directory: '[\w/.-]*nvcc'",
        "a kernel must be compiled and there is no CUDA compiler",
        "install the CUDA toolkit and set CUDA_HOME in the variant's env",
    ),
    _fault(
        "ninja_missing",
        r"No such file or directory: 'ninja'|Ninja is required|ninja: (command )?not found",
        "a kernel must be compiled and ninja is not on the unit's PATH",
        "put the release's bin folder on PATH in the variant's env (systemd's own PATH lacks it)",
    ),
    _fault(
        "jit_header",
        r"fatal error: [\w/]*(cuda|cublas|cudnn|nvrtc|cutlass|curand)\w*\.h\w*: No such file",
        "a header of the CUDA toolkit is missing, so kernels cannot be compiled",
        "install the toolkit's development packages, not only nvcc",
    ),
    _fault(
        "jit_failed",
        r"Error building extension|ninja: build stopped|nvcc fatal|JIT compilation (failed|error)",
        "compiling a kernel failed",
        "read the compiler's lines above; a pre-built cache or attention_backend triton avoids the compilation",
    ),
    _fault(
        "executable_memory",
        r"cannot allocate executable memory",
        "the unit forbids memory that is writable and executable, and a compiler at run time needs it",
        "leave MemoryDenyWriteExecute out of the unit",
    ),
    # --- GPU and driver
    _fault(
        "driver_mismatch",
        r"Driver/library version mismatch|NVML: .*mismatch",
        "the driver's kernel module and its libraries differ, usually after an update",
        "reload the module or reboot; hold the driver's packages back",
    ),
    _fault(
        "fabric_manager",
        r"CUDA error: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|\berror 802\b",
        "the GPUs of an NVSwitch machine wait for the fabric manager",
        "start nvidia-fabricmanager in exactly the driver's version",
    ),
    _fault(
        "gpu_lost",
        r"\bXid \(|fallen off the bus|GPU is lost|uncorrectable ECC|CUDA_ERROR_ECC|unspecified launch failure",
        "a GPU has failed",
        "see dmesg for Xid lines; take the GPU out of the slot, reboot the host",
    ),
    _fault(
        "no_gpu",
        r"No CUDA GPUs are available|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|Found no NVIDIA driver"
        r"|CUDA unknown error|nvidia-uvm",
        "the process sees no GPU",
        "check nvidia-smi, /dev/nvidia*, /dev/nvidia-uvm, the slot's gpus and the unit's DeviceAllow",
    ),
    _fault(
        "illegal_access",
        r"an illegal memory access was encountered|device-side assert triggered|misaligned address",
        "a kernel went wrong on the GPU",
        "try another attention back-end or without CUDA graphs; a bug of this engine release otherwise",
    ),
    _fault(
        "nccl",
        r"NCCL (error|WARN .*fail)|ncclUnhandled|ncclSystemError|ncclInternalError|collective operation timeout",
        "the GPUs do not reach each other",
        "try NCCL_P2P_DISABLE=1 in the variant's env (IOMMU and ACS block peer access); check /dev/shm's size",
    ),
    # --- the variant's own data
    _fault(
        "unknown_algorithm",
        r"Unknown speculative algorithm|speculative-algorithm: invalid choice|is not a registered speculative",
        "this engine build does not have the variant's speculative algorithm",
        "use an environment whose engine (or plug-in) has it; a flag check does not prove that, a start does",
    ),
    _fault(
        "draft_model",
        r"requires setting --speculative-draft-model-path|fc\.weight shape mismatch|mask_token_id"
        r"|draft model.*(not|mismatch|incompatible)",
        "the draft model is missing or does not belong to the target",
        "give the variant the draft that was made for this target model",
    ),
    _fault(
        "settings_conflict",
        r"ValueError: .*(--[a-z][\w-]+|speculative|page.size|overlap)",
        "the engine refuses the combination of the variant's arguments",
        "the line names them; correct the variant's args",
    ),
    _fault(
        "unknown_argument",
        r"unrecognized arguments?|unknown argument|no such option|invalid choice|invalid argument: -|error: argument",
        "the engine does not know one of the variant's flags",
        "compare the variant's args and raw_args with `--help` of this engine release",
    ),
    _fault(
        "model_access",
        r"GatedRepoError|Cannot access gated repo|RepositoryNotFoundError|LocalEntryNotFoundError"
        r"|40[13] Client Error|couldn't connect to 'https?://",
        "the engine tried to fetch a model and may not, or cannot",
        "models come from the model store: the variant's paths must point there (run site.yml)",
    ),
    # --- the host
    _fault(
        "address_in_use",
        r"address already in use|EADDRINUSE|\[Errno 98\]|couldn't bind HTTP server socket|port \d+ is (taken|in use)",
        "another process holds the port",
        "find it with `ss -ltnp`, stop it, or give the slot another port",
    ),
    _fault(
        "internal_port",
        r"is used by a process already|EADDRNOTAVAIL|Cannot assign requested address",
        "a port or address that the server needs inside is not free or not there",
        "stop what is left of an older server, or give the variant another internal port",
    ),
    _fault(
        "shm_full",
        r"/dev/shm.*(no space|too small|insufficient|cannot allocate)|(no space|cannot allocate|unable to).*/dev/shm"
        r"|insufficient shared memory|Bus error",
        "shared memory (/dev/shm) is full or too small",
        "remove what dead processes left there, or enlarge it (mount -o remount,size=... /dev/shm)",
    ),
    _fault(
        "no_space",
        r"no space left on device|ENOSPC|\[Errno 28\]|disk quota exceeded",
        "a file system is full",
        "free space (`df -h`), then swap again",
    ),
    _fault(
        "memlock",
        r"RLIMIT_MEMLOCK|cannot lock memory|mlock\w* failed|ibv_reg_mr",
        "the process may not lock enough memory",
        "set LimitMEMLOCK=infinity in the unit",
    ),
    _fault(
        "too_many_files",
        r"too many open files|EMFILE|\[Errno 24\]",
        "the process has reached its limit of open files",
        "raise LimitNOFILE in the unit",
    ),
    _fault(
        "host_oom",
        r"\boom-kill|killed process \d+|MemoryError\b|std::bad_alloc|cannot allocate memory|failed to allocate",
        "the host ran out of memory",
        "lower the context length or raise the unit's memory limit",
    ),
    _fault(
        "jit_cache",
        r"(permission denied|read-only file system|\[Errno (13|30)\])"
        r".*(\.cache|/cache|\.triton|flashinfer|torchinductor|\.nv/)",
        "the service user cannot write a compiler's cache",
        "HOME and the cache variables of the variant's env must point below the unit's CacheDirectory",
    ),
    _fault(
        "permission",
        r"permission denied|EACCES|\[Errno 13\]|operation not permitted|read-only file system|\[Errno 30\]",
        "the service user may not use a file or device",
        "check owner and mode of the path in the line, and the unit's sandbox (ProtectSystem, DeviceAllow)",
    ),
    _fault(
        "bad_system_call",
        r"Bad system call|status=31/SYS|signal=SYS|\bSIGSYS\b",
        "the unit's SystemCallFilter forbids a call that the server needs",
        "see which with `journalctl -k | grep SECCOMP` and allow its group in templates/service.j2",
    ),
    _fault(
        "credentials",
        r"status=243/CREDENTIALS|Failed to set up credentials",
        "a credential that the unit loads is missing",
        "put the file of LoadCredential= in place",
    ),
    _fault(
        "start_limit",
        r"Start request repeated too quickly|start-limit-hit",
        "systemd refuses to start the unit after too many starts",
        "systemctl reset-failed UNIT, then see why the earlier starts failed",
    ),
    _fault(
        "model_unreadable",
        r"failed to load model|invalid magic|error loading model|safetensors.*(error|invalid)|not a GGUF",
        "the model's files cannot be loaded",
        "verify the model (site.yml checks its hash) and that this engine release supports it",
    ),
    _fault(
        "missing_file",
        r"no such file or directory|FileNotFoundError|\[Errno 2\]|does not exist|failed to open GGUF|status=203/EXEC"
        r"|Can't load the (configuration|tokenizer)",
        "a file that the service needs is missing",
        "run site.yml to put releases and models back in place",
    ),
    _fault(
        "import_error",
        r"^(\S+ )*(ModuleNotFoundError|ImportError)\b|Could not load any common_ops library",
        "a Python package of the environment is missing or does not load",
        "rebuild the environment from its lock (run site.yml)",
    ),
    # --- how a server reports that a part of it died: only where nothing above told why
    _fault(
        "watchdog",
        r"watchdog timeout|Watchdog caught",
        "a step of the engine took longer than its watchdog allows",
        "see what it did (the first compilation of kernels takes minutes); watchdog_timeout is an argument",
    ),
    _fault(
        "warmup_failed",
        r"Initialization failed\. warmup error",
        "the server's own first request failed",
        "read the lines above: the model loads, but does not generate",
    ),
    _fault(
        "child_died",
        r"Subprocess \S+ .*crashed with exit code|scheduler is dead|It usually means one child failed",
        "a child process of the server died",
        "read its last lines; exit code -9 without a traceback usually is the kernel's out-of-memory killer (dmesg)",
    ),
)

_TRACEBACK_FAULT = Fault(
    "python_traceback",
    re.compile("^"),
    "the server ended with a Python exception",
    "read the traceback: its last line names the error",
)


def first_traceback(lines: Sequence[str]) -> list[str]:
    """The first Python traceback in `lines`, whole, down to its exception's text; empty when there is none.

    The first one is the root: later ones are what other ranks and wrappers made of it. A prefix in front of
    `Traceback` (time stamps, rank names) is cut from the block's lines where they carry it too.
    """
    frames, message = _first_traceback(lines)
    return [*frames, *message]


def _first_traceback(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """(header and frames, the exception's text: usually one line) of the first traceback."""
    for start, line in enumerate(lines):
        match = _TRACEBACK.match(line)
        if not match:
            continue
        prefix = match.group("prefix")
        texts = [
            (one[len(prefix) :] if prefix and one.startswith(prefix) else one).rstrip()
            for one in lines[start + 1 : start + 1 + _MAX_FRAMES + _MAX_MESSAGE]
        ]
        end = next((i for i, text in enumerate(texts[:_MAX_FRAMES]) if text and not text[0].isspace()), None)
        header = "Traceback (most recent call last):"
        if end is None:
            return [header, *texts[:_MAX_FRAMES]], []
        message = [texts[end]]
        if _EMPTY_MESSAGE.match(texts[end]):
            for text in texts[end + 1 : end + 1 + _MAX_MESSAGE]:
                if _RECORD.search(text):
                    break
                message.append(text)
            while not message[-1]:
                message.pop()
        return [header, *texts[:end]], message
    return [], []


def error_lines(lines: Sequence[str], limit: int = 8) -> list[str]:
    """The first lines that speak of an error, else the last lines."""
    found = [line.rstrip() for line in lines if _ERROR_LINE.search(line)]
    return found[:limit] if found else [line.rstrip() for line in lines[-limit:]]


def classify(lines: Sequence[str]) -> Cause | None:
    """The known cause of a failure, from the log of one invocation; None when nothing is recognised.

    The exception of the first traceback decides before the rest of the log does, and an exception that is not known
    stays one: what the log says elsewhere is then not taken for its cause.
    """
    _, message = _first_traceback(lines)
    if message:
        found = _match(message) or (_match(lines) if _CONSEQUENCE.match(message[0]) else None)
        if found is None:
            told = next(text for text in message if text).strip()[:300]
            return Cause(_TRACEBACK_FAULT.id, _TRACEBACK_FAULT.cause, _TRACEBACK_FAULT.fix, told)
        return found
    return _match(lines)


def _match(lines: Sequence[str]) -> Cause | None:
    for fault in FAULTS:
        line = next((text for text in lines if fault.pattern.search(text)), None)
        if line is not None:
            return Cause(fault.id, fault.cause, fault.fix, line.strip()[:300])
    return None
