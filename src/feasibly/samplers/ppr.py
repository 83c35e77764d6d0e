r"""Predict-Project-Renoise (PPR), Algorithm 2."""

__all__ = ["PPR"]

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..minimizers import GaussNewton, Minimizer, Minimum, Residual, WarmLBFGS
from ..minimizers.base import per_sample
from ..randomness import MemberNoise
from .base import Randn, Sampler


class PPR(Sampler):
    r"""Samples under a hard constraint by projecting *through the denoiser*, and renoising.

    After each prediction, the kernel

    .. math:: K_t^\mathrm{PPR}(x_t' \mid x_t) = p\big(x_t' \mid x_0 = d_\theta(\Pi_d(x_t))\big),
        \qquad \Pi_d(x_t) = \arg\min_x c(d_\theta(x))

    is applied :math:`M` times, which drives :math:`x_t` toward the constrained marginal
    :math:`p_t^\mathcal{C}`. With the projection at every level a run costs at most
    :math:`T (1 + M (P + 1))` forward and :math:`T M P` backward calls, where :math:`P` is the
    number of iterations of the minimizer; :meth:`budget` says it for any settings.

    The defaults differ from the paper's setting, which is `PPR(..., steps=64, repeats=2,
    minimize=LBFGS(steps=8, max_step=None), sigma_max=inf, retries=0)`:

    * the projection is held within the reach of the noise, so that the denoiser is not asked
      where it was never trained;
    * it begins at `sigma_max`: above, the estimate :math:`d_\theta(x_t)` is an average over data
      that are far apart, and projecting it says little;
    * a member that this leaves infeasible is drawn again.

    What is not given is chosen by the number of residuals, once it is known. A few (up to 8) cut
    out a surface, which is found late and at once: 32 steps, one kernel application by
    `GaussNewton()` from 0.75 down. Many say something of the sample at higher noise already, and
    take more work to tell: 64 steps, one application by `WarmLBFGS(steps=16)` from 10 down, and
    up to 48 iterations for the last projection, whose estimate is returned.
    `docs/data2d.md` and `docs/ks.md` show what each of these is worth.

    **Inequalities.** Where the constraint has an interior (:attr:`Constraint.equalities`), three
    things differ. A member whose estimate is inside is left alone, neither projected nor
    renoised, so that the interior is not squashed. All attempts but the last two draw from the
    prior and keep what falls inside, which is exact; only what is then left is projected. And the
    default is 64 steps, from 10 down, with 5 retries: a member sent back late stays near the
    boundary. So with a share :math:`p` of the prior inside, the samples are those of the
    truncated prior but for a share :math:`(1 - p)^{\text{retries} - 1}`. The law of that share
    is not exact: more steps or kernels push it off the boundary, fewer gather it there. Projected
    at once, the default is at a total variation of 0.03 to 0.09 from truncated priors in the
    plane (`tests/oracles/test_truncated.py`), of which 0.01 to 0.03 is the noise of 4096 samples;
    drawing again makes it 0.02 to 0.05 where a tenth of the prior is inside or more, and 0.065
    at a fortieth. So where :math:`p` is small, more retries buy accuracy; where it is all but
    zero, as for bounds on all values of a field, drawing again is in vain: `retries=1` projects
    at once, at a third of the calls.
    Of equalities *and* inequalities, all attempts but the last two project on the equalities
    alone: the law is PPR's for the equalities, truncated.

    References:
        | Predict-Project-Renoise: Sampling Diffusion Models under Hard Constraints
        | (Rochman-Sharabi & Louppe, 2026), https://arxiv.org/abs/2601.21033

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        steps: The number :math:`T` of diffusion steps; None chooses by the number of residuals.
        repeats: The number :math:`M` of kernel applications a step, at least 1; None likewise.
        minimize: The minimizer behind :meth:`project`; None likewise.
        sigma_max: The highest noise level :math:`\sigma / \alpha` at which the kernel is
            applied; None likewise. The choices are for data of unit variance: scale it with the
            data's.
        sigma_min: The lowest such level.
        last_steps: The most iterations of a projection at the last level, whose estimate is
            returned; None for the minimizer's own, or three times as many if PPR chooses the
            minimizer and there are many residuals.
        retries: How often an infeasible member is drawn again; None chooses 3, or 5 for
            inequalities (see above; below 2, they too are projected on at once).
        fast: Choose fewer iterations: half of the gradients for a few residuals, and two thirds
            for many, for samples that are a little farther from the constrained distribution.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    default_readout = "clean"
    space = "x_t"
    renoises = True
    differentiates = True
    advice = (
        "let the last projection go on, such as last_steps=200, or give every projection more "
        "iterations, such as minimize=WarmLBFGS(steps=48)"
    )
    constraint: Constraint

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        constraint: Constraint,
        *,
        steps: int | None = None,
        repeats: int | None = None,
        minimize: Minimizer | None = None,
        sigma_max: float | None = None,
        sigma_min: float = 0.0,
        last_steps: int | None = None,
        retries: int | None = None,
        fast: bool = False,
        **kwargs: Any,
    ) -> None:
        # until the number of residuals is known, what is not given is for few of them
        few = defaults(1, fast, _has_interior(constraint))
        given = {
            "steps": steps,
            "repeats": repeats,
            "sigma_max": sigma_max,
            "minimize": minimize,
            "retries": retries,
            "last_steps": last_steps,
        }
        steps = few.steps if steps is None else steps
        repeats = few.repeats if repeats is None else repeats
        sigma_max = few.sigma_max if sigma_max is None else sigma_max
        retries = few.retries if retries is None else retries
        super().__init__(denoiser, constraint, steps=steps, retries=retries, **kwargs)
        if repeats < 1:
            raise ValueError(
                f"PPR(repeats=...) must be at least 1, got {repeats}; projection without "
                "renoising (M = 0) is an ablation, in experiments/studies/ablation.py."
            )
        last = self.noise_level(torch.tensor(0.0))
        if not sigma_max > last:
            raise ValueError(
                f"PPR(sigma_max={sigma_max}) is below the schedule's last noise level, "
                f"{last:.3g}, so nothing would be projected; raise it."
            )
        if last_steps is not None and last_steps < 1:
            raise ValueError(f"PPR(last_steps=...) must be at least 1, got {last_steps}.")
        self.repeats = repeats
        self.minimize = minimize
        self.sigma_max = sigma_max
        self.sigma_min = sigma_min
        self.last_steps = last_steps
        self._fast = fast
        self._memory: _Memory | None = None  # that of the run which makes a step
        self._open = {name for name, value in given.items() if value is None}
        if minimize is not None:
            self._open.discard("last_steps")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        chosen = vars(self).get("_open", set())
        chosen.discard(name)  # what is set is not chosen
        if name == "minimize" and "last_steps" in chosen:
            chosen.discard("last_steps")  # a minimizer that is given is taken as it is
            vars(self)["last_steps"] = None

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        x_0 = self.denoiser(x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn)

        if self._projects_at(s) and self._aim is not None:
            for _ in range(self.repeats):
                x_s, x_0 = self.kernel(x_s, s, randn, reach=self.noise_level(t))
        return x_s, x_0

    def trajectory(self, noise: MemberNoise) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        # twice, lest a projection that fails once leave a member infeasible
        last = noise.attempt >= self.retries - 1
        aim = self.constraint if last else self.constraint.equalities
        steps, memory = super().trajectory(noise), _Memory(aim)
        while True:
            self._memory = memory  # while this run makes a step, and no other
            try:
                step = next(steps, None)
            finally:
                self._memory = None
            if step is None:
                return
            yield step

    def minimum(
        self, residual: Residual, x: Tensor, unit: float, steps: int | None = None
    ) -> Minimum:
        """Searches from `x`, with what the run's last search has left."""
        minimize = self.minimize or defaults(1, self._fast).minimize
        if steps is not None:
            minimize = replace(minimize, steps=steps)
        memory = self._memory or _Memory(self.constraint)
        if self._memory and memory.history is None:
            memory.history = minimize.remember(x)
        return minimize(residual, x, self.stop, unit, history=memory.history)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        chosen = copy(self)
        minimize = chosen.choose(residuals)
        forward, backward = minimize.cost(residuals)
        kernels, attempts = chosen.levels() * chosen.repeats, self.retries + 1
        last = 1 if self.readout == "denoise" else 0
        calls = [chosen.steps + kernels * forward + last, kernels * backward]
        if chosen.last_steps and chosen._projects_at(torch.tensor(0.0)):
            longer = replace(minimize, steps=chosen.last_steps).cost(residuals)
            calls[0] += chosen.repeats * (longer[0] - forward)
            calls[1] += chosen.repeats * (longer[1] - backward)
        return attempts * calls[0], attempts * calls[1]

    def kernel(
        self, x_t: Tensor, t: Tensor, randn: Randn = torch.randn_like, reach: float | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""Draws :math:`x_t' \sim K_t^\mathrm{PPR}(x_t' \mid x_t)`, and returns it with the
        projected estimate :math:`d_\theta(x_t^*)` behind it. Members inside an inequality stay
        at :math:`x_t`."""
        best = self.search(x_t, t, reach)
        x = self.renoise(best.x_0, t, randn)
        if _has_interior(self.constraint):
            inside = (best.x == x_t).flatten(start_dim=1).all(dim=1) & (best.value <= self.stop)
            x = torch.where(per_sample(inside, x), x_t, x)
        return x, best.x_0

    def project(self, x_t: Tensor, t: Tensor, reach: float | None = None) -> Tensor:
        r"""PROJECT: returns :math:`d_\theta(x_t^*)`, with shape :math:`(B, *)`."""
        return self.search(x_t, t, reach).x_0

    def search(self, x_t: Tensor, t: Tensor, reach: float | None = None) -> Minimum:
        r"""Searches :math:`x_t^* = \arg\min_x c(d_\theta(x))` from :math:`x_t`.

        Arguments:
            x_t: The states, with shape :math:`(B, *)`.
            t: Their time, with shape :math:`()`.
            reach: The noise level :math:`\sigma / \alpha` whose :math:`\sqrt{D}`-fold is the
                minimizer's unit of length. In a step it is the level that `x_t` was predicted
                from, since the error of a prediction is of that size; None for the level of `t`.

        Returns:
            The best :math:`x_t^*` found, and :math:`d_\theta(x_t^*)`.
        """
        alpha_t, sigma_t = self.denoiser.schedule(t)
        scale = torch.sqrt(alpha_t**2 + sigma_t**2)  # the search is in units of the state

        aim = self._aim or self.constraint

        def residual(u: Tensor) -> tuple[Tensor, Tensor]:
            x_0 = self.denoiser(scale * u, t)
            return aim.residual(x_0), x_0

        reach = self.noise_level(t) if reach is None else reach
        unit = reach * math.sqrt(x_t[0].numel()) * (alpha_t / scale).item()
        start = x_t / scale
        best = self.minimum(residual, start, unit, self.last_steps if t == 0 else None)
        return best._replace(x=torch.where(best.x == start, x_t, scale * best.x))

    def prepare(self, x_0: Tensor, r: Tensor) -> None:
        """Chooses what was not given by the number of residuals, and keeps it for all to see."""
        self.choose(r.shape[1])

    def choose(self, residuals: int) -> Minimizer:
        """Sets what was not given, nor set since, to the default for a number of residuals, and
        returns the minimizer."""
        chosen = defaults(residuals, self._fast, _has_interior(self.constraint))
        vars(self).update({name: getattr(chosen, name) for name in self._open})
        return self.minimize or chosen.minimize

    @property
    def _aim(self) -> Constraint | None:
        """What this attempt projects on; None for nothing."""
        return self._memory.aim if self._memory else self.constraint

    def levels(self) -> int:
        """Returns the number of steps that apply the kernel."""
        times = torch.linspace(1, 0, self.steps + 1)[1:]
        return sum(self._projects_at(s) for s in times)

    def _projects_at(self, t: Tensor) -> bool:
        return self.sigma_min <= self.noise_level(t) <= self.sigma_max


@dataclass
class _Memory:
    """What a run's searches keep from one to the next; see :meth:`Minimizer.remember`."""

    aim: Constraint | None
    history: Any = None


def _has_interior(constraint: Constraint | None) -> bool:
    return constraint is not None and constraint.equalities is None


class Settings(NamedTuple):
    """What PPR chooses by the number of residuals."""

    steps: int
    repeats: int
    sigma_max: float
    minimize: Minimizer
    retries: int
    last_steps: int | None = None  # those of the minimizer


def defaults(residuals: int, fast: bool = False, interior: bool = False) -> Settings:
    """The settings for a number of residuals: few cut out a surface, many determine a sample.
    Neither is so of an interior, into which members are sent early."""
    few = residuals <= GaussNewton.dense
    minimize = GaussNewton(1 if fast else 2) if few else WarmLBFGS(11 if fast else 16)
    # a member that is nearly feasible in the end is not lost for want of a few iterations
    last = None if few else 3 * minimize.steps
    if few and not interior:
        return Settings(32, 1, 0.75, minimize, retries=3)
    return Settings(64, 1, 10.0, minimize, retries=5 if interior else 3, last_steps=last)
