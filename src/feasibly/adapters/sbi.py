"""Posteriors of sbi, simulation-based inference, under hard constraints on the parameters.

References:
    | sbi: A toolkit for simulation-based inference (Tejero-Cantero et al., 2020)
    | https://doi.org/10.21105/joss.02505
"""

__all__ = ["Posterior", "denoiser"]

import functools
import math
from collections.abc import Callable
from typing import Any, Never

import torch
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from sbi.neural_nets.estimators import ConditionalVectorFieldEstimator, FlowMatchingEstimator
from sbi.neural_nets.estimators.shape_handling import reshape_to_batch_event
from torch import Tensor, nn

from ..api import sample
from ..constraints import Constraint
from ..constraints.base import Array, finite
from ..denoisers import Adapter
from ..errors import DenoiserError
from ..randomness import drawn_seed
from ..result import Result
from ..schedules import Schedule

Problem = tuple[Any, Constraint | None]
"""A denoiser, and a constraint or None."""

FIRST = 1e-3
"""The first time, since a flow without `noise_scale` has no noise at 0."""


def denoiser(estimator: ConditionalVectorFieldEstimator, x: Array) -> Adapter:
    """Makes a denoiser of the parameters, given an observation.

    If the estimator was built with `compose_standardization`, the denoiser is of standardized
    parameters, which `estimator.from_z` maps to the parameters; else of the parameters themselves.

    Arguments:
        estimator: The estimator, as `train()` of sbi's NPSE or FMPE returns it.
        x: The observation, with the shape of one simulation, or with a batch axis of length one.

    Raises:
        DenoiserError: If the estimator has no score or no marginals.
        RuntimeError: If the observation has another shape than simulations.
        ValueError: If there are several observations, or one is not finite.
    """
    _check(estimator)
    x = reshape_to_batch_event(finite(x, "denoiser(x=...)"), estimator.condition_shape)
    if len(x) != 1:
        raise ValueError(
            f"denoiser(x=...) takes one observation, got {len(x)}. To sample for each of several, "
            "use sample_batched(); parameters given all of them at once are not supported."
        )
    # the score of a flow lacks a factor of 1 + noise_scale, which its velocity does not
    kind = "velocity" if isinstance(estimator, FlowMatchingEstimator) else "score"
    adapter = _Given(_Field(estimator, x), _Marginals(estimator), kind)
    if hasattr(estimator, "mean_0") and hasattr(estimator, "std_0"):
        like = (1, *estimator.input_shape)
        adapter.data_moments = (estimator.mean_0.expand(like)[0], estimator.std_0.expand(like)[0])
    return adapter


class _Field(nn.Module):
    """What an estimator predicts, given an observation: the velocity of a flow, else the score."""

    def __init__(self, estimator: ConditionalVectorFieldEstimator, x: Tensor) -> None:
        super().__init__()
        self.estimator = estimator
        self.register_buffer("x", x.to(estimator.mean_base))

    def forward(self, theta: Tensor, time: Tensor) -> Tensor:
        flows = isinstance(self.estimator, FlowMatchingEstimator)
        return (self.estimator.ode_fn if flows else self.estimator.score)(theta, self.x, time)


class _Given(Adapter):
    """A denoiser that knows the mean before the observation, as `data_moments`."""

    @property
    def own_means(self) -> bool:
        return True


class _Marginals(Schedule):
    """The schedule of an estimator, over the times that it was trained on."""

    def __init__(self, estimator: ConditionalVectorFieldEstimator) -> None:
        self.estimator = estimator
        # a flow has no signal at time 1, and sbi keeps its scales constant from 0.99 on
        last = 0.99 if isinstance(estimator, FlowMatchingEstimator) else math.inf
        self.ends = max(estimator.t_min, FIRST), min(estimator.t_max, last)

    def time(self, t: Tensor) -> Tensor:
        first, last = self.ends
        return first + (last - first) * t

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        time = self.time(t.double())  # in single precision 1 - alpha^2 would cancel
        scales = self.estimator.mean_t_fn(time), self.estimator.std_fn(time)
        alpha, sigma = (scale.reshape(t.shape).to(t) for scale in scales)
        return alpha, sigma

    def __repr__(self) -> str:
        return f"{type(self.estimator).__name__}'s"


class Posterior(NeuralPosterior):
    """A posterior whose samples feasibly draws, for sbi's diagnostics: `run_sbc`, `run_tarp`.

    Each call returns new samples, whose seed is drawn from torch's global generator, so that
    `torch.manual_seed` governs them. Given a constraint, some 64 samples are taken without it
    first, anew for each observation. There is no density: `log_prob`, `potential` and `map` raise
    a NotImplementedError.

    Arguments:
        problem: A function of an observation, which returns the denoiser and the constraint; see
            :func:`feasibly.sample`. Of a denoiser of parameters and data, the constraint says what
            the data are. For an estimator of sbi use :meth:`of`.
        shape: The shape of one of the denoiser's samples.
        parameters: The parameters as a function of samples, with shape (B, *).
        options: Further arguments of :func:`feasibly.sample`, such as `method` and `monitor`.

    Attributes:
        result: The :class:`feasibly.Result` of the last call, whose samples `parameters` maps to
            parameters; None before.

    Raises:
        ValueError: If `seed` is among the options.
    """

    def __init__(
        self,
        problem: Callable[[Tensor], Problem],
        shape: tuple[int, ...],
        parameters: Callable[[Tensor], Tensor],
        **options: Any,
    ) -> None:
        if "seed" in options:
            raise ValueError("Posterior takes no seed; set it by torch.manual_seed(...).")
        super().__init__(_no_density, device="cpu")
        self.problem, self.shape, self.parameters = problem, shape, parameters
        self.options = options
        self.result: Result | None = None

    @classmethod
    def of(
        cls,
        estimator: ConditionalVectorFieldEstimator,
        constraint: Constraint | None = None,
        **options: Any,
    ) -> "Posterior":
        """Returns the posterior of an estimator under a constraint on the parameters.

        Arguments:
            estimator: The estimator; see :func:`denoiser`.
            constraint: The constraint on the parameters in their own units, with shape (B, *),
                such as the bounds of the prior, `feasibly.Bounds(low, high, atol=1e-6)`; None for
                none.
            options: Further arguments of :func:`feasibly.sample`.

        Raises:
            DenoiserError: If the estimator has no score or no marginals.
        """
        _check(estimator)
        if constraint is not None and estimator.compose_enabled:
            constraint = constraint.in_units(estimator._theta_shift[0], estimator._theta_scale[0])
        given = functools.partial(_given, estimator, constraint)
        return cls(given, estimator.input_shape, estimator.from_z, **options)

    def sample(
        self,
        sample_shape: tuple[int, ...] = (),
        x: Tensor | None = None,
        show_progress_bars: bool = True,
    ) -> Tensor:
        """Returns samples of the parameters, with shape `(*sample_shape, *theta_shape)`.

        Arguments:
            sample_shape: The shape of the set of samples.
            x: The observation; None for that of `set_default_x`.
            show_progress_bars: Whether to show progress, on a terminal and in a notebook.
        """
        problem, n = self.problem(self._x_else_default_x(x)), math.prod(sample_shape)
        seed, progress = drawn_seed(), None if show_progress_bars else False
        given: dict[str, Any] = {"progress": progress, **self.options, "seed": seed}
        self.result = sample(*problem, n, self.shape, **given)
        theta = self.parameters(self.result.samples)
        return theta.reshape(*sample_shape, *theta.shape[1:])

    def sample_batched(
        self, sample_shape: tuple[int, ...], x: Tensor, show_progress_bars: bool = True
    ) -> Tensor:
        """Returns samples for each observation, which are drawn one observation after the other,
        with shape `(*sample_shape, len(x), *theta_shape)`."""
        each = [self.sample(sample_shape, one, show_progress_bars) for one in x]
        return torch.stack(each, dim=len(sample_shape))

    def log_prob(self, theta: Tensor, x: Tensor | None = None) -> Never:
        _no_density(theta, x)


def _check(estimator: Any) -> None:
    if not isinstance(estimator, ConditionalVectorFieldEstimator) or not (
        estimator.SCORE_DEFINED and estimator.MARGINALS_DEFINED
    ):
        raise DenoiserError(
            f"{type(estimator).__name__} is no vector field estimator of sbi that has a score and "
            "marginals; give what train() of sbi's NPSE or FMPE returns."
        )


def _given(estimator: Any, constraint: Constraint | None, x: Tensor) -> Problem:
    return denoiser(estimator, x), constraint


def _no_density(theta: Tensor, x_o: Tensor | None) -> Never:
    raise NotImplementedError(
        "This posterior has samples and no density. Without a constraint, sbi's own "
        "VectorFieldPosterior of the estimator has one."
    )
