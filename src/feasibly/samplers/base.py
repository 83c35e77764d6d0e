"""The loop that every sampler shares."""

__all__ = ["Randn", "Sampler"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import members as batch
from ..checks.inputs import check_constraint, check_denoiser
from ..constraints.base import Constraint
from ..errors import SamplingError
from ..minimizers.base import Minimizer, per_sample
from ..network import Network, device_of
from ..randomness import MemberNoise
from ..result import Result, Snapshot
from .run import Run, assess, finite, warn_if_infeasible

Randn = Callable[[Tensor], Tensor]
"""Draws standard normal noise in the shape of its argument."""


class Sampler(ABC):
    r"""Draws samples by going from :math:`t = 1` to :math:`t = 0`, step by step.

    A method writes :meth:`step`, and composes it of :meth:`predict` and :meth:`renoise`. What is
    returned in the end, the *read-out*, is one of

    * `state`: the state :math:`x_0` of the last step, with the noise :math:`\sigma_0` in it;
    * `denoise`: its denoised mean :math:`d(x_0)`, for one call more;
    * `clean`: the clean estimate behind the last step. For a method that projects, it is the
      projected one.

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint; None for none.
        steps: The number :math:`T` of diffusion steps, at times uniform in :math:`[0, 1]`.
        eta: The share of fresh noise in a prediction: 0 is DDIM, 1 is DDPM.
        readout: What to return; None for the method's own choice.
        retries: How often a member that ends infeasible is drawn again, from fresh noise of its
            own. The last attempts run on these members alone.
    """

    default_readout: ClassVar[str] = "denoise"
    enforces: ClassVar[bool] = True  # the constraint; else it is only reported
    lands: ClassVar[bool] = True  # on the constraint, and not only around it
    advice: ClassVar[str] = "use PPR"  # for members that end infeasible
    # a method's row in the paper's Table 1
    space: ClassVar[str | None] = None  # what the constraint moves, "x_t" or "x_0"
    renoises: ClassVar[bool] = False  # whether noise is added after that
    differentiates: ClassVar[bool] = False  # the denoiser

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        constraint: Constraint | None = None,
        *,
        steps: int = 64,
        eta: float = 1.0,
        readout: str | None = None,
        retries: int = 0,
    ) -> None:
        name = type(self).__name__
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"{name}(steps=...) must be at least 1, a whole number, got {steps!r}; try 64."
            )
        if not 0 <= eta <= 1:
            raise ValueError(f"{name}(eta=...) must lie in [0, 1], got {eta}.")
        if readout not in (None, "state", "denoise", "clean"):
            raise ValueError(
                f"{name}(readout=...) must be 'state', 'denoise' or 'clean', got {readout!r}."
            )
        if self.enforces and constraint is None:
            raise ValueError(f"{name} needs a constraint; without one use Ancestral(denoiser).")
        self.denoiser = Network(denoiser)
        ends = [self.noise_level(torch.tensor(t)) for t in (0.0, 1.0)]
        if not 0 < ends[0] < ends[1] < math.inf:
            singular = ends[0] == 0 or math.isinf(ends[1])
            hint = (
                "Keep sigma and alpha positive at the ends, as schedules.Rectified does."
                if singular
                else "Is time reversed?"
            )
            raise ValueError(
                f"The schedule's noise level sigma / alpha is {ends[0]:.3g} at t = 0 and "
                f"{ends[1]:.3g} at t = 1; it must rise from data, at 0, to noise at 1, and be "
                f"positive and finite. {hint}"
            )
        self.constraint = constraint
        if retries < 0:
            raise ValueError(f"{name}(retries=...) must not be negative, got {retries}.")
        self.steps, self.eta, self.retries = steps, eta, retries
        self.readout = readout or self.default_readout

    @abstractmethod
    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        r"""Goes from time `t` to time `s` < `t`.

        Arguments:
            x_t: The states, with shape :math:`(B, *)`.
            t: The time of the states, with shape :math:`()`.
            s: The time to go to, with shape :math:`()`.
            randn: Where the noise comes from.

        Returns:
            The states :math:`x_s` and the clean estimates behind them.
        """

    def estimate(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns the clean estimate of the states :math:`x_t`: the denoiser's."""
        return self.denoiser(x_t, t)

    def predict(self, x_t: Tensor, x_0: Tensor, t: Tensor, s: Tensor, randn: Randn) -> Tensor:
        r"""PREDICT: draws :math:`x_s` given :math:`x_t` and an estimate :math:`x_0`.

        .. math::
            x_s = \alpha_s x_0 + \sigma_s \left(\sqrt{1 - \tau} \, \frac{x_t - \alpha_t x_0}
            {\sigma_t} + \sqrt{\tau} \, \epsilon\right), \qquad \tau = \eta \left(1 -
            \frac{\alpha_t^2 \sigma_s^2}{\alpha_s^2 \sigma_t^2}\right)

        References:
            | Denoising Diffusion Implicit Models (Song et al., 2021)
            | https://arxiv.org/abs/2010.02502
        """
        mean, std = self.transition(x_t, x_0, t, s)
        return mean + std * randn(x_t) if self.eta > 0 else mean

    def transition(self, x_t: Tensor, x_0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean of a prediction, in the shape of `x_t`, and its standard deviation."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        alpha_s, sigma_s = self.denoiser.schedule(s)
        tau = self.eta * (1 - (alpha_t / alpha_s * sigma_s / sigma_t) ** 2)
        z_s = torch.sqrt(1 - tau) * (x_t - alpha_t * x_0) / sigma_t
        return alpha_s * x_0 + sigma_s * z_s, sigma_s * torch.sqrt(tau)

    def renoise(self, x_0: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""RENOISE: draws :math:`x_t \sim p(x_t \mid x_0)`, with fresh noise."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return alpha_t * x_0 + sigma_t * randn(x_0)

    @torch.no_grad()
    def sample(
        self,
        members: int | Sequence[int],
        shape: Sequence[int],
        *,
        seed: int = 0,
        chunk: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        callback: Callable[[Snapshot], None] | None = None,
    ) -> Result:
        r"""Draws an ensemble.

        Before it starts, constraint and denoiser are tried on two states (two forward calls and,
        if the method needs it, a gradient, none of which are counted). The denoiser's parameters
        should not require gradients, which cost memory.

        Arguments:
            members: The number of members, or their indices. A member depends on `seed` and its
                index alone.
            shape: The shape of one sample.
            seed: The seed of the ensemble, not negative.
            chunk: How many members to sample at a time; None for all.
            dtype: The type of the samples.
            device: Where to sample; None for where the denoiser's parameters are.
            callback: Called with a :class:`Snapshot` after every step.

        Raises:
            ConstraintError: If the constraint cannot be used as it is.
            DenoiserError: If the denoiser cannot be used as it is.
            SamplingError: If a step fails, or all members do. Whatever is raised has an
                attribute `partial`: the result of the members drawn before, or None.
        """
        ids = list(range(members)) if isinstance(members, int) else list(members)
        if not ids or min(ids) < 0 or not 0 <= seed < 2**32 or max(ids) >= 2**32:
            raise ValueError(
                "sample() needs at least one member, and indices and a seed from 0 to 2^32 - 1; "
                f"got members={members!r}, seed={seed}."
            )
        if chunk is not None and chunk < 1:
            raise ValueError(f"sample(chunk=...) must be at least 1, got {chunk}.")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"sample(dtype={dtype}) is too coarse to tell a feasible sample; use float32 or "
                "float64, and let the denoiser cast its input and output."
            )
        device = device or device_of(self.denoiser.denoiser)
        with batch.calling(ids[:1] * 2, device):
            self.trial(shape, dtype, device)

        parts: list[Result] = []
        reason = ""
        for first in range(0, len(ids), chunk or len(ids)):
            run = Run(seed, tuple(shape), dtype, device, callback)
            try:
                parts.append(self.draw(ids[first : first + (chunk or len(ids))], run))
            except BaseException as error:
                parts += [run.latest] if run.latest else []
                # set on whatever it is, a keyboard interrupt included
                error.partial = Result.join(parts) if parts else None  # ty: ignore
                raise
            reason = reason or run.failure
        result = Result.join(parts)
        if not result.finite.any():
            raise SamplingError(
                f"All {len(ids)} members became non-finite{reason}; test the denoiser there with "
                "`python -m feasibly check`, or make the method's steps shorter."
            )
        if self.constraint is not None and self.enforces:
            warn_if_infeasible(result, self)
        return result

    def trial(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> None:
        """Tries denoiser and constraint half way, on two states as noisy as a run's."""
        if not isinstance(getattr(self, "minimize", None), (Minimizer, type(None))):
            raise ValueError(
                f"{type(self).__name__}(minimize=...) takes a minimizer, such as LBFGS(), got "
                f"{vars(self)['minimize']!r}."
            )
        t = torch.tensor(0.5, dtype=dtype, device=device)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        z = MemberNoise(0, range(2), shape, dtype=dtype, device=device)()
        x_t = (alpha_t**2 + sigma_t**2).sqrt() * z
        x_0 = check_denoiser(self.denoiser.denoiser, x_t, t, self.differentiates)
        if self.constraint is not None:
            # one half-way state may be a bad one, and its estimate not finite: not for here
            x_0 = torch.where(x_0.isfinite(), x_0, z)
            self.prepare(x_0, check_constraint(self.constraint, x_0))

    def prepare(self, x_0: Tensor, r: Tensor) -> None:  # noqa: B027 (a hook, not a duty)
        """What a method does before a run, given two clean estimates and their residuals, with
        shape (2, m); nothing by default."""

    def draw(self, ids: list[int], run: Run) -> Result:
        """Draws the members `ids`, and again those that end infeasible, `retries` times; neither
        rehearses nor minds members that failed, as :meth:`sample` does."""
        self.denoiser.calls = run.calls
        x_0 = torch.full((len(ids), *run.shape), torch.nan, dtype=run.dtype, device=run.device)
        c = torch.full((len(ids),), torch.inf, dtype=run.dtype, device=run.device)
        feasible = torch.zeros_like(c, dtype=torch.bool)
        for attempt in range(self.retries + 1):
            rows = (~feasible).nonzero().squeeze(1)
            if not rows.numel():
                break
            drawn = self._attempt([ids[i] for i in rows.tolist()], attempt, run)
            c_drawn, good = assess(self.constraint, drawn)
            better = good | (c_drawn < c[rows])
            x_0[rows[better]] = drawn[better]
            c[rows[better]], feasible[rows[better]] = c_drawn[better], good[better]
            run.latest = run.result(x_0, c, feasible, ids, self)
        return run.result(x_0, c, feasible, ids, self)

    @torch.no_grad()
    def trajectory(self, noise: MemberNoise) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        r"""Goes from :math:`t = 1` to :math:`t = 0` once.

        Arguments:
            noise: The noise of the members.

        Yields:
            After every step the time reached, the states and the clean estimates behind them. A
            member that is not finite is reset to zero for the steps to come, so that it raises
            no errors inside the network.
        """
        times = torch.linspace(1, 0, self.steps + 1, dtype=noise.dtype, device=noise.device)
        alpha_t, sigma_t = self.denoiser.schedule(times[0])
        # p(x_1), for data of zero mean and unit variance
        x_t = torch.sqrt(alpha_t**2 + sigma_t**2) * noise()
        for k, (t, s) in enumerate(pairwise(times)):
            try:
                with batch.calling(noise.members, noise.device):
                    x_t, x_0 = self.step(x_t, t, s, noise)
            except Exception as error:
                raise SamplingError(
                    f"Step {k + 1} of {self.steps}, to sigma = {self.noise_level(s):.3g}, "
                    f"failed ({type(error).__name__}: {error}); test the denoiser there with "
                    "`python -m feasibly check`."
                ) from error
            yield s, x_t, x_0
            x_t = torch.where(per_sample(finite(x_t) & finite(x_0), x_t), x_t, 0.0)

    def _attempt(self, ids: list[int], attempt: int, run: Run) -> Tensor:
        """Draws members once; those that fail come back as NaN."""
        noise = MemberNoise(run.seed, ids, run.shape, attempt, run.dtype, run.device)
        failed = torch.zeros(len(ids), dtype=torch.bool, device=run.device)
        s = x_t = x_0 = torch.empty(0)
        for k, (s, x_t, x_0) in enumerate(self.trajectory(noise), start=1):
            failed |= ~finite(x_t) | ~finite(x_0)
            if failed.all():
                run.failure = f" by step {k} of {self.steps}, at sigma = {self.noise_level(s):.3g}"
                return torch.full_like(x_0, torch.nan)
            run.note(self, ids, x_0, failed, attempt, k, self.noise_level(s))

        x_t = torch.where(per_sample(failed, x_t), 0.0, x_t)
        with batch.calling(ids, run.device):
            x_0 = self.finish(self._read(x_t, x_0, s))
        return torch.where(per_sample(failed | ~finite(x_0), x_0), torch.nan, x_0)

    def _read(self, x_t: Tensor, x_0: Tensor, t: Tensor) -> Tensor:
        if self.readout == "state":
            return x_t
        return x_0 if self.readout == "clean" else self.denoiser(x_t, t)

    def finish(self, x_0: Tensor) -> Tensor:
        """What a method does to the samples after their read-out; nothing by default."""
        return x_0

    def cost(self, residuals: int) -> tuple[int, int]:
        r"""Returns the most forward and backward calls of a step, for :math:`m` residuals."""
        return 1, 0

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        r"""Returns the most forward and backward calls that :meth:`sample` may make a chunk.

        Members that are feasible already may ask for none, so a run may make fewer.

        Arguments:
            residuals: The number :math:`m` of residuals, on which the cost may depend.
        """
        forward, backward = self.cost(residuals)
        last = 1 if self.readout == "denoise" else 0
        attempts = self.retries + 1
        return attempts * (self.steps * forward + last), attempts * self.steps * backward

    @property
    def stop(self) -> float:
        r"""The :math:`\|r\|^2` at which a minimizer may stop: well inside the tolerance, so that
        a sample is feasible whatever the rounding of its last evaluation."""
        return 0.0 if self.constraint is None else 0.1 * self.constraint.tolerance

    def noise_level(self, t: Tensor) -> float:
        r"""Returns the noise level :math:`\sigma_t / \alpha_t`, relative to the signal."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return (sigma_t / alpha_t).item()

    def __repr__(self) -> str:
        hidden = ("denoiser", "constraint")
        options = {k: v for k, v in vars(self).items() if k not in hidden and k[0] != "_"}
        arguments = ", ".join(f"{k}={v!r}" for k, v in options.items())
        return f"{type(self).__name__}({arguments}) with {self.constraint!r}"
