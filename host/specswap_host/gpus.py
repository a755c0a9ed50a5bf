"""GPU memory at a hand-over, as `nvidia-smi` tells it. A slot without GPUs has nothing to prove.

After its server has died a GPU needs a moment to give the memory back; a start into that moment fails or, worse, finds
too little and goes on. So the slot's GPUs must be free of the old server before the next one starts. What foreign
processes hold is named, and never touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Driver and context leave some memory used on an idle GPU.
BASE_MIB = 1024
_TIMEOUT_S = 10.0


class GpuError(Exception):
    """The GPUs cannot be asked; the message names the command."""


@dataclass(frozen=True)
class Gpu:
    """One GPU now: `used_mib` of its memory, and the processes that hold some: pid -> MiB."""

    index: int
    uuid: str
    used_mib: int
    processes: dict[int, int]


@dataclass(frozen=True)
class GpuReport:
    """Whether the GPUs are back at base; `left` names what is still held. `note` says why nothing was looked at."""

    free: bool
    left: tuple[str, ...] = ()
    note: str = ""


Run = Callable[[Sequence[str]], str]


def query(*words: str) -> Sequence[str]:
    return ("nvidia-smi", *words, "--format=csv,noheader,nounits")


def run_tool(argv: Sequence[str]) -> str:
    """Standard output of `argv`; raises `GpuError`."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise GpuError(f"{argv[0]}: not found; the slot has GPUs, so this host needs the NVIDIA driver") from error
    except subprocess.TimeoutExpired as error:
        raise GpuError(f"{argv[0]}: no answer within {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise GpuError(f"{argv[0]}: exit code {done.returncode}: {done.stdout.decode(errors='replace').strip()[:200]}")
    return done.stdout.decode("utf-8", "replace")


class Gpus:
    """The GPUs of this host; tests hand in another `run`."""

    def __init__(self, run: Run = run_tool) -> None:
        self._run = run

    def look(self, indexes: Sequence[int]) -> list[Gpu]:
        """The GPUs with these numbers; raises `GpuError` when one does not exist or nvidia-smi does not answer."""
        holders: dict[str, dict[int, int]] = {}
        for uuid, pid, used in _rows(self._run(query("--query-compute-apps=gpu_uuid,pid,used_memory")), 3):
            holders.setdefault(uuid, {})[_whole(pid)] = _whole(used)
        found = {}
        for index, uuid, used in _rows(self._run(query("--query-gpu=index,uuid,memory.used")), 3):
            found[_whole(index)] = Gpu(_whole(index), uuid, _whole(used), holders.get(uuid, {}))
        missing = [index for index in indexes if index not in found]
        if missing:
            raise GpuError(f"GPU {missing[0]} does not exist (there are: {sorted(found)}); correct the slot's gpus")
        return [found[index] for index in indexes]

    def report(self, indexes: Sequence[int], old_pids: Sequence[int]) -> GpuReport:
        """Whether the old server's processes hold nothing and the rest is at base, foreigners' shares set aside."""
        if not indexes:
            return GpuReport(True, note="no GPU in this slot")
        left = []
        for gpu in self.look(indexes):
            mine = sorted(set(old_pids) & set(gpu.processes))
            left += [f"GPU {gpu.index}: pid {pid} still holds {gpu.processes[pid]} MiB" for pid in mine]
            foreign = sum(used for pid, used in gpu.processes.items() if pid not in old_pids)
            unexplained = gpu.used_mib - foreign
            if not mine and unexplained > BASE_MIB:
                left.append(f"GPU {gpu.index}: {unexplained} MiB are held by no visible process (base: {BASE_MIB} MiB)")
        return GpuReport(not left, tuple(left))


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == columns]


def _whole(text: str) -> int:
    """A number of nvidia-smi; 0 for `[N/A]` and the like."""
    return int(text) if text.isdigit() else 0
