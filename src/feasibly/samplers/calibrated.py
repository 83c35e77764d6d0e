r"""PPR with draws of the posterior in place of point estimates."""

__all__ = ["CalibratedPPR"]

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..errors import CalibrationWarning, DenoiserError
from ..linalg import eigh, ritz, square_root
from ..members import among, calling
from ..minimizers.base import per_sample
from ..randomness import MemberNoise
from ..result import Result
from .acceptance import PILOT, PILOT_SEED, Pilot, Tally
from .base import Randn, Sampler
from .moments import toward
from .ppr import PPR

FEW = 4  # residuals for which members may be drawn until they come near
RTOL = 1e-3  # the relative residual at which the linear solver stops
FARTHEST = 4.0  # how many standard deviations a draw moves at most, a residual


class CalibratedPPR(Sampler):
    r"""Samples under a hard constraint by predicting with *draws* of
    :math:`p(x_0 \mid x_t, r = 0)`.

    PPR renoises a point estimate, and so leaves out the variance that the posterior has around
    it: its ensembles are too narrow. Here the posterior is taken as Gaussian, with Tweedie's
    moments,

    .. math::
        p(x_0 \mid x_t) \approx \mathcal{N}\big(d_\theta(x_t), V\big), \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t},

    and each step draws from it under the constraint:

    .. math::
        z = d_\theta(x_t) + V^{1/2} \xi, \qquad
        x_0 = z - V J^\top (J V J^\top)^{-1} r(z), \qquad J = \partial r / \partial z,

    then goes from :math:`x_t` to :math:`x_s` as DDPM does with that :math:`x_0`. The last state
    is projected through the denoiser, as in PPR, and that estimate returned.

    For a Gaussian prior and a linear residual the steps are exact, whatever their number, if the
    square root and the inverse are: by Matheron's rule :math:`x_0` is then a draw of
    :math:`p(x_0 \mid x_t, r = 0)`, and DDPM's step given such a draw is one of
    :math:`p(x_s \mid x_t, r = 0)`. The inverse takes as many `iterations` as there are residuals.
    :math:`V^{1/2} \xi` takes `products` vector-Jacobian products by Lanczos' method; two are
    enough if levels are close, because a draw is renoised: from a level :math:`\rho` times as
    high, a step's covariance has a part :math:`\propto (\rho^2 - 1) V` beside fresh noise. On
    Gaussians of condition number 1000, 32 steps of the log-logit or cosine schedule leave no
    direction's standard deviation off by more than 5 %, and those of VP, whose last levels are far
    apart, by up to 28 %; more steps or `products` mend that.

    **Where it applies.** The posterior of a prior with edges or modes is Gaussian at low noise
    only, and that of a strongly curved residual likewise: what is conditioned above gets masses of
    modes wrong, or leaves the data. For priors that are nearly Gaussian given many observations,
    such as fields seen through linear or mildly curved residuals, the steps may begin at the top.
    For others, with one or two residuals, set `sigma_max`. Above it a member goes as an
    unconditional sample would; there, at :math:`x_s`, it is kept with a probability in proportion
    to

    .. math:: h(x_s) = \mathcal{N}\big(0 \mid r(d_\theta(x_s)), J V J^\top\big)
        \approx p(r = 0 \mid x_s),

    and else drawn again, so that those kept are draws of :math:`p(x_s \mid r = 0)` if the
    approximation holds there. The largest :math:`h` is taken from a pilot of 256 unconditional
    samples of a seed of their own, once a run, whose calls are counted. Of a member that none of
    `tries` draws is kept of, one is chosen among them, with :math:`h` as weights. If that is so of
    a quarter of the members, or if :math:`h` often exceeds the pilot's, there is a
    :class:`CalibrationWarning <feasibly.errors.CalibrationWarning>`. One residual needs some 10
    tries, two some 50.

    A learned denoiser's :math:`V` is neither symmetric nor positive where it has not learned
    enough, and :math:`J V J^\top` then has eigenvalues close to zero, or below, that would throw
    draws far off. So it is taken as symmetric, with eigenvalues no less than a hundredth of the
    largest; and no draw moves farther than :math:`4 \sqrt{m}` times the largest standard deviation
    of :math:`V`, with :math:`m` residuals, or than the steepest descent would to :math:`r = 0`.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`: its density on the constraint is :math:`p / |\det J J^\top|^{1/2}`,
    and not :math:`p` on the surface; :func:`feasibly.constraints.log_volume` tells them apart.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, for the moments
        | Gaussian Processes and Matheron's rule (Wilson et al., 2021), https://jmlr.org/papers/v22/20-1260.html

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        steps: The number of diffusion steps. With `sigma_max` take more, such as 48: those above
            it are an unconditional sample's.
        sigma_max: The highest noise level :math:`\sigma / \alpha` at which the constraint acts;
            it acts at the last step in any case. For data of unit variance 0.1 is low enough for
            edges and modes.
        tries: How often a member may be drawn down to `sigma_max`.
        products: The number of products for the square root; 0 leaves the draw out.
        iterations: The most iterations of the solver, one product each: as many as there are
            residuals are exact, and fewer may leave a bias where the constraint is far.
        retries: How often an infeasible member is drawn again.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    default_readout = "clean"
    enforces = True
    space = "x_0"
    renoises = True
    differentiates = True
    advice = "allow more `steps`; where the residual is strongly curved, use PPR"
    constraint: Constraint

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        constraint: Constraint,
        *,
        steps: int = 32,
        sigma_max: float = math.inf,
        tries: int = 16,
        products: int = 2,
        iterations: int = 8,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(denoiser, constraint, steps=steps, retries=retries, **kwargs)
        least = {"tries": (tries, 1), "products": (products, 0), "iterations": (iterations, 1)}
        for name, (value, bound) in least.items():
            if not isinstance(value, int) or value < bound:
                raise ValueError(
                    f"CalibratedPPR({name}=...) must be at least {bound}, a whole number, got "
                    f"{value!r}."
                )
        last = self.noise_level(torch.tensor(0.0))
        if not isinstance(sigma_max, int | float) or not sigma_max > last:
            raise ValueError(
                f"CalibratedPPR(sigma_max={sigma_max!r}) must be a number above the schedule's "
                f"last noise level, {last:.3g}; math.inf lets the constraint act at once."
            )
        self.products, self.iterations = products, iterations
        self.sigma_max, self.tries = sigma_max, tries
        self._residuals = 1  # until their number is known
        self._pilot: Pilot | None = None
        self._tally = Tally()

    def sample(self, *args: Any, **kwargs: Any) -> Result:
        """Draws an ensemble, as :meth:`Sampler.sample` says, and warns of what `sigma_max` could
        not make right."""
        self._tally = Tally()
        result = super().sample(*args, **kwargs)
        for message in self._tally.complaints(self.tries):
            warnings.warn(message, CalibrationWarning, stacklevel=2)
        return result

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        """Goes on; where the constraint begins to act, members are kept or drawn again if `randn`
        is a :class:`MemberNoise`, and else kept."""
        free = self.noise_level(t) > self._begin
        x_0 = self.denoiser(x_t, t) if free else self.draw_posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if free and self.noise_level(s) <= self._begin and isinstance(randn, MemberNoise):
            x_s = self._accepted(x_s, s, randn)
        if s == 0:
            x_s, x_0 = self._ppr().kernel(x_s, s, randn, reach=self.noise_level(t))
        return x_s, x_0

    @property
    def _begin(self) -> float:
        """The noise level from which the constraint acts: at the last step, if not before."""
        last = torch.linspace(1, 0, self.steps + 1, dtype=torch.float64)[-2]
        return max(self.sigma_max, self.noise_level(last) * (1 + 1e-5))

    def _accepted(self, x_s: Tensor, s: Tensor, noise: MemberNoise) -> Tensor:
        """Draws members again from the start, until they are kept."""
        highest = self._highest(s, noise)
        rows = torch.arange(len(x_s), device=x_s.device)
        x_s, total = x_s.clone(), torch.full_like(x_s.flatten(start_dim=1)[:, 0], -math.inf)
        for trial in range(self.tries):
            again = noise.again(rows, trial) if trial else noise
            with among(rows):
                x = self._free(again, s) if trial else x_s
                log_h = self.log_likelihood(x, s)
            u, v = (torch.special.ndtr(again().flatten(1)[:, 0]).log() for _ in range(2))
            keep = u <= log_h - highest
            total[rows] = torch.logaddexp(total[rows], log_h)
            chosen = keep | (v <= log_h - total[rows])  # the latter for what is never kept
            x_s[rows[chosen]] = x[chosen]
            rows = rows[~keep]
            self._tally.weigh(log_h - highest)
            if not rows.numel():
                break
        if noise.attempt == 0:
            self._tally.begun += len(x_s)
            self._tally.unkept += rows.numel()
        return x_s

    @torch.enable_grad()
    def log_likelihood(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\log h(x_t)` but for a constant, with shape :math:`(B)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)
        z = mean.detach().requires_grad_()
        r = self.constraint.residual(z)
        rows = [torch.autograd.grad(c.sum(), z, retain_graph=True)[0] for c in r.unbind(dim=1)]
        images = [torch.autograd.grad(mean, x_t, row, retain_graph=True)[0] for row in rows]
        J, VJ = (torch.stack(v, dim=1).flatten(start_dim=2).double() for v in (rows, images))
        S = (sigma_t**2 / alpha_t).double() * J @ VJ.mT
        values, vectors = eigh((S + S.mT) / 2)
        values = values.clamp_min(torch.finfo(r.dtype).tiny)
        p = (vectors.mT @ r.detach().double()[..., None]).squeeze(-1)
        log_h = -(p.square() / values + values.log()).sum(dim=1) / 2
        return log_h.nan_to_num(-math.inf).to(r.dtype)  # what is not finite is not kept

    def _free(self, noise: MemberNoise, end: Tensor) -> Tensor:
        """Draws states at time `end` without the constraint."""
        times = torch.linspace(1, 0, self.steps + 1, dtype=noise.dtype, device=noise.device)
        alpha_t, sigma_t = self.denoiser.schedule(times[0])
        x_t = torch.sqrt(alpha_t**2 + sigma_t**2) * noise()
        for t, s in pairwise(times[times >= end]):
            x_t = self.predict(x_t, self.denoiser(x_t, t), t, s, noise)
        return x_t

    @torch.enable_grad()
    def draw_posterior(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""Draws :math:`x_0 \sim p(x_0 \mid x_t, r = 0)`, with shape :math:`(B, *)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)

        def V(v: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(mean, x_t, v, retain_graph=True)
            return sigma_t**2 / alpha_t * product

        z, largest = mean.detach(), torch.full_like(x_t.flatten(start_dim=1)[:, 0], math.inf)
        if self.products:
            root, largest = square_root(V, randn(z), self.products)
            z = z + root
        x_0, distance = toward(self.constraint, z, V, 0.0, ritz, self.iterations, RTOL)
        # no farther than the covariance makes likely, which a learned one may ask for
        longest = torch.maximum(FARTHEST * (self._residuals * largest).sqrt(), distance)
        length = (x_0 - z).flatten(start_dim=1).norm(dim=1)
        share = per_sample(torch.where(length > longest, longest / length, 1.0), z)
        return z + share * (x_0 - z)

    def prepare(self, x_0: Tensor, r: Tensor) -> None:
        equalities = self.constraint.equalities
        if equalities is None or equalities.residual(x_0).shape[1] < r.shape[1]:
            raise ValueError(
                "CalibratedPPR is for equalities: it moves every draw onto the constraint, and so "
                f"would gather members on the boundary of {self.constraint!r}; use PPR."
            )
        self._residuals, self._pilot = r.shape[1], None
        if self.sigma_max < math.inf and r.shape[1] > FEW:
            raise ValueError(
                f"CalibratedPPR(sigma_max={self.sigma_max}) draws members until they come near "
                f"the constraint, which few do with {r.shape[1]} residuals; leave sigma_max out, "
                f"or state at most {FEW} residuals."
            )

    def _highest(self, s: Tensor, noise: MemberNoise) -> float:
        """The largest log h of a pilot's unconditional samples, which are drawn once a run, as
        many at a time as there are members."""
        rest = (noise.shape, 0, noise.dtype, noise.device)
        answer = self._answer(noise, *rest)
        if self._pilot is None:
            found = []
            for ids in torch.arange(PILOT).split(len(noise.members)):
                with calling(noise.members[:1] * len(ids), noise.device):
                    x = self._free(MemberNoise(PILOT_SEED, ids.tolist(), *rest), s)
                    found.append(self.log_likelihood(x, s))
            self._pilot = Pilot(torch.cat(found).max().item(), answer[:1])
        error = (answer - self._pilot.answer).flatten(start_dim=1).norm(dim=1)
        if (error > 0.01 * self._pilot.answer.norm()).any():
            raise DenoiserError(
                "CalibratedPPR(sigma_max=...) takes one prior for all members, and the denoiser "
                "tells members apart, by conditions of their own; draw them by a run for each "
                "condition, or leave sigma_max out."
            )
        return self._pilot.highest

    def _answer(self, noise: MemberNoise, *rest: Any) -> Tensor:
        """What the denoiser tells each member of one and the same state, as noisy as data."""
        times = torch.linspace(0, 1, 65, dtype=noise.dtype, device=noise.device)
        t = min(times, key=lambda t: abs(math.log(self.noise_level(t))))
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = (alpha_t**2 + sigma_t**2).sqrt() * MemberNoise(PILOT_SEED, [0], *rest)()
        with calling(noise.members, noise.device):
            return self.denoiser(x_t.expand(len(noise.members), *noise.shape), t)

    def _ppr(self) -> PPR:
        """PPR, whose projection the last step ends with."""
        ppr = PPR(self.denoiser.denoiser, self.constraint)
        ppr.choose(self._residuals)
        ppr.denoiser = self.denoiser  # whose calls are counted
        return ppr

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, self.products + min(self.iterations, residuals)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Sampler.budget` says; with `sigma_max`, for a chunk of one member, whose pilot
        is drawn one by one. A chunk of 256 makes a 256th of the pilot's calls."""
        last = self._ppr()
        minimize = last.choose(residuals)
        if last.last_steps:
            minimize = replace(minimize, steps=last.last_steps)
        calls, search = self.cost(residuals), minimize.cost(residuals)
        times = torch.linspace(1, 0, self.steps + 1)[:-1]
        above = sum(self.noise_level(t) > self._begin for t in times)
        forward, backward = self.steps + search[0], (self.steps - above) * calls[1] + search[1]
        forward += 1 if self.readout == "denoise" else 0
        pilot = (0, 0)
        if above:
            forward += (self.tries - 1) * above + self.tries + 1
            backward += self.tries * residuals
            pilot = (PILOT * (above + 1), PILOT * residuals)
        attempts = self.retries + 1
        return attempts * forward + pilot[0], attempts * backward + pilot[1]
