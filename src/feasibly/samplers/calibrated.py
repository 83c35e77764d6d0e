r"""PPR with posterior samples in place of point estimates."""

__all__ = ["CalibratedPPR"]

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..linalg import Solution, least_squares, square_root
from ..minimizers import Minimizer
from ..minimizers.base import per_sample
from ..network import along_channels
from ..problem import Problem
from . import moments
from .ancestral import Ancestral
from .base import CHOSEN, Method, Randn, Step
from .moments import Product
from .ppr import PPR
from .settings import PLAIN, settings

RTOL = 1e-3  # at which the linear solver and the square root stop
STRIDE = 2.0  # how many times lower the next noise level is where z comes from reverse diffusion
LAST = 4  # how many times as many iterations the last solve of a nonlinear residual may take
NEWTON = 2  # how often it is then linearised anew
FARTHEST = 4.0  # how many standard deviations a sample moves at most, a residual


@dataclass(frozen=True, kw_only=True)
class CalibratedPPR(Method):
    r"""Samples under a hard constraint by predicting with *samples* of
    :math:`p(x_0 \mid x_t, r = 0)`.

    PPR renoises a point estimate. It leaves out the variance that the posterior has around this
    estimate, so that its ensembles are too narrow. Here the posterior is taken as Gaussian, with
    Tweedie's moments,

    .. math::
        p(x_0 \mid x_t) \approx \mathcal{N}\big(d_\theta(x_t), V\big), \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t},

    and each step samples from it under the constraint:

    .. math::
        z = d_\theta(x_t) + V^{1/2} \xi, \qquad
        x_0 = z - V J^\top (J V J^\top)^{-1} r(z), \qquad J = \partial r / \partial z,

    then goes from :math:`x_t` to :math:`x_s` as DDPM does with that :math:`x_0`. The last state
    is projected through the denoiser, as in PPR, and that estimate is the output.

    For a Gaussian prior and a linear residual the steps are exact, whatever their number, if the
    square root and the inverse are. By Matheron's rule :math:`x_0` is then a sample of
    :math:`p(x_0 \mid x_t, r = 0)`, and DDPM's step given such a sample is one of
    :math:`p(x_s \mid x_t, r = 0)`. The inverse takes as many `iterations` as there are residuals.
    :math:`V^{1/2} \xi` takes `products` vector-Jacobian products by Lanczos' method. Two are
    enough if levels are close, because a sample is renoised: from a level :math:`\rho` times as
    high, a step's covariance has a part :math:`\propto (\rho^2 - 1) V` beside fresh noise. On
    Gaussians of condition number 1000, 32 steps of the log-logit or cosine schedule leave no
    direction's standard deviation off by more than 5 %. VP, whose last levels are far apart,
    leaves up to 28 %; more steps or `products` reduce that. One product is enough where data have
    at most two dimensions. With infinite `products`, :math:`z` is a sample of
    :math:`p(x_0 \mid x_t)` by the reverse diffusion itself, at a forward evaluation for each
    halving of the noise level. Then three to five steps are enough, with a `top` of 0.3 data
    scales and a `floor` of 1e-5. For `normal` data, whose denoiser is affine, Matheron's rule
    makes it of an unconditional sample :math:`x'_0`: :math:`z = x'_0 + d_\theta(x_t) -
    d_\theta(\alpha_t x'_0 + \sigma_t \epsilon)`. An error of such a sample is one of the model's
    own directions. An error of Lanczos' method has others, and a residual with derivatives, such
    as that of a differential equation, amplifies them.

    Observations with noise, :math:`r(x) + e = 0` with :math:`e \sim \mathcal{N}(0, R)`, may join.
    Then :math:`x_0 = z - V J^\top (J V J^\top + R)^{-1} (r(z) + e)` with a sample of :math:`e`,
    which is as exact. The last projection is onto what holds exactly, inequalities among it. A
    learned covariance may be negative for an exact residual at high noise, such as a conserved
    total. Such a residual joins at the level where the covariance knows it.

    **Where it applies.** The posterior of a prior with edges or modes is Gaussian at low noise
    only, and so is that of a residual with several branches. Conditioning above that gets mode
    weights wrong, or leaves the data. For priors that are nearly Gaussian given many observations,
    such as fields seen through residuals of one branch, it applies from the top. For
    others, with one or two residuals, see :class:`Rejection <feasibly.samplers.Rejection>`.

    A learned denoiser's :math:`V` is neither symmetric nor positive where it has not learned
    enough. Then :math:`J V J^\top` has small singular values that are errors, and would throw
    samples far off. Therefore they are bounded from below, by `floor` times the largest and by
    the antisymmetric part; see :func:`feasibly.linalg.least_squares`. And no sample moves farther
    than :math:`4 \sqrt{m}` times the largest standard deviation :math:`w` of :math:`V`, with
    :math:`m` residuals, or than the steepest descent would to :math:`r = 0`.

    A curved residual is linearised at the sample :math:`y` of the step before, which nearly meets
    it: :math:`r(y) + J (z - y)` takes the place of :math:`r(z)`, with :math:`J` at :math:`y`. So
    curved values of one branch, such as :math:`x + x^3`, are met as linear ones are after some
    steps. No element of :math:`y` is taken farther than :math:`4 w` from that of :math:`z`. Eight
    more residuals a step tell how much each changes over :math:`w`. Where some are much flatter
    than others, they are scaled alike, none counts for more than its change over :math:`8 w`, and
    moves are no longer than :math:`4 \sqrt{m} w`.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`: its density on the constraint is :math:`p / |\det J J^\top|^{1/2}`,
    and not :math:`p` on the surface; :func:`feasibly.constraints.log_volume` tells them apart.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, for the moments
        | Gaussian Processes and Matheron's rule (Wilson et al., 2021), https://jmlr.org/papers/v22/20-1260.html

    Arguments:
        steps: The number of diffusion steps. This and all below that is None is chosen when the
            method is bound; see :mod:`feasibly.samplers.settings`.
        spacing: Where the steps are; see :class:`Method`.
        top: The noise level to which the first step goes; that of the spacing if it is larger.
            The others are uniform in its logarithm from there, which needs `spacing="noise"`. For
            a Gaussian prior the step may be as large.
        sparse: The noise level below which steps are longer. Where the denoiser is nearly affine,
            a posterior sample is right whatever the level that it comes from.
        longer: How many times as long they are.
        products: The most products for the square root; 0 predicts with the conditional mean.
            One takes the covariance as of rank one. Infinity takes the reverse diffusion in place
            of the square root.
        iterations: The most iterations of the solver, one product each. As many as there are
            residuals are exact, up to a relative error of a thousandth, or of `floor` if that is
            less. It takes no more. Fewer may leave a bias where the constraint is far.
        dimensions: Noise levels, each with the effective dimension of the data there: about so
            many directions of the posterior are as wide as the noise. The solver takes no more
            iterations than the largest dimension at its own level or above, and at least one. If
            empty, there is no such bound.
        floor: The least singular value of :math:`J V J^\top` without noise, relative to the
            largest: smaller ones count less. It guards against errors of a learned covariance,
            and leaves a bias where an exact one has smaller singular values.
        units: The standard deviations of the data's channels, the first axis of a sample. The
            square root is taken in units of them, since Lanczos' method finds small directions
            late. If empty, it is taken as it is.
        normal: Whether data are exactly normal, so that, with infinite products, Matheron's rule
            takes the place of the reverse diffusion.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction.
        output: What to return; see :class:`Method`.

    Example:
        >>> method = feasibly.CalibratedPPR(steps=8)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method)
        >>> result.samples.shape, bool(result.feasible.all())
        (torch.Size([4, 2]), True)
    """

    space = "x_0"
    renoises = True
    takes_noise = True
    differentiates = True
    attempts = 4
    chooses = True

    steps: int = CHOSEN
    spacing: str = CHOSEN
    sparse: float = field(default=CHOSEN, metadata={"quiet": 0.0})
    longer: int = field(default=CHOSEN, metadata={"quiet": 2})
    top: float = CHOSEN
    products: int | float = CHOSEN
    iterations: int = CHOSEN
    dimensions: tuple[tuple[float, int], ...] = field(default=CHOSEN, metadata={"quiet": ()})
    floor: float = CHOSEN
    units: tuple[float, ...] = field(default=CHOSEN, metadata={"quiet": ()})
    normal: bool = field(default=CHOSEN, metadata={"quiet": False})
    minimize: Minimizer = CHOSEN
    output: str = "projected"

    def bind(self, problem: Problem, survey: Any = None) -> Self:
        self.check(problem)
        own = {name: getattr(self, name) for name in PLAIN}
        chosen = PLAIN if survey is None else PLAIN | settings(problem, survey, own)
        chosen = {name: value for name, value in chosen.items() if own[name] is CHOSEN}
        return replace(self, problem=problem, **chosen)

    def times(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> Tensor:
        times = super().times(torch.float64 if self.sparse else dtype, device)
        if not self.sparse:
            return times
        above = sum(self.noise_level(t) > self.sparse for t in times[:-1])
        return torch.cat([times[:above], times[above : -1 : self.longer], times[-1:]]).to(dtype)

    @property
    def taken(self) -> int:
        return len(self.times()) - 1 if self.sparse else self.steps

    def spaced(self, highest: Tensor, lowest: Tensor) -> Tensor:
        top = math.log(self.top)
        if not lowest < top < highest:
            return super().spaced(highest, lowest)
        start = torch.full_like(highest, top)
        levels = torch.linspace(0, 1, self.steps, dtype=highest.dtype).to(highest)
        return torch.cat([highest[None], torch.lerp(start, lowest, levels)])

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Tensor | None = None,
    ) -> Step:
        x_0 = found = self.posterior(x_t, t, randn, memory, last=bool(s == 0))
        x_s = self.predict(x_t, x_0, t, s, randn)
        exact = self.constraint.exact
        if s == 0 and exact is not None:
            # a sample of the model, by reverse diffusion, needs no denoising if it is feasible
            met = exact.is_feasible(x_0) & (self.products == math.inf)
            if not met.all():
                moved = self.ppr(exact).kernel(x_s, s, self.noise_level(t), randn)
                x_s, x_0 = (
                    torch.where(per_sample(met, x_0), x_0, one) for one in (moved[0], moved[1])
                )
            else:
                x_s = x_0
        return Step(x_s, x_0, found)

    def posterior(
        self,
        x_t: Tensor,
        t: Tensor,
        randn: Randn,
        near: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        r"""Samples :math:`x_0 \sim p(x_0 \mid x_t, r = 0)`, with shape :math:`(B, *)`.

        Arguments:
            x_t: The states, with shape :math:`(B, *)`.
            t: Their time.
            randn: Where the noise comes from.
            near: Samples near the constraint, such as those of the step before, with shape
                :math:`(B, *)`. A curved residual is linearised there.
            last: Whether it is the last, whose error no other step corrects.
        """
        z, V = moments.tweedie(self.denoiser, x_t, t)
        largest, width = torch.full_like(x_t.flatten(start_dim=1)[:, 0], torch.inf), None
        if self.products == math.inf:
            z = self._diffused(x_t, t, randn, z)
        elif self.products:
            unit = self.unit(x_t, t)
            root, largest = square_root(
                lambda u: V(u / unit) / unit, randn(z), self._products, RTOL
            )
            z, largest = z + unit * root, largest * unit.max() ** 2
            width = largest.sqrt()
        # without noise singular values are bounded by the largest; with noise too, where V is
        # as exact as the reverse diffusion takes the denoiser to be
        noisy = self.constraint.noisy is not None
        noisy &= self.constraint.equalities is None or self.products != math.inf

        def solve(S: Product, b: Tensor, iterations: int, rtol: float, least: Tensor) -> Solution:
            rtol = min(rtol, self.floor)  # small singular values are solved for too
            bound = least if noisy else None
            return least_squares(S, b, iterations, rtol, self.floor, bound)

        last &= self.products == math.inf and not self.constraint.linear
        most = LAST * self.iterations if last else self.solves(t)
        moved = moments.toward(self.constraint, z, V, 0.0, solve, most, RTOL, randn, near, width)
        for _ in range(NEWTON if last else 0):
            met = self.constraint.is_feasible(moved.x)
            if met.all():
                break
            near, old = moved.x, moved
            moved = moments.toward(
                self.constraint, z, V, 0.0, solve, most, RTOL, randn, near, width
            )
            moved = moved._replace(x=torch.where(per_sample(met, z), old.x, moved.x))
        # no farther than the covariance makes likely; a learned covariance may throw samples off
        likely = FARTHEST * (moved.residuals * largest).sqrt()
        longest = torch.maximum(likely, moved.distance)
        length = (moved.x - z).flatten(start_dim=1).norm(dim=1)
        share = per_sample(torch.where(length > longest, longest / length, 1.0), z)
        return z + share * (moved.x - z)

    def _diffused(self, x_t: Tensor, t: Tensor, randn: Randn, mean: Tensor) -> Tensor:
        r"""Samples :math:`x_0 \sim p(x_0 \mid x_t)`, given its mean, by unconditional steps from
        :math:`t` to 0; for normal data by Matheron's rule."""
        one = torch.ones_like(t)
        if not self.normal or t == one:  # at the start they are the same
            return self._unconditional(x_t, t, randn)
        x = self._unconditional(self.denoiser.begin(randn(x_t), one), one, randn)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        other = alpha_t * x + sigma_t * randn(x)
        return x + mean - self.denoiser(other, t)

    def _unconditional(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        """Goes from a time to 0 without the constraint."""
        prior, last = Ancestral(problem=self.problem), None
        times = self._halvings(t).to(x_t.dtype)
        for now, s in pairwise([t, *times[1:]]):
            x_t, _, last = prior.step(x_t, now, s, randn, last)
        return self.denoiser(x_t, times[-1])

    def _halvings(self, t: Tensor) -> Tensor:
        """Returns times from `t` to 0 whose noise levels are at most :data:`STRIDE` apart."""
        levels = self.log_level(torch.stack([t.double(), torch.zeros_like(t).double()]))
        count = math.ceil(((levels[0] - levels[1]) / math.log(STRIDE)).item())
        share = torch.linspace(0, 1, max(count, 1) + 1, dtype=torch.float64).to(levels)
        times = self.times_at(torch.lerp(levels[0], levels[1], share))
        times[-1] = 0.0
        return times

    def unit(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns about the standard deviations of the posterior of independent data, which
        broadcast against `x_t`, relative to the largest; one without `units`."""
        if not self.units:
            return torch.ones((), dtype=x_t.dtype, device=x_t.device)
        precision = along_channels(self.units, x_t) ** -2 + self.noise_level(t) ** -2
        unit = precision.rsqrt()
        return unit / unit.max()

    def solves(self, t: Tensor) -> int:
        """Returns the most iterations of the solver at a time."""
        if not self.dimensions:
            return self.iterations
        level = self.noise_level(t)
        most = max((n for above, n in self.dimensions if above >= level), default=1)
        return min(self.iterations, max(1, most))

    def ppr(self, exact: Constraint) -> PPR:
        """Returns the sampler whose kernel projects the last state."""
        return PPR(minimize=self.minimize, problem=self.bound_to.but(constraint=exact))

    def check(self, problem: Problem) -> None:
        super().check(problem)
        constraint = problem.constraint
        assert constraint is not None
        if constraint.noisy is None and (
            constraint.equalities is None or constraint.inequalities is not None
        ):
            raise ValueError(
                f"{type(self).__name__} is for equalities: it moves every sample onto the "
                f"constraint, and would concentrate samples on the boundary of {constraint!r}; "
                "use method='auto' or SMC()."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "iterations", "longer")
        if self.sparse is not CHOSEN and not 0 <= self.sparse < math.inf:
            raise ValueError(
                f"{type(self).__name__}(sparse=...) must be a noise level, got {self.sparse!r}."
            )
        if self.products != math.inf:
            self._at_least(0, "products")
        pairs = () if self.dimensions is CHOSEN else self.dimensions
        good = isinstance(pairs, tuple) and all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], int)
            for pair in pairs
        )
        if not good or not all(level > 0 and number >= 0 for level, number in pairs):
            raise ValueError(
                "CalibratedPPR(dimensions=...) is a tuple of pairs, each of a noise level and "
                f"a whole number, got {pairs!r}."
            )
        if self.floor is not CHOSEN and not 0 <= self.floor <= 1:
            raise ValueError(f"CalibratedPPR(floor=...) must lie in [0, 1], got {self.floor!r}.")
        if self.top is not CHOSEN and not (
            self.top > 0 and (self.top == math.inf or self.spacing != "time")
        ):
            raise ValueError(
                f"CalibratedPPR(top=...) is a noise level above 0, and needs spacing='noise'; got "
                f"{self.top!r} with spacing={self.spacing!r}."
            )

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, self._products + moments.cost(self.constraint, self.iterations, residuals)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        forward, _ = super().budget(residuals)
        last, times = self.minimize.cost(residuals), self.times()[:-1]
        if self.normal and self.products == math.inf:
            forward += len(times) * (1 + len(self._halvings(torch.ones_like(times[0]))))
        elif self.products == math.inf:
            forward += sum(len(self._halvings(t)) for t in times)
        return forward + last[0], self.gradients(times, residuals) + last[1]

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        quick = replace(self.minimize, steps=1)  # the last projection has little to do
        return replace(self, minimize=quick).budget(residuals)

    @property
    def _products(self) -> int:
        """The products of a square root; 0 by the reverse diffusion."""
        return 0 if self.products == math.inf else int(self.products)

    def gradients(self, times: Tensor, residuals: int) -> int:
        """Returns the most backward evaluations of steps from these times."""
        solves = (moments.cost(self.constraint, self.solves(t), residuals) for t in times)
        return self._products * len(times) + sum(solves)
