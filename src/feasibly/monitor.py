r"""Tests whether samples look like data to the denoiser: samples against unconditional samples.

Where :math:`x` looks like data, the denoiser undoes a little noise about as well as it does for
the prior's own samples. Where it does not, the denoiser moves it elsewhere, and the error

.. math:: e_k(x) = \frac{1}{D s_k^2} \, \mathbb{E}_n \|d(x + s_k n) - x\|^2

at a low noise level :math:`s_k` is larger. This is the loss of the denoiser's training, of one
sample. A sample that is too smooth, or in a region that is merely rare, has no larger error. So
the test finds samples off the data. It does not find a wrong distribution on the data.
"""

__all__ = ["Assessment", "Monitor"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import DenoiserError
from .members import calling
from .messages import RATE
from .minimizers.base import finite
from .network import Network, own_mode
from .progress import current
from .randomness import generator
from .samplers.ancestral import Ancestral
from .survey import Survey, times_of

LEVELS = (0.01, 0.03)
"""The noise levels, in units of the data's scale. At higher ones a sample far out in a smooth
distribution has a larger error too, though it is on the data."""

SMALL, PAIRS_SMALL, PAIRS_LARGE = 64, 2, 1
"""Samples of fewer than so many elements get two pairs of noises, others one. The errors of many
elements average out."""

SPREAD, LEAST = 0.15, 2.0
"""The least standard deviation of log-errors that counts, and the least limit in units of it. A
sample whose error is less than exp(SPREAD * LEAST) = 1.35 times the typical one is plausible,
however little the errors of unconditional samples vary."""

SLIGHT = 0.01
"""The error, in units of the noise's variance, below which errors are alike."""

TAIL = 8
"""One unconditional sample in so many belongs to the tail."""

NOISE_SEED = 2**32 - 3
"""The seed of the noises."""


@dataclass(frozen=True, eq=False)
class Assessment:
    r"""What a monitor says of samples.

    Attributes:
        statistic: Each sample's largest standardised log-error, in units of the limit, with shape
            :math:`(B)`; infinite for samples that are not finite. At most 1 is plausible.
        plausible: Which are plausible, with shape :math:`(B)`.
        errors: The denoising errors :math:`e_k`, with shape :math:`(B, K)`.
    """

    statistic: Tensor
    plausible: Tensor
    errors: Tensor


class Probe(NamedTuple):
    """A fixed state, its time, and the denoiser's estimate under the survey's conditions. It
    tells samples with conditions of their own. Both states have shape (1, *)."""

    x_t: Tensor
    t: Tensor
    x_0: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Monitor:
    r"""Denoising errors that unconditional samples have, by which others are tested.

    The log-error of a sample at each level is standardised by the mean and the standard deviation
    of the unconditional samples'. The largest over the levels is held against a limit, which one
    unconditional sample in a hundred exceeds if the tail of the largest is exponential. Lighter
    tails give fewer, and so do errors that hardly vary; see :data:`SPREAD`.

    Attributes:
        survey: The survey.
        levels: The noise levels :math:`s_k = \sigma / \alpha`, with shape :math:`(K)`.
        times: Their times, with shape :math:`(K)`.
        noise: The noises, the same for all samples, with shape :math:`(M, *)`.
        location: The mean log-error at each level, with shape :math:`(K)`.
        scale: The standard deviation of log-errors at each level, with shape :math:`(K)`.
        limit: What the largest standardised log-error may be.
        probe: What shows that samples have conditions of their own.
    """

    survey: Survey
    levels: Tensor
    times: Tensor
    noise: Tensor
    location: Tensor
    scale: Tensor
    limit: float
    probe: Probe

    @classmethod
    @own_mode()
    def of(cls, survey: Survey, levels: Sequence[float] = LEVELS) -> "Monitor":
        """Measures the denoising errors of a survey's samples.

        Arguments:
            survey: The survey.
            levels: The noise levels, in units of the data's scale. Those that the schedule does
                not reach are replaced by its ends.
        """
        problem, x = survey.problem, survey.samples
        network, kernel = problem.denoiser, Ancestral(problem=problem)
        noise = _directions(problem.shape, problem.dtype).to(problem.device)
        current().expect(len(x) * len(levels) * len(noise))
        times, reached = times_of(kernel, [survey.scale * level for level in levels], x)
        ids = torch.zeros(len(x), dtype=torch.long, device=x.device)
        (t, *_), (s, *_) = times_of(kernel, [survey.scale], x)
        x_t = network.schedule(t)[0] * (x[:1] + s * noise[:1])
        with calling(ids[:1], problem.device):
            probe = Probe(x_t, t, network(x_t, t))
        log_e = _log(_errors(network, x, ids, times, reached, noise, problem.batch_size))
        return cls(
            survey=survey,
            levels=reached,
            times=times,
            noise=noise,
            location=log_e.mean(dim=0),
            scale=log_e.std(dim=0).clamp_min(SPREAD),
            limit=max(LEAST, tail_limit(_left_out(log_e))),
            probe=probe,
        )

    @property
    def cost(self) -> int:
        """The forward evaluations that an assessment takes for each sample."""
        return len(self.levels) * len(self.noise) + 1

    @own_mode()
    def assess(
        self, x: Tensor, members: Sequence[int], batch_size: int | None = None
    ) -> Assessment:
        """Tests samples, each by itself. Only a larger error than allowed is implausible.

        Arguments:
            x: The samples, with shape (B, *).
            members: Their indices.
            batch_size: How many states may go through the denoiser at a time; None for B.

        Raises:
            DenoiserError: If samples have conditions other than those of the survey.
        """
        network, good = self.survey.problem.denoiser, finite(x)
        ids = torch.as_tensor(list(members), device=x.device)[good]
        errors = x.new_full((len(x), len(self.levels)), math.inf, dtype=torch.float64)
        if good.any():
            self.check_conditions(ids, batch_size)
            times, levels = self.times, self.levels
            errors[good] = _errors(network, x[good], ids, times, levels, self.noise, batch_size)
        statistic = _standardise(_log(errors), self.location, self.scale) / self.limit
        return Assessment(statistic, statistic <= 1, errors)

    def check_conditions(self, ids: Tensor, batch_size: int | None) -> None:
        """Refuses samples whose estimates of a fixed state are not those of the survey.

        Arguments:
            ids: The indices of the samples, with shape (B).
            batch_size: How many states may go through the denoiser at a time; None for B.

        Raises:
            DenoiserError: If they have conditions other than those of the survey.
        """
        x_t, t, x_0 = self.probe
        for part in ids.split(batch_size or len(ids)):
            with calling(part, x_t.device):
                answer = self.survey.problem.denoiser(x_t.expand(len(part), *x_t.shape[1:]), t)
            error = (answer - x_0).flatten(start_dim=1).norm(dim=1)
            if not (error <= 0.01 * x_0.norm()).all():
                raise DenoiserError(
                    "Plausibility is tested against unconditional samples of one condition, but "
                    "the denoiser has conditions that differ between samples. Test the samples of "
                    "each condition separately, against a survey of their own."
                )


def _directions(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    r"""Returns pairs of opposite noises, with shape (M, *).

    They are of norm :math:`\sqrt{D}` and orthogonal, which leaves less to chance than
    independent ones.
    """
    size = math.prod(shape)
    pairs = min(size, PAIRS_SMALL if size < SMALL else PAIRS_LARGE)
    n = torch.randn(size, pairs, generator=generator(NOISE_SEED), dtype=torch.float64)
    n = math.sqrt(size) * torch.linalg.qr(n).Q.T
    return torch.cat((n, -n)).reshape(-1, *shape).to(dtype)


def _errors(
    network: Network,
    x: Tensor,
    ids: Tensor,
    times: Tensor,
    levels: Tensor,
    noise: Tensor,
    batch: int | None,
) -> Tensor:
    """Returns the denoising errors, with shape (B, K); infinite where one is not finite."""
    found = []
    rows = torch.arange(len(x) * len(noise), device=x.device)
    for t, s in zip(times, levels, strict=True):
        alpha_t, _ = network.schedule(t)
        squares = []
        for part in rows.split(batch or len(x)):
            i, j = part // len(noise), part % len(noise)
            with calling(ids[i], x.device):
                d = network(alpha_t * (x[i] + s * noise[j]), t)
            squares.append(((d - x[i]) / s).double().flatten(start_dim=1).square().mean(dim=1))
        found.append(torch.cat(squares).reshape(len(x), -1).mean(dim=1))
    return torch.stack(found, dim=1).nan_to_num(math.inf)


def _log(errors: Tensor) -> Tensor:
    return (errors + SLIGHT).log()


def _standardise(log_e: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Returns the largest standardised log-error of each sample, with shape (B)."""
    return ((log_e - location) / scale).amax(dim=1)


def _left_out(log_e: Tensor) -> Tensor:
    """Returns the same of each sample of a reference, standardised by all the others, as a new
    sample is."""
    others = len(log_e) - 1
    centred = log_e - log_e.mean(dim=0)
    location = -centred / others
    square = (centred.square().sum(dim=0) - centred.square()) / others - location.square()
    scale = (square * others / (others - 1)).clamp_min(0).sqrt().clamp_min(SPREAD)
    return _standardise(centred, location, scale)


def tail_limit(statistic: Tensor) -> float:
    r"""Returns what a new sample exceeds with probability :data:`RATE`, for exponential tails.

    Let :math:`u` be the value below the :math:`k` largest of :math:`N`, and :math:`S` the sum of
    their excesses over it. A new value exceeds :math:`u` with probability
    :math:`(k + 1) / (N + 1)`, and then :math:`u + c S` with :math:`(1 + c)^{-k}`, since the ratio
    of an exponential variable to a sum of :math:`k` such has that distribution.
    """
    size = len(statistic)
    k = size // TAIL
    largest = statistic.topk(k + 1).values
    u, excess = largest[-1], (largest - largest[-1]).sum()
    c = ((k + 1) / (size + 1) / RATE) ** (1 / k) - 1
    return (u + c * excess).item()
