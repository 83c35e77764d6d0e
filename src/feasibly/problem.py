"""A problem: what a user gives, and what a dry run shows of it."""

__all__ = ["DryRun", "Problem", "inspect"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import placed, shape_of, whole
from .checks.derivatives import check_gradient
from .checks.inputs import check_constraint, check_denoiser, check_parts
from .constraints.base import Constraint
from .members import calling
from .network import Network, counted, device_of
from .randomness import MemberNoise


class Problem:
    """What is to be sampled: the only holder of the user's denoiser and constraint.

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`, such as
            :func:`feasibly.wrap` returns.
        constraint: The constraint; None for none.
        shape: The shape of one sample.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
        batch_size: How many states may go through the denoiser at a time; None for all.

    Raises:
        DenoiserError: If the denoiser has no schedule.
        ValueError: If an argument is of the wrong kind, or the schedule's noise does not rise.
    """

    def __init__(
        self,
        denoiser: Any,
        constraint: Constraint | None,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_parts("sample", denoiser, constraint)
        self.denoiser = denoiser if isinstance(denoiser, Network) else Network(denoiser)
        self.constraint = constraint
        self.shape = shape_of(shape)
        self.dtype = dtype
        self.device = placed(device) or device_of(self.denoiser.denoiser)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        _check_schedule(*self.ends)

    @property
    def residuals(self) -> int:
        """The number of residual components; 0 without a constraint."""
        if self.constraint is None:
            return 0
        t = torch.tensor(0.5, **self.place)
        with torch.no_grad(), calling([0], self.device), counted(None):
            x_0 = self.denoiser(self.denoiser.noisy(self.noise(0, [0])(), t), t)
            return self.constraint.residual(x_0).shape[1]

    def __repr__(self) -> str:
        return (
            f"Problem({type(self.denoiser.denoiser).__name__}, {self.constraint!r}, {self.shape})"
        )

    def but(self, **changes: Any) -> "Problem":
        """Returns the problem with some arguments changed."""
        return Problem(**{**vars(self), **changes})

    @property
    def place(self) -> dict[str, Any]:
        """The type and the device of tensors."""
        return {"dtype": self.dtype, "device": self.device}

    def noise(self, seed: int, members: Sequence[int], attempt: int = 0) -> MemberNoise:
        """Returns the noise of samples, given their indices."""
        return MemberNoise(seed, members, self.shape, attempt, **self.place)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the schedule."""
        low, high = (self.denoiser.noise_level(torch.tensor(t)) for t in (0.0, 1.0))
        return low, high


@dataclass(frozen=True)
class DryRun:
    r"""What a dry run shows of a problem.

    Attributes:
        x_0: Two clean estimates, with shape (2, *).
        r: Their residuals, with shape (2, m); None without a constraint.
        member: The index of the sample under whose conditions they are.
        batch_size: How many states may go through the denoiser at a time.
    """

    x_0: Tensor
    r: Tensor | None
    member: int = 0
    batch_size: int = 2

    @property
    def residuals(self) -> int:
        """The number of residual components; 0 without a constraint."""
        return 0 if self.r is None else self.r.shape[1]


@torch.no_grad()
def inspect(
    problem: Problem, member: int = 0, batch_size: int = 2, gradient: bool = False
) -> DryRun:
    """Tests a problem at t = 1/2, on two states as noisy as a run's, and the denoiser's gradient
    at three noise levels. The evaluations are not counted.

    Arguments:
        problem: The problem.
        member: The index of the sample whose conditions the denoiser is tested with.
        batch_size: What the dry run says of how many states a preparation may take at a time.
        gradient: Whether the denoiser must have a gradient.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
    """
    network, z = problem.denoiser, problem.noise(0, range(2))()
    t = torch.tensor(0.5, **problem.place)
    with calling([member] * 2, problem.device), counted(None):
        x_0 = check_denoiser(network.denoiser, network.noisy(z, t), t, gradient)
        if gradient:
            check_gradient(network.denoiser, z)
        # one such state may be a bad one, and its estimate not finite: the run will say so
        x_0 = torch.where(x_0.isfinite(), x_0, z)
        constraint = problem.constraint
        r = None if constraint is None else check_constraint(constraint, x_0)
    return DryRun(x_0, r, member, batch_size)


def _check_schedule(first: float, last: float) -> None:
    """Refuses a schedule by its noise levels at t = 0 and t = 1."""
    if not 0 < first < last < math.inf:
        singular = first == 0 or math.isinf(last)
        hint = (
            "Keep sigma and alpha positive at the ends, as schedules.Rectified does."
            if singular
            else "Is time reversed?"
        )
        raise ValueError(
            f"The schedule's noise level sigma / alpha is {first:.3g} at t = 0 and {last:.3g} at "
            "t = 1; it must be positive and finite, and rise from data at t = 0 to noise at t = "
            f"1. {hint}"
        )
