r"""Rejection at low noise, then posterior samples."""

__all__ = ["Rejection"]

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..errors import ConstraintError, DenoiserError
from ..linalg import eigh
from ..randomness import MemberNoise
from ..sampling import Problem, passed
from .base import Start
from .calibrated import CalibratedPPR
from .slopes import products, rows
from .tries import Pilot, checked, expected, like_pilot, sample_pilot, sample_until_kept, trying

FEW = 4  # residuals for which members may be resampled until they come near
PILOT = 256  # unconditional samples that tell how likely the constraint can be
UNKEPT = 1 / 4  # the share of members kept at no try above which a user is warned
EXCESS = 1 / 20  # the share of the likelihood beyond the pilot's above which a user is warned


@dataclass(frozen=True, repr=False, eq=False)
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
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint, an equality of at most 4 residuals.
        steps: The number of diffusion steps. Those above `level` are an unconditional sample's.
        level: The noise level :math:`\sigma / \alpha` at which members are kept, in units of the
            data. For data of unit variance 0.1 is low enough for edges and modes. The constraint
            acts at the last step in any case.
        tries: How often a member may be sampled down to `level`.
        products: See :class:`CalibratedPPR`.
        iterations: See :class:`CalibratedPPR`.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction.
        output: What to return; see :class:`Sampler`.
        pilot: What the pilot has shown; None to sample it before the run.
    """

    one_target = True
    takes_noise = False  # its likelihood has no errors

    constraint: Constraint
    _: KW_ONLY
    steps: int = 48
    level: float = 0.1
    tries: int = 16
    pilot: Pilot | None = field(default=None, repr=False)

    def prepare(self, problem: Problem) -> Self:
        """Returns the sampler with its pilot."""
        super().prepare(problem)
        if problem.residuals > FEW:
            raise ValueError(
                f"Rejection resamples members until they come near the constraint, which few do "
                f"with {problem.residuals} residuals; use CalibratedPPR, or state at most {FEW} "
                "residuals."
            )
        if self.pilot is not None and self.pilot.is_of(self):
            return self
        likelihoods, highest = self._free_log_likelihoods, lambda found: found.max().item()
        pilot = sample_pilot(self, problem, PILOT, likelihoods, highest)
        return replace(self, pilot=pilot)

    def begin(self, noise: MemberNoise) -> Start:
        """Samples states at `level`: each member until it is kept, and `tries` times at most."""
        pilot = self._checked_pilot(noise)
        members, device = (len(noise.members),), noise.device
        tries = torch.full(members, self.tries, device=device)
        log_bar = torch.full(members, pilot.log_bar, dtype=noise.dtype, device=device)

        def sample(again: MemberNoise, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
            x_s, s = self.unconditional(again)
            return x_s, self.log_likelihood(x_s, s)

        with trying(self, pilot, *members):
            x_s, kept, likelihood, beyond = sample_until_kept(noise, tries, log_bar, sample)
        statistics = {"likelihood": likelihood, "beyond the pilot": beyond}
        if noise.attempt == 0:
            statistics |= {"begun": len(x_s), "kept at no try": len(x_s) - int(kept.sum())}
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
                f"{unkept} of {begun} members were kept at none of {self.tries} tries. For each, "
                "one try was chosen by its likelihood: the mode weights are partly the prior's. "
                "Raise `tries`, or `level` if the data has no finer edges."
            )
        beyond, whole = (statistics.get(k, 0.0) for k in ("beyond the pilot", "likelihood"))
        share = beyond / whole if whole else 0.0
        if share > EXCESS:
            yield (
                f"{share:.0%} of the likelihood of the constraint is beyond the largest of "
                f"{PILOT} samples of the prior. Regions that are rare in the prior and likely "
                "to be feasible have too few members. Raise `level` if the data has no finer "
                "edges."
            )

    def _free_log_likelihoods(self, noise: MemberNoise) -> Tensor:
        """Returns the log-likelihoods of unconditional samples, with shape (B)."""
        return self.log_likelihood(*self.unconditional(noise))

    def _free(self) -> int:
        """The number of steps without the constraint, which acts at the last step at least."""
        above = (self.noise_level(t) > self.level for t in self.times()[:-2])
        return sum(above)

    def _checked_pilot(self, noise: MemberNoise) -> Pilot:
        """Returns the pilot, if it holds for the conditions of these members."""
        pilot = checked(self, self.pilot)
        same_prior, same_target = like_pilot(self, pilot, noise)
        if not same_target.all():
            raise ConstraintError(
                "Rejection takes one constraint for all members, and theirs differ from the one "
                "of its pilot; make a run for each target."
            )
        if not same_prior.all():
            raise DenoiserError(
                "Rejection takes one prior for all members, and the denoiser has conditions that "
                "differ from member to member; make a run for each condition, or use "
                "CalibratedPPR."
            )
        return pilot

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "tries")
        low, high = (self.noise_level(torch.tensor(t)) for t in (0.0, 1.0))
        if not isinstance(self.level, int | float) or not low < self.level < high:
            raise ValueError(
                f"Rejection(level={self.level!r}) must be a number between the schedule's lowest "
                f"and highest noise levels, {low:.3g} and {high:.3g}."
            )

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Sampler.budget`, without the pilot, which is sampled once a run."""
        forward, backward = super().budget(residuals)
        above = self._free()
        backward -= self.gradients(self.times()[:above], residuals)
        forward += (self.tries - 1) * above + self.tries + 1
        return forward, backward + self.tries * residuals

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        return expected(self, residuals)
