"""What members take, of memory and of time, and how many to sample at a time."""

__all__ = [
    "Footprint",
    "Pace",
    "estimate",
    "pace_of",
    "peak",
]

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import members as batch
from ..arguments import typed, whole
from ..errors import SamplingError
from ..machine import check_room, is_exhausted, room
from ..network import Evaluations
from ..randomness import MemberNoise
from ..run import dry_run
from ..samplers import SMC, Method
from ..samplers.smc import DOUBLINGS, FEWEST
from .manifest import POPULATION

T = TypeVar("T")

SHARE = 0.5
"""The share of the free memory that a chunk may take: others use some, allocators waste some."""

DURATION = 60.0
"""The seconds that a chunk may take: a stop loses all of its members."""

STRETCH = 1.5
"""How long a chunk may take, in durations of one member alone, if that is longer."""

MOST = 1024
"""The largest chunk that is chosen: a larger one is hardly faster."""

SEVERAL = 4
"""The number of members of the measurement that tells what each further member takes."""

FEW = 3
"""The steps of a measurement of samples that share weights."""

BESIDES = 3
"""The states a member has in a run besides those of a step: its noise, and two results."""


@dataclass(frozen=True)
class Footprint:
    """What a chunk of members takes while it is sampled: memory at most, and time as expected.

    Attributes:
        member: What each member takes, in bytes.
        fixed: What is taken whatever their number, in bytes; the weights, which are there before
            a run, are not part of it.
        member_seconds: The time that each member adds to a chunk, if all are feasible at the first
            attempt.
        fixed_seconds: The time that a chunk takes whatever their number.

    Example:
        >>> footprint = feasibly.ensemble.Footprint(member=1000, fixed=5000)
        >>> footprint.of(members=16)  # bytes
        21000
    """

    member: int
    fixed: int
    member_seconds: float = field(default=0.0, compare=False)
    fixed_seconds: float = field(default=0.0, compare=False)

    def of(self, members: int) -> int:
        """Returns what a chunk of so many members takes, in bytes."""
        return self.fixed + members * self.member

    def seconds(self, members: int) -> float:
        """Returns how long a chunk of so many members takes."""
        return self.fixed_seconds + members * self.member_seconds


@dataclass
class Pace:
    """How many members to sample at a time.

    Members of a chunk are finished at the same time, so a run that is stopped loses what its chunk
    has taken. So a chunk is expected to take a minute at most, or half as long again as one member
    alone, if that is longer: then members are still sampled together where that saves time.

    Attributes:
        most: The number that fits into memory, or the number that was asked for.
        footprint: What members take; None to sample `most` at a time, however long it takes.
        pace: How much longer the last chunk took than its footprint says.
    """

    most: int
    footprint: Footprint | None = None
    pace: float = 1.0

    @property
    def chunk(self) -> int:
        """The number of members to sample next."""
        if self.footprint is None or not self.footprint.member_seconds:
            return self.most
        limit = max(DURATION / self.pace, STRETCH * self.footprint.seconds(1))
        timely = (limit - self.footprint.fixed_seconds) / self.footprint.member_seconds
        return max(1, min(self.most, int(timely)))

    def learn(self, members: int, seconds: float) -> None:
        """Takes down how long a chunk took."""
        expected = self.footprint.seconds(members) if self.footprint is not None else 0.0
        if expected:
            self.pace = seconds / expected


def pace_of(kernels: Sequence[Method], members: int, population: int, sharing: int) -> Pace:
    """Returns the pace of a process, by what samples take and what memory is free.

    Arguments:
        kernels: The kernels, one for each attempt.
        members: The number of samples of the run.
        population: How many of them share importance weights, where a method has them.
        sharing: The number of processes on this machine that share its memory.
    """
    footprint = estimate(kernels[-1], members=members, population=population)
    device = kernels[-1].bound_to.device
    if device.type == "cuda":
        sharing = 1 if _own_gpu() else math.ceil(sharing / torch.cuda.device_count())
    most = fitting(footprint, room(device), sharing)
    # samples that share weights are finished together, however few go through the network
    return Pace(most) if any(one.shares for one in kernels) else Pace(most, footprint)


@typed
def estimate(kernel: Method, *, members: int = SEVERAL, population: int = POPULATION) -> Footprint:
    """Estimates what a run takes before it starts, by three of its steps with one sample, and
    with up to four if they fit. It measures particles in three long steps.

    The memory is what tensors take at the peak. On a CPU a process may take more: glibc keeps
    freed blocks of up to 32 MB for later, and they do not fit together. Large ones are given back
    at once, as all are with the environment's MALLOC_MMAP_THRESHOLD_=1048576. What a constraint
    takes outside of PyTorch is not seen. The time of a small network on a CPU is overestimated,
    since its operations are watched.

    Arguments:
        kernel: The kernel that is measured.
        members: The number of samples of the run; no others are asked of a conditional network.
        population: How many of them share importance weights, where a method has them.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, for one sample alone does not fit, say.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=method, monitor=False)
        >>> footprint = feasibly.ensemble.estimate(plan.kernels[0])
        >>> footprint.of(members=8) > footprint.of(members=1) > 0
        True
    """
    whole("members", members, 1, of="estimate")
    whole("population", population, 1, of="estimate")
    problem, length = kernel.bound_to, kernel.taken
    check_room(problem.shape, problem.dtype, problem.device)
    if isinstance(kernel, SMC):
        (few,), _ = dry_run([_all_along(kernel)], 0, 1, Evaluations())
        assert isinstance(few, SMC)
        return _of_population(few, kernel, population)
    (prepared,), _ = dry_run([kernel], 0, 1, Evaluations())
    levels = sorted({0, length // 2, max(0, prepared.taken - 2)})

    def measure(count: int) -> tuple[int, float]:
        taken, seconds = _measured(prepared, levels, count)
        return taken, seconds * length / len(levels)

    measure(1)  # the first time, libraries are loaded and kernels chosen
    state = math.prod(problem.shape) * problem.dtype.itemsize
    (one, alone), count = measure(1), min(SEVERAL, members)
    by_one = Footprint(one + BESIDES * state, 0, alone)
    if count == 1 or count * one > SHARE * room(problem.device):
        return by_one
    try:
        several, together = measure(count)
    except SamplingError as error:
        if is_exhausted(error):
            return by_one
        raise
    member = max(state, (several - one) // (count - 1))
    seconds = max(0.0, (together - alone) / (count - 1))
    return Footprint(
        member + BESIDES * state, max(0, one - member), seconds, max(0.0, alone - seconds)
    )


def _of_population(few: SMC, kernel: SMC, population: int) -> Footprint:
    """Returns what a population takes at most: its particles, doubled as often as they may be, and
    what the network takes for each state that goes through it at a time.

    Arguments:
        few: The kernel with one particle and few steps, which is measured.
        kernel: The kernel of the run.
        population: The number of samples of a population.
    """
    longer, problem = kernel.particles * kernel.taken / few.taken, few.bound_to

    def measure(size: int) -> tuple[int, float]:
        one = replace(few, problem=problem.but(batch_size=size))
        taken, seconds = _measured(one, [few.taken - 1], 1)  # `begin` takes the other steps
        return taken, seconds * longer

    # one by one takes long, as operations are watched
    try:
        (one, alone), (several, together) = measure(SEVERAL), measure(2 * SEVERAL)
    except SamplingError as error:
        if not is_exhausted(error):
            raise
        one, alone = measure(1)
        return Footprint(one, 0, alone / FEWEST)
    member = max(math.prod(problem.shape) * problem.dtype.itemsize, (several - one) // SEVERAL)
    particles = kernel.particles * 2**DOUBLINGS
    fixed = max(0, one - SEVERAL * member) * max(population, FEWEST) // FEWEST * particles
    return Footprint(member, fixed, min(alone, together) / FEWEST)


def _all_along(kernel: SMC) -> SMC:
    """Returns particles, one in each trajectory, that are weighted in all of a few steps."""
    everywhere = kernel.ladder._replace(begun=math.inf, weighted=math.inf)
    return replace(kernel, particles=1, steps=min(kernel.steps, FEW), levels=everywhere)


def _measured(kernel: Method, levels: Sequence[int], count: int) -> tuple[int, float]:
    """Returns what some steps of a run take, in bytes and in seconds; see :func:`_steps`."""
    device = kernel.bound_to.device
    start = _clock(device)
    _, taken = peak(lambda: _steps(kernel, levels, count), device)
    return taken, _clock(device) - start


@torch.no_grad()
def _steps(kernel: Method, levels: Sequence[int], count: int) -> None:
    """Begins a run, and makes some of its steps, each from noise."""
    problem = kernel.bound_to
    times = kernel.times(problem.dtype, problem.device)
    noise = MemberNoise(0, range(count), problem.shape, 0, problem.dtype, problem.device)
    memory = None
    for k in levels:
        try:
            with batch.calling(range(count), problem.device):
                if k == levels[0]:  # once: some kernels go down most levels in it
                    memory = kernel.begin(noise).memory
                x_t = kernel.denoiser.noisy(noise(), times[k])
                memory = kernel.step(x_t, times[k], times[k + 1], noise, memory).memory
        except Exception as error:
            raise SamplingError(
                f"Step {k + 1} of {kernel.taken}, tried from noise to measure its memory, failed "
                f"({type(error).__name__}: {error}); give a number to --batch-size instead of "
                "auto."
            ) from error


def fitting(footprint: Footprint, free: int, sharing: int) -> int:
    """Returns how many members of a process fit into memory.

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
    with PeakBytes() as count:
        result = action()
    return result, count.peak


class PeakBytes(TorchDispatchMode):
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
        old = {id(t.untyped_storage()) for t in _dense((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for tensor in _dense(made):
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


def _dense(value: Any) -> Iterator[Tensor]:
    """Yields the dense tensors in what an operation takes or returns."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _dense(part)
    elif isinstance(value, dict):
        yield from _dense(tuple(value.values()))


def _own_gpu() -> bool:
    """Whether Slurm gave this process GPUs that no other process sees."""
    given = os.environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]  # 1, or a100:1
    return given.isdecimal() and 1 <= torch.cuda.device_count() <= int(given)


def _clock(device: torch.device) -> float:
    """The time when all that was asked of a device is done, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
