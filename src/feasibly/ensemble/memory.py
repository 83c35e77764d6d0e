"""How much memory a member takes, and how many members fit."""

__all__ = ["Footprint", "estimate", "fitting", "is_exhausted", "peak", "room"]

import math
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import members as batch
from ..errors import SamplingError
from ..network import Calls, device_of
from ..randomness import MemberNoise
from ..samplers import Sampler

T = TypeVar("T")

SHARE = 0.5
"""The share of the free memory that a chunk may take: others use some, allocators waste some."""

SEVERAL = 4
"""The number of members of the rehearsal that tells what each further member takes."""

BESIDES = 3
"""The states a member has in a run besides those of a step: its noise, and two results."""

MOST = 1024
"""The largest chunk that is chosen: a larger one is hardly faster, and more is lost with it."""

CGROUP = Path("/sys/fs/cgroup")

EXHAUSTED = ("can't allocate memory", "out of memory", "status_alloc_failed")
"""How the CPU's allocator, a GPU's, and its libraries say that memory has run out."""


@dataclass(frozen=True)
class Footprint:
    """The most memory that a chunk of members takes while it is drawn.

    Attributes:
        member: What each member takes, in bytes.
        fixed: What is taken whatever their number, in bytes; the weights, which are there before
            a run, are not part of it.
    """

    member: int
    fixed: int

    def of(self, members: int) -> int:
        """Returns what a chunk of so many members takes, in bytes."""
        return self.fixed + members * self.member


def estimate(
    sampler: Sampler,
    shape: Sequence[int],
    *,
    members: int = SEVERAL,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Footprint:
    """Estimates what a run takes before it starts, by three of its steps with one member, and
    with up to four if they fit.

    It is what tensors take at the peak. On a CPU a process may take more: glibc keeps freed blocks
    of up to 32 MB for later, and they do not fit together. Large ones are given back at once, as
    all are with the environment's MALLOC_MMAP_THRESHOLD_=1048576. What a constraint takes outside
    of PyTorch is not seen.

    Arguments:
        sampler: The sampler.
        shape: The shape of one sample.
        members: The number of members of the run; no others are asked of a conditional network.
        dtype: The type of the samples.
        device: Where to sample; None for where the denoiser's parameters are.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, for one member alone does not fit, say.
    """
    device = torch.device(device or device_of(sampler.denoiser.denoiser))
    dry_run(sampler, shape, dtype, device)

    def rehearse(count: int) -> int:
        return peak(lambda: _steps(sampler, count, shape, dtype, device), device)[1]

    state = math.prod(shape) * dtype.itemsize
    one, count = rehearse(1), min(SEVERAL, members)
    alone = Footprint(one + BESIDES * state, 0)
    if count == 1 or count * one > SHARE * room(device):
        return alone
    try:
        member = max(state, (rehearse(count) - one) // (count - 1))
    except SamplingError as error:
        if is_exhausted(error):
            return alone
        raise
    return Footprint(member + BESIDES * state, max(0, one - member))


@torch.no_grad()
def dry_run(
    sampler: Sampler, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """Tries the sampler on two states, as the first member, before a run.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
    """
    with batch.calling([0, 0], device):
        sampler.trial(shape, dtype, device)


@torch.no_grad()
def _steps(
    sampler: Sampler, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """Makes three steps of a run: the first, one half way, and the last but one."""
    sampler.denoiser.calls = Calls()
    times = torch.linspace(1, 0, sampler.steps + 1, dtype=dtype, device=device)
    noise = MemberNoise(0, range(count), shape, dtype=dtype, device=device)
    for k in sorted({0, sampler.steps // 2, max(0, sampler.steps - 2)}):
        alpha_t, sigma_t = sampler.denoiser.schedule(times[k])
        x_t = torch.sqrt(alpha_t**2 + sigma_t**2) * noise()
        try:
            with batch.calling(range(count), device):
                sampler.step(x_t, times[k], times[k + 1], noise)
        except Exception as error:
            raise SamplingError(
                f"The rehearsal of step {k + 1} of {sampler.steps}, from noise, failed "
                f"({type(error).__name__}: {error}); give a number instead of --chunk auto to go "
                "without."
            ) from error


def fitting(footprint: Footprint, free: int, sharing: int) -> int:
    """Returns how many members a process should draw at a time.

    Arguments:
        footprint: What they take.
        free: The free memory, in bytes.
        sharing: The number of processes that share it.
    """
    own = SHARE * free / sharing - footprint.fixed
    return max(1, min(MOST, int(own / max(1, footprint.member))))


def peak(action: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Returns the result of an action and the most bytes of tensors that it had at a time, besides
    those that were there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = action()
        return result, torch.cuda.max_memory_allocated(device) - before
    with Account() as account:
        result = action()
    return result, account.peak


class Account(TorchDispatchMode):
    """Counts the bytes of the tensors that are made within, as long as each is there.

    Attributes:
        peak: The most bytes at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # what goes in was there before, or is known: an operation may return it as it is
        old = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _is_dense(t)}
        made = func(*args, **(kwargs or {}))
        for tensor in filter(_is_dense, tree_leaves(made)):
            storage = tensor.untyped_storage()
            if id(storage) not in old and id(storage) not in self.known:
                self._enter(storage)
        return made

    def _enter(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), id(storage)
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._leave, key, size)

    def _leave(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


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
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(error, RuntimeError)
            and any(words in str(error).lower() for words in EXHAUSTED)
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
