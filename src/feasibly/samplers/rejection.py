r"""Rejection at low noise, then posterior samples."""

__all__ = ["Pilot", "Rejection"]

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from .. import progress
from ..errors import ConstraintError, DenoiserError
from ..linalg import eigh
from ..members import among, calling
from ..problem import DryRun, Problem
from ..randomness import MemberNoise
from .answers import SEED, answers, same
from .base import Start, passed
from .calibrated import CalibratedPPR
from .slopes import products, rows

FEW = 4  # residuals for which members may be resampled until they come near
PILOT = 256  # unconditional samples that tell how likely the constraint can be
UNKEPT = 1 / 4  # the share of members kept at no try above which a user is warned
EXCESS = 1 / 20  # the share of the likelihood beyond the pilot's above which a user is warned


@dataclass(frozen=True)
class Pilot:
    """What a pilot has shown of a problem.

    Attributes:
        key: The sampler that it is of, in words.
        log_bar: The log-likelihood of the constraint from which on a sample is kept for certain.
        answer: The denoiser's estimate for a fixed state, with shape (1, *). By it samples with
            other conditions are found.
        residual: The residual of that estimate, with shape (1, m). By it samples with other
            targets are found.
        tries: The number of tries that a sample is expected to take.
    """

    key: str
    log_bar: float
    answer: Tensor
    residual: Tensor
    tries: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Rejection(CalibratedPPR):
    r"""Samples the prior down to a low noise level, keeps the likely members, and goes on as
    :class:`CalibratedPPR`.

    Above `level` a member goes as an unconditional sample would. There, at :math:`x_s`, it is
    kept with a probability in proportion to

    .. math:: h(x_s) = \mathcal{N}\big(0 \mid r(d_\theta(x_s)), J V J^\top\big)
        \approx p(r = 0 \mid x_s),

    and otherwise resampled. Those kept are samples of :math:`p(x_s \mid r = 0)` if the
    approximation holds there. The largest :math:`h` is taken from a pilot of 256 unconditional
    samples of a seed of their own, once a run; their evaluations are counted. Of a member that is
    kept at none of `tries` tries, one try is chosen, with :math:`h` as weights. The run warns if
    that is so of a quarter of the members, or if :math:`h` often exceeds the pilot's. One
    residual needs some 10 tries, two some 50.

    Arguments:
        steps: The number of diffusion steps. Those above `level` are an unconditional sample's.
        level: The noise level :math:`\sigma / \alpha` at which members are kept, in units of the
            data. For data of unit variance 0.1 is low enough for edges and modes. The constraint
            acts at the last step in any case.
        tries: How often a member may be sampled down to `level`.
        products: See :class:`CalibratedPPR`.
        iterations: See :class:`CalibratedPPR`.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction.
        output: What to return; see :class:`Method`.
        pilot: What the pilot has shown; None to sample it before the run.

    Example:
        >>> method = feasibly.samplers.Rejection(steps=8, level=0.5)
        >>> feasibly.sample(denoiser, circle, 4, (2,), method=method).feasible.tolist()
        [True, True, True, True]
    """

    one_target = True
    attempts = 1
    chooses = False
    takes_noise = False  # its likelihood has no errors

    steps: int = 48
    level: float = 0.1
    tries: int = 16
    pilot: Pilot | None = field(default=None, repr=False, compare=False)

    def bind(self, problem: Problem, survey: Any = None) -> Self:
        return super().bind(problem)

    def prepare(self, seen: DryRun) -> Self:
        """Returns the kernel with its pilot."""
        if seen.residuals > FEW:
            raise ValueError(
                "Rejection resamples until a sample comes near the constraint, which few do with "
                f"{seen.residuals} residual components; use CalibratedPPR, or state at most {FEW} "
                "components."
            )
        if self.pilot is not None and self.pilot.key == repr(self):
            return self
        return replace(self, pilot=self._sampled_pilot(seen))

    def begin(self, noise: MemberNoise) -> Start:
        r"""Samples states at `level`: each member until it is kept, and `tries` times at most.

        A try of likelihood :math:`h` is kept with probability :math:`\min(1, h / b)`, with
        :math:`b` the pilot's. Of a member that is kept at no try, one try is chosen, with
        :math:`h` as weights.
        """
        pilot, meter, left = self._checked_pilot(noise), progress.current(), noise.rows
        x_s, total = torch.empty(0), torch.empty(0)
        likelihood = beyond = 0.0
        work = progress.work(*self._try(pilot.residual.shape[1]))
        with meter.part(expected=len(left) * pilot.tries * work):
            for k in range(self.tries):
                tried, before = len(left), meter.done
                again = noise.again(left, k) if k else noise
                with among(left):
                    new, s = self.unconditional(again)
                    log_h = self.log_likelihood(new, s)
                if k == 0:
                    x_s, total = new.clone(), torch.full_like(log_h, -math.inf)
                u, v = (torch.special.ndtr(again().flatten(1)[:, 0]).log() for _ in range(2))
                keep = u <= log_h - pilot.log_bar
                total[left] = torch.logaddexp(total[left], log_h)
                chosen = keep | (v <= log_h - total[left])  # the latter for what is never kept
                x_s[left[chosen]] = new[chosen]
                ratio = (log_h - pilot.log_bar).double().clamp(max=30).exp()
                likelihood += ratio.sum().item()
                beyond += (ratio - 1).clamp_min(0).sum().item()
                left = left[~keep]
                share = len(left) / tried  # as many of the rest again, at as much work
                ahead = sum(share**j for j in range(1, self.tries - k))
                meter.expect((meter.done - before) * ahead)
                if not len(left):
                    break
        statistics = {"likelihood": likelihood, "beyond the pilot": beyond}
        if noise.attempt == 0:
            statistics |= {"begun": len(x_s), "kept at no try": len(left)}
        times = self.times(noise.dtype, noise.device)
        return Start(x_s, times[self._free() :], None, statistics)

    def unconditional(self, noise: MemberNoise) -> tuple[Tensor, Tensor]:
        """Samples states at `level` without the constraint, and returns them and their time."""
        x_t, times, *_ = super().begin(noise)
        for t, s in pairwise(times[: self._free() + 1]):
            x_0 = self.denoiser(x_t, t)
            x_t = self.predict(x_t, x_0, t, s, noise)
            passed(x_t, x_0, s)
        return x_t, times[self._free()]

    @torch.enable_grad()
    def log_likelihood(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\log h(x_t)` but for a constant, with shape :math:`(B)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)
        z = mean.detach().requires_grad_()
        r = self.constraint.residual(z)
        J = rows(r, z)
        S = J @ products(J, mean, x_t, sigma_t**2 / alpha_t).mT
        values, vectors = eigh((S + S.mT) / 2)
        values = values.clamp_min(torch.finfo(r.dtype).tiny)
        p = (vectors.mT @ r.detach().double()[..., None]).squeeze(-1)
        log_h = -(p.square() / values + values.log()).sum(dim=1) / 2
        return log_h.nan_to_num(-math.inf).to(r.dtype)  # what is not finite is not kept

    def warnings(self, statistics: Mapping[str, float]) -> Iterator[str]:
        begun, unkept = (int(statistics.get(name, 0)) for name in ("begun", "kept at no try"))
        if unkept > UNKEPT * begun:
            yield (
                f"{unkept} of {begun} samples were accepted in none of {self.tries} tries. For "
                "each of them, one try was chosen by its likelihood, so that mode weights are "
                "partly those of the prior. Raise `tries`, or `level` if the data have no finer "
                "structure."
            )
        beyond, whole = (statistics.get(k, 0.0) for k in ("beyond the pilot", "likelihood"))
        share = beyond / whole if whole else 0.0
        if share > EXCESS:
            yield (
                f"{share:.0%} of the likelihood of the constraint lies beyond the largest of "
                f"{PILOT} unconditional samples. Regions that are rare in the prior and likely to "
                "be feasible get too few samples. Raise `level` if the data have no finer "
                "structure."
            )

    def _free(self) -> int:
        """The number of steps without the constraint, which acts at the last step at least."""
        above = (self.noise_level(t) > self.level for t in self.times()[:-2])
        return sum(above)

    @torch.no_grad()
    def _sampled_pilot(self, seen: DryRun) -> Pilot:
        """Samples the pilot under the conditions of the problem."""
        like, found = seen.x_0, []
        rest = (tuple(like.shape[1:]), 0, like.dtype, like.device)
        work = PILOT * progress.work(*self.expected(seen.residuals))
        with progress.current().part("pilot", work):
            for ids in torch.arange(PILOT).split(max(1, seen.batch_size)):
                with calling([seen.member] * len(ids), like.device):
                    noise = MemberNoise(SEED, ids.tolist(), *rest)
                    found.append(self.log_likelihood(*self.unconditional(noise)))
        answer, r = answers(self, MemberNoise(0, [seen.member], *rest))
        log_h = torch.cat(found)
        log_bar = log_h.max().item()
        kept = (log_h - log_bar).exp().nan_to_num().mean().item()
        tries = sum((1 - kept) ** k for k in range(self.tries))
        return Pilot(repr(self), log_bar, answer, r, tries)

    def _checked_pilot(self, noise: MemberNoise) -> Pilot:
        """Returns the pilot, if it holds for the settings and the conditions of these members."""
        pilot = self.pilot
        if pilot is None or pilot.key != repr(self):
            raise ValueError(
                f"{type(self).__name__} has no pilot for its settings; call "
                "`kernel.prepare(seen)` first."
            )
        found = answers(self, noise, pilot.answer)
        same_prior, same_target = same(*found, pilot.answer, pilot.residual)
        if not same_target.all():
            raise ConstraintError(
                "Rejection takes one constraint for all samples, but theirs differ from that of "
                "its pilot; make one run for each target."
            )
        if not same_prior.all():
            raise DenoiserError(
                "Rejection takes one prior for all samples, but the denoiser has conditions that "
                "differ between samples; make one run for each condition, or use CalibratedPPR."
            )
        return pilot

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "tries")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        low, high = problem.ends
        if not low < self.level < high:
            raise ValueError(
                f"Rejection(level={self.level!r}) must be a number between the schedule's lowest "
                f"and highest noise levels, {low:.3g} and {high:.3g}."
            )

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Method.budget`, without the pilot, which is sampled once a run."""
        forward, backward = super().budget(residuals)
        above = self._free()
        backward -= self.gradients(self.times()[:above], residuals)
        forward += (self.tries - 1) * above + self.tries + 1
        return forward, backward + self.tries * residuals

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        """As :meth:`Method.expected`: with as many tries as the pilot took, one if there is none,
        and one iteration of the last projection."""
        quick = replace(self, minimize=replace(self.minimize, steps=1), tries=1)
        forward, backward = quick.budget(residuals)
        more = 0.0 if self.pilot is None else self.pilot.tries - 1
        try_forward, try_backward = self._try(residuals)
        return forward + more * try_forward, backward + more * try_backward

    def _try(self, residuals: int) -> tuple[int, int]:
        """Returns the forward and backward evaluations of a try."""
        return self._free() + 1, residuals
