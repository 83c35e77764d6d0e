r"""Extrapolation, Correction, Interpolation (ECI)."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, randn_like

from ..members import calling
from ..problem import Problem
from ..randomness import MemberNoise
from .base import Method, Randn, Start, Step
from .projection import closed_form


class Held(NamedTuple):
    """Noise that is used again: itself, with shape (B, *), and how often it was used."""

    noise: Tensor
    uses: int

    def __call__(self, like: Tensor) -> Tensor:
        return self.noise


@dataclass(frozen=True, kw_only=True)
class ECI(Method):
    r"""Samples by correcting the clean estimate in closed form, and noising it again with the
    *same* noise:

    .. math::
        x_0^* = \Pi_\mathcal{C}(d_\theta(x_t)), \qquad
        x_t \gets \alpha_t x_0^* + \sigma_t n \quad \text{(mixes - 1 times)}, \qquad
        x_s \gets \alpha_s x_0^* + \sigma_s n .

    Made for flows; stated here for any schedule. The noise :math:`n` is sampled once, or again
    after every `resample` interpolations. With `resample=1` a step is that of the paper's
    :math:`x_0^M`.

    References:
        | Gradient-Free Generation for Hard-Constrained Systems (Cheng et al., 2025)
        | https://arxiv.org/abs/2412.01786, Algorithm 1

    Arguments:
        mixes: The number of corrections a step.
        resample: After how many interpolations the noise is sampled again; None for never.
        steps, output: See :class:`Method`.

    Example:
        >>> total = feasibly.Linear([[1.0, 1.0]], [1.0], atol=1e-3)
        >>> method = feasibly.samplers.ECI(steps=16, mixes=2)
        >>> result = feasibly.sample(denoiser, total, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_0"
    renoises = True

    steps: int = 200
    eta: float = field(default=1.0, init=False, repr=False)
    mixes: int = 1
    resample: int | None = None
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "mixes")
        if self.resample is not None:
            self._at_least(1, "resample")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = x_t
        for i in range(self.mixes):
            x_0 = self.constraint.projection(self.denoiser(x_t, t))
            if memory is None or memory.uses == self.resample:
                memory = Held(randn(x_t), 0)
            x_t = self.renoise(x_0, t if i < self.mixes - 1 else s, memory)
            memory = memory._replace(uses=memory.uses + 1)
        return Step(x_t, x_0, memory)

    def begin(self, noise: MemberNoise) -> Start:
        times = self.times(noise.dtype, noise.device)
        held = Held(noise(), 1)
        return Start(self.denoiser.begin(held.noise, times[0]), times, held)

    def check(self, problem: Problem) -> None:
        super().check(problem)
        assert problem.constraint is not None
        with calling([0], problem.device):
            found = closed_form(problem.constraint, problem.noise(0, [0])())
        if found is None:
            raise ValueError(
                f"ECI corrects in closed form, but {problem.constraint!r} has no `projection`. "
                "Use PCFM, which solves for it numerically, or PPR; or implement `projection`."
            )

    def cost(self, residuals: int) -> tuple[int, int]:
        return self.mixes, 0
