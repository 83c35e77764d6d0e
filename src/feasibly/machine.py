"""What a machine has: free memory, and how it says that there is none."""

__all__ = ["check_room", "exhausted", "is_exhausted", "room", "size"]

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

LEAST = 6
"""The states that a run has at a time at least: two of noise, two noisy, two clean."""

BESIDES = 1000
"""What a run keeps of each sample besides its states, in bytes: its violations by step."""

CGROUP = Path("/sys/fs/cgroup")

EXHAUSTED = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "status_alloc_failed",
)
"""How the CPU's allocators, a GPU's, and its libraries say that memory has run out."""


def size(count: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1e3:
            return f"{count:.3g} {unit}"
        count /= 1e3
    return f"{count:.3g} TB"


def room(device: torch.device) -> int:
    """Returns the free memory where members are sampled, in bytes."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    free = _free()
    try:
        # a container's limit, if it has one; without one the file holds a word
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        stat = CGROUP / "memory.stat"
        lines = stat.read_text().splitlines() if stat.exists() else []
        # files that were read stay in memory until it is needed
        files = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return min(free, limit - used + files)
    except (OSError, ValueError):
        return free


def check_room(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    members: int = 1,
    batch_size: int = 1,
) -> None:
    """Refuses samples that do not fit into memory: a number may be mistyped, or that of a forged
    store.

    Arguments:
        shape: The shape of one sample.
        dtype: The type of the samples.
        device: Where to sample.
        members: How many samples are kept in memory.
        batch_size: How many are sampled at a time.

    Raises:
        ValueError: If they do not fit.
    """
    each = math.prod(shape) * dtype.itemsize
    need = LEAST * each * batch_size + members * (each + BESIDES)
    free = max(0, min(room(torch.device(device)), room(torch.device("cpu"))))
    if need > free:
        raise ValueError(
            f"Sampling {members:,} of shape {tuple(shape)}, {batch_size:,} at a time, takes at "
            f"least {size(need)} of memory, but only {size(free)} are free; ask for fewer or "
            f"smaller samples{', or give a smaller batch_size' if batch_size > 1 else ''}."
        )


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, is that memory ran out."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(error, RuntimeError)
            and any(words in str(error).lower() for words in EXHAUSTED)
        ):
            return True
        error = error.__cause__
    return False


def exhausted(where: str, error: BaseException, states: int) -> str:
    """Says that memory ran out while this was done, with so many states in a batch, and what
    helps."""
    said = str(error).split(". ")[0] or type(error).__name__
    fix = f"use a smaller batch_size, such as {states // 2}"
    if states == 1:
        fix = "use a method without gradients, lower precision or a larger machine"
    noun = "sample" if states == 1 else "samples"
    return f"{where} ran out of memory with {states} {noun} in a batch ({said}); {fix}."


def _free() -> int:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
