"""How much memory a member takes, and how many members fit."""

__all__ = ["fitting", "is_exhausted", "peak", "room"]

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")

SHARE = 0.5
"""The share of the free memory that a chunk may take: others use some, allocators waste some."""

MOST = 1024
"""The largest chunk that is chosen: a larger one is hardly faster, and more is lost with it."""

PROC = Path("/proc/self")
CGROUP = Path("/sys/fs/cgroup")


def fitting(member: int, free: int, sharing: int) -> int:
    """Returns how many members a process should draw at a time.

    Arguments:
        member: What one takes, in bytes.
        free: The free memory, in bytes.
        sharing: The number of processes that share it.
    """
    return max(1, min(MOST, int(SHARE * free / sharing / max(1, member))))


def peak(action: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Returns the result of an action and the most memory that it took on the way, in bytes.

    On a CPU it is the rise of the process's resident memory, to which whatever is loaded at the
    first call contributes; where the system cannot forget an earlier peak, it may be too small.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = action()
        return result, torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError):
        (PROC / "clear_refs").write_text("5")  # resets the peak, see proc(5)
    before = _resident()
    result = action()
    return result, max(0, _highest() - before)


def room(device: torch.device) -> int:
    """Returns the free memory where members are drawn, in bytes."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    free = _free()
    try:
        # a container's limit, if it has one; without one the file holds a word
        limit = int((CGROUP / "memory.max").read_text())
        return min(free, limit - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        return free


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, is that memory ran out."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in text
        ):
            return True
        error = error.__cause__
    return False


def _free() -> int:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _resident() -> int:
    try:
        return int((PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _highest()


def _highest() -> int:
    try:
        lines = (PROC / "status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource  # which Windows lacks

        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
