"""Denoisers as distributions of torch, and normal distributions of torch as denoisers."""

__all__ = ["Implicit", "denoiser"]

import math
from collections.abc import Sequence
from typing import Any, Never

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)
from torch.distributions import constraints as supports

from ..api import sample
from ..arguments import shape_of
from ..constraints import Constraint
from ..denoisers import Denoiser
from ..errors import DenoiserError
from ..oracles import Gaussian, GaussianMixture
from ..randomness import drawn_seed
from ..schedules import Schedule


class Implicit(Distribution):
    """The distribution of a denoiser's samples, which may satisfy a constraint; it has no density.

    Each call of `sample` returns new samples, whose seed is drawn from torch's global generator,
    so that `torch.manual_seed` governs them. Given a constraint, each call first takes some 64
    unconditional samples, so that one call for many samples costs less than many calls.

    Arguments:
        denoiser: The denoiser; see :func:`feasibly.sample`.
        shape: The shape of one sample, which is the `event_shape`; the `batch_shape` is empty.
        constraint: The constraint, which `support` tests samples by; None for none.
        options: Further arguments of :func:`feasibly.sample`, such as `method` and `dtype`.

    Raises:
        ValueError: If `n` or `seed` is among the options.
    """

    arg_constraints: dict[str, supports.Constraint] = {}  # noqa: RUF012

    def __init__(
        self,
        denoiser: Any,
        shape: Sequence[int],
        constraint: Constraint | None = None,
        **options: Any,
    ) -> None:
        if {"n", "seed"} & options.keys():
            raise ValueError(
                "Implicit takes neither n nor seed: sample(sample_shape) says how many samples "
                "there are, and torch.manual_seed(...) is their seed."
            )
        self.denoiser, self.constraint, self.options = denoiser, constraint, options
        super().__init__(event_shape=torch.Size(shape_of(shape, "Implicit")))

    @property
    def support(self) -> supports.Constraint:
        axes = len(self.event_shape)
        if self.constraint is None:
            return supports.independent(supports.real, axes)
        return _Feasible(self.constraint, axes)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Returns samples with shape `sample_shape + event_shape`, where the denoiser is."""
        seed, n = drawn_seed(), math.prod(sample_shape)
        given = self.denoiser, self.constraint, n, self.event_shape
        return sample(*given, seed=seed, **self.options).samples.reshape(
            *sample_shape, *self.event_shape
        )

    def log_prob(self, value: Tensor) -> Never:
        raise NotImplementedError(
            "Implicit has no density: a denoiser gives samples of its distribution alone."
        )


class _Feasible(supports.Constraint):
    """The samples that satisfy a constraint, within its tolerance, as a support."""

    def __init__(self, constraint: Constraint, event_dim: int) -> None:
        self.constraint, self._event_dim = constraint, event_dim
        super().__init__()

    @property
    def event_dim(self) -> int:
        return self._event_dim

    def check(self, value: Tensor) -> Tensor:
        batch = value.shape[: value.ndim - self.event_dim]
        x = value.reshape(-1, *value.shape[len(batch) :])
        return self.constraint.is_feasible(x).reshape(batch)


@torch.no_grad()
def denoiser(distribution: Distribution, schedule: Schedule) -> Denoiser:
    r"""Returns the exact denoiser of a normal distribution or of a mixture of them.

    Arguments:
        distribution: A `MultivariateNormal`, a `LowRankMultivariateNormal`, an `Independent` of
            a `Normal`, or a `MixtureSameFamily` of these, with event shape :math:`(D)` and no
            batch shape.
        schedule: The noise schedule.

    Raises:
        DenoiserError: If it is another distribution.
    """
    mixed = isinstance(distribution, MixtureSameFamily)
    normal: Any = distribution.component_distribution if mixed else distribution
    cov: Any = None
    if isinstance(normal, MultivariateNormal | LowRankMultivariateNormal):
        cov = normal.covariance_matrix
    elif isinstance(normal, Independent) and isinstance(normal.base_dist, Normal):
        cov = normal.variance.diag_embed()
    if cov is None or distribution.batch_shape or len(distribution.event_shape) != 1:
        raise DenoiserError(
            "denoiser() takes a MultivariateNormal, an Independent(Normal(...), 1) or a "
            f"MixtureSameFamily of these, whose samples have one axis, got {distribution}."
        )
    if mixed:
        weights: Any = distribution.mixture_distribution.probs
        return GaussianMixture(weights, normal.mean, cov, schedule)
    return Gaussian(normal.mean, cov, schedule)
