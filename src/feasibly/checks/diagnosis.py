"""A look at a denoiser and a constraint before use."""

__all__ = ["Diagnosis", "Level", "diagnose"]

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import members as batch
from ..constraints.base import Constraint
from ..constraints.composite import Composite
from ..errors import DenoiserError
from ..minimizers import LBFGS
from ..network import Network, device_of, own_mode
from ..randomness import generator
from .coverage import channels, misfits
from .derivatives import check_gradient
from .inputs import as_data, check_constraint, check_denoiser, check_parts

BATCH = 256
"""How many samples go through the denoiser at a time."""

PROJECTED = 8
"""How many samples are projected on the constraint, to see whether that is possible."""


@dataclass(frozen=True)
class Level:
    """How a denoiser does at one noise level.

    Attributes:
        t: The diffusion time.
        alpha: The signal scale.
        sigma: The noise scale.
        error: The root mean square of :math:`d(x_t) - x_0`.
        limit: The smaller of the noise drawn, relative to the signal, which is the error of not
            denoising, and of the data's standard deviation, the error of knowing their mean alone.
        gradient: Whether the gradient of the output is finite.
        excess: The largest error of a channel, in units of the bound on it; None for all channels
            together.
    """

    t: float
    alpha: float
    sigma: float
    error: float
    limit: float
    gradient: bool
    excess: float | None = None

    @property
    def bound(self) -> float:
        """The largest error that is accepted: 10 % more than the limit, or 10 % of the noise,
        which drowns in the next step's own noise."""
        return _bound(self.limit, self.sigma / self.alpha)

    @property
    def verdict(self) -> str:
        """What is wrong at this level, or `ok`."""
        if not self.error < torch.inf:
            return "not finite"
        if not self.gradient:
            return "gradient not finite"
        if self.error > self.bound:
            return "worse than a guess"
        return "ok" if (self.excess or 0) <= 1 else "a channel worse than a guess"


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; None where there is no constraint, or none that must hold
    exactly.

    Attributes:
        levels: The denoiser at several noise levels, highest first.
        monotone: Whether the noise level rises with time throughout.
        variance: The variance of the data, the square of the error of knowing only their mean.
        residuals: The number of residuals.
        violation: The 5 %, 50 % and 95 % quantiles of the violation of unconstrained samples.
        suggested_tolerance: A tolerance that reduces the typical residual a thousand times; at
            least 1e-12, unless unconstrained samples have less.
        projected: How many of :data:`PROJECTED` samples a direct projection brings within the
            tolerance.
        nearest: The least violation that it reaches.
        remoteness: How far from zero residuals are at most, in their standard deviations over
            samples.
        misfits: How the schedule's noise levels do not fit the data, in sentences.
        gradient: Why the denoiser's gradient cannot be used, in a sentence; empty if it can.

    Example:
        >>> data = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> found = feasibly.checks.diagnose(denoiser, circle, data)
        >>> found.ok, found.monotone, found.residuals
        (True, True, 1)
    """

    levels: list[Level]
    monotone: bool
    variance: float
    residuals: int | None = None
    violation: tuple[float, float, float] | None = None
    suggested_tolerance: float | None = None
    projected: int | None = None
    nearest: float | None = None
    remoteness: float | None = None
    misfits: tuple[str, ...] = ()
    gradient: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against sampling."""
        fit = self.monotone and all(level.verdict == "ok" for level in self.levels)
        return fit and self.projected != 0 and not self.misfits and not self.gradient


@own_mode()
def diagnose(
    denoiser: Callable[[Tensor, Tensor], Any],
    constraint: Constraint | None,
    data: Tensor | np.ndarray,
    levels: int = 9,
    seed: int = 0,
) -> Diagnosis:
    """Tests a denoiser, and a constraint if there is one.

    A wrong sign, time direction or prediction type makes the denoising error larger than that of
    not denoising at all, at some noise level.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint, or None.
        data: Clean data, with shape :math:`(N, *)`, or samples of the model itself, which find
            fewer mistakes. Row i is denoised under the conditions of member i, if there are any.
        levels: The number of noise levels.
        seed: The seed.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.

    Example:
        >>> data = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> feasibly.checks.diagnose(denoiser, None, data).ok
        True
        >>> backwards = feasibly.wrap(lambda x, t: -x, "x0", feasibly.schedules.VP())
        >>> feasibly.checks.diagnose(backwards, None, data).ok
        False
    """
    check_parts("diagnose", denoiser, constraint)
    network = Network(denoiser)
    data = as_data(data).to(device_of(denoiser))
    _try(network, data[:2], seed)
    times = torch.linspace(1, 0, levels, dtype=data.dtype, device=data.device)
    fine = torch.linspace(0, 1, 257, dtype=data.dtype, device=data.device)
    alpha, sigma = network.schedule(fine)
    noise = generator(seed)
    found = [_level(network, data, t, noise) for t in times]
    monotone = bool((sigma / alpha).diff().gt(0).all())
    lowest, highest = (sigma / alpha)[[0, -1]].tolist()
    moments = getattr(network.denoiser, "data_moments", None)
    unfit = misfits((lowest, highest), data, moments)
    of_denoiser = Diagnosis(
        levels=found,
        monotone=monotone,
        variance=data.var().item(),
        misfits=tuple(one.sentence for one in unfit if not one.of_mean),  # a run finds that itself
        gradient=_wrong_gradient(network, data[:4]),
    )
    return of_denoiser if constraint is None else _with_constraint(of_denoiser, constraint, data)


def _with_constraint(found: Diagnosis, constraint: Constraint, data: Tensor) -> Diagnosis:
    """Adds what data show of a constraint."""
    of_one = torch.zeros(len(data), dtype=torch.long)  # if members have targets of their own
    with batch.calling(of_one[:64], data.device):
        r = check_constraint(constraint, data[:64])
    spread = r.std(dim=0).clamp_min(torch.finfo(r.dtype).tiny)
    with torch.no_grad(), batch.calling(of_one, data.device):
        c = constraint.violation(data).double()
    low, median, high = c.quantile(torch.tensor([0.05, 0.5, 0.95]).to(c)).tolist()
    found = replace(
        found,
        residuals=r.shape[1],
        violation=(low, median, high),
        remoteness=(r.mean(dim=0).abs() / spread).max().item(),
    )
    exact = constraint.exact
    if exact is None:  # samples need not be brought anywhere
        return found
    # of the samples themselves: if none can be brought there, no sampler can either
    with batch.calling(of_one[:PROJECTED], data.device):
        near = LBFGS(steps=128, max_step=1.0)(
            lambda x: (exact.residual(x), x),
            data[:PROJECTED],
            exact.tolerance,
            unit=(found.variance * data[0].numel()) ** 0.5,
        )
        c, feasible = exact.assess(near.x_0.detach())
    reached = int(feasible.sum())
    # where samples as they are have less than 1e-12, the residual is in small units
    floor = 1e-12 if low > 1e-12 or median == 0 else 0.0
    # a composite has no tolerance of its own: its parts have; and what is impossible has none
    possible = reached and not isinstance(constraint, Composite)
    suggestion = max(1e-6 * median, floor) if possible else None
    nearest = c.min().item()
    return replace(found, suggested_tolerance=suggestion, projected=reached, nearest=nearest)


def _try(network: Network, data: Tensor, seed: int) -> None:
    """Refuses a denoiser that fails on states half way; a gradient is for later."""
    t = torch.tensor(0.5, dtype=data.dtype, device=data.device)
    alpha_t, sigma_t = network.schedule(t)
    z = torch.randn(data.shape, generator=generator(seed), dtype=data.dtype).to(data.device)
    with batch.calling(range(2), data.device):
        check_denoiser(network.denoiser, alpha_t * data + sigma_t * z, t, gradient=False)


def _wrong_gradient(network: Network, data: Tensor) -> str:
    """Why the denoiser's gradient cannot be used, in a sentence."""
    try:
        with batch.calling(range(len(data)), data.device):
            check_gradient(network.denoiser, data, known=True)
    except DenoiserError as error:
        return str(error)
    return ""


@torch.enable_grad()
def _level(network: Network, data: Tensor, t: Tensor, noise: torch.Generator) -> Level:
    alpha_t, sigma_t = network.schedule(t)
    errors, noises, gradient = [], [], True
    for x_0, rows in zip(data.split(BATCH), torch.arange(len(data)).split(BATCH), strict=True):
        z = torch.randn(x_0.shape, generator=noise, dtype=x_0.dtype).to(x_0.device)
        x_t = (alpha_t * x_0 + sigma_t * z).requires_grad_()
        with batch.calling(rows.tolist(), x_0.device):
            x_hat = network(x_t, t)
        errors.append((x_hat.detach() - x_0).square())
        noises.append((x_t.detach() / alpha_t - x_0).square())
        gradient = gradient and x_hat.requires_grad
        if gradient:
            (g,) = torch.autograd.grad(x_hat.square().sum(), x_t)
            gradient = bool(g.isfinite().all())
    # against the noise that was drawn: its expectation would differ by chance
    wrong, drawn = torch.cat(errors), torch.cat(noises)
    limit = min(drawn.mean().sqrt().item(), data.std().item())
    each, others = (channels(v).values.mean(dim=(0, 2)).sqrt() for v in (wrong, drawn))
    limits = torch.minimum(others, channels(data).values.std(dim=(0, 2))).tolist()
    sigma, error = (sigma_t / alpha_t).item(), wrong.mean().sqrt().item()
    excess = max(e / _bound(most, sigma) for e, most in zip(each.tolist(), limits, strict=True))
    return Level(t.item(), alpha_t.item(), sigma_t.item(), error, limit, gradient, excess)


def _bound(limit: float, sigma: float) -> float:
    return max(1.1 * limit, 0.1 * sigma)
