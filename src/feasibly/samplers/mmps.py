r"""Moment Matching Posterior Sampling (MMPS)."""

from dataclasses import dataclass

from torch import Tensor

from ..linalg import Solution, cg, gmres
from . import moments
from .moments import Product
from .predictor_corrector import PredictorCorrector

SOLVERS = {"gmres": gmres, "cg": cg}


@dataclass(frozen=True, kw_only=True)
class MMPS(PredictorCorrector):
    r"""Samples by the predictor-corrector scheme, with the constraint in the clean estimate:

    .. math::
        \mathbb{E}[x_0 \mid x_t, r = 0] \approx d_\theta(x_t) - V J^\top
            (\sigma_y^2 I + J V J^\top)^{-1} r(d_\theta(x_t)), \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t} ,

    with :math:`J = \partial r / \partial x_0`. :math:`V` is the covariance of
    :math:`p(x_0 \mid x_t)` by Tweedie's formula: for a Gaussian prior and a linear residual the
    estimate is exact. It needs products with :math:`V^\top` only, one vector-Jacobian product
    (vjp) each; the network's Jacobian is taken as symmetric, which it is not quite.

    Changed to take a constraint: the residual stands for the observation's error, all of it in
    one system (not one for each last axis), and the tolerance for its noise. The solver stops at
    `rtol`. The authors' last vjp, for :math:`V J^\top v`, is left out, since :math:`v` is a
    combination of vectors whose vjp the solver has evaluated.

    Where the network's Jacobian is far from a covariance, a sample may jump far and end
    infeasible. With a `sigma_y` an exact residual has that much noise on purpose: samples are not
    expected to be feasible, and there is no warning.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, Section 4

    Arguments:
        corrections, delta: See :class:`PredictorCorrector`.
        sigma_y: The noise :math:`\sigma_y` of an exact residual; None for
            :math:`\sqrt{\mathrm{tolerance} / m}`.
        solver: "gmres", or "cg", which stops at directions of negative curvature.
        iterations: The most iterations :math:`k` of the solver.
        rtol: The relative residual at which it stops.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> total = feasibly.Linear([[1.0, 1.0]], [1.0], atol=0.5)
        >>> method = feasibly.samplers.MMPS(steps=16, sigma_y=0.05)
        >>> result = feasibly.sample(denoiser, total, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    enforces = True
    takes_noise = True
    space = "x_t"
    differentiates = True

    steps: int = 128
    sigma_y: float | None = None
    solver: str = "gmres"
    iterations: int = 3
    rtol: float = 1e-3
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "iterations")
        if self.sigma_y is not None and not self.sigma_y >= 0:
            raise ValueError(f"MMPS(sigma_y=...) must not be negative, got {self.sigma_y}.")
        if self.solver not in SOLVERS:
            raise ValueError(f"MMPS(solver=...) must be one of {[*SOLVERS]}, got {self.solver!r}.")
        if not self.rtol >= 0:
            raise ValueError(f"MMPS(rtol=...) must not be negative, got {self.rtol}.")

    def estimate(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns the estimate of :math:`\mathbb{E}[x_0 \mid x_t, r = 0]`."""
        x_0, V = moments.tweedie(self.denoiser, x_t, t)
        noise = None if self.sigma_y is None else self.sigma_y**2
        solver = SOLVERS[self.solver]

        def solve(S: Product, b: Tensor, iterations: int, rtol: float, least: Tensor) -> Solution:
            return solver(S, b, iterations, rtol)

        return moments.toward(self.constraint, x_0, V, noise, solve, self.iterations, self.rtol).x

    @property
    def noise(self) -> float:
        return self.sigma_y or 0.0

    def cost(self, residuals: int) -> tuple[int, int]:
        estimates = 1 + self.corrections
        return estimates, estimates * moments.cost(self.constraint, self.iterations, residuals)
