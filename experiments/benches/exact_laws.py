"""Conservation laws in time: each state follows from the one before, and some values are known.

They are not among the problems of the study `defaults`; see the study `equations`.
"""

import math
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Equality
from feasibly.oracles import Gaussian

from .exact_base import Posterior, Problem, schedule

TIMES, POINTS = 12, 16
DT, VISCOSITY = 0.02, 0.02
KNOWN = {3: 1.2, 10: 0.1, 14: 0.8}  # values of the first state, by point
MEAN, STD = 0.5, 0.8
ACCURACY = 1e-3  # of a feasible component
MOVES, STEP = 300, 0.8  # of Langevin's algorithm, in units of Laplace's approximation


def burgers(speed: float, timing: str) -> Posterior:
    r"""Viscous Burgers' equation :math:`u_t + c \, (u^2 / 2)_x = \nu u_{xx}` on a ring, under a
    normal prior of the whole trajectory, by explicit steps.

    The first state determines the others, and the residual's determinant with respect to them is
    constant. So the exact density of the first state is that of the prior at its trajectory. It is
    sampled by the Metropolis-adjusted Langevin algorithm, from Laplace's approximation.

    Arguments:
        speed: The factor :math:`c`; the equation is linear for zero.
        timing: The noise schedule.
    """
    x = torch.arange(POINTS).double() / POINTS
    t = DT * torch.arange(TIMES).double()
    wave = (math.pi * (x[:, None] - x)).sin()
    of_x = (-2 * (wave / STD).square()).exp() + 0.1 * torch.eye(POINTS).double()
    of_t = (-(t[:, None] - t).abs() / 0.3).exp()
    cov = STD**2 * torch.kron(of_t, of_x)
    precision = torch.linalg.inv(cov)
    at = list(KNOWN)
    known = torch.tensor(list(KNOWN.values())).double()
    free = [i for i in range(POINTS) if i not in KNOWN]

    def after(u: Tensor) -> Tensor:
        right, left = u.roll(-1, -1), u.roll(1, -1)
        slope = speed * (right.square() - left.square()) / 4 * POINTS
        return u + DT * (VISCOSITY * (right - 2 * u + left) * POINTS**2 - slope)

    def residual(x: Tensor) -> Tensor:
        u = x.reshape(-1, TIMES, POINTS)
        law = (u[:, 1:] - after(u[:, :-1])) / DT
        return torch.cat([law.flatten(start_dim=1), u[:, 0, at] - known.to(u)], dim=1)

    def trajectory(v: Tensor) -> Tensor:
        """The trajectories of free values of the first state, with shape (N, TIMES * POINTS)."""
        first = v.new_zeros(len(v), POINTS)
        first = first.index_copy(1, torch.tensor(at), known.expand(len(v), -1))
        states = [first.index_copy(1, torch.tensor(free), v)]
        for _ in range(TIMES - 1):
            states.append(after(states[-1]))
        return torch.cat(states, dim=1)

    def energy(v: Tensor) -> Tensor:
        """Minus the log-density of free values, with shape (N)."""
        gap = trajectory(v) - MEAN
        return ((gap @ precision) * gap).sum(dim=1) / 2

    mode = torch.full((len(free),), MEAN).double().requires_grad_()
    search = torch.optim.LBFGS([mode], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = energy(mode[None])[0]
        value.backward()
        return value

    search.step(closure)
    centre = mode.detach()
    curvature = torch.autograd.functional.hessian(lambda v: energy(v[None])[0], centre)
    root = torch.linalg.cholesky(torch.linalg.inv(curvature))

    @torch.enable_grad()
    def slope(z: Tensor) -> tuple[Tensor, Tensor]:
        """The energy of free values, in units of Laplace's approximation, and its gradient."""
        z = z.detach().requires_grad_()
        value = energy(centre + z @ root.T)
        return value.detach(), torch.autograd.grad(value.sum(), z)[0]

    def sample(n: int, generator: Generator) -> Tensor:
        normal = partial(torch.randn, generator=generator, dtype=torch.float64)
        z = normal(n, len(free))
        value, gradient = slope(z)
        for _ in range(MOVES):
            move = normal(n, len(free))
            to = z - STEP**2 / 2 * gradient + STEP * move
            value_to, gradient_to = slope(to)
            back = (z - to + STEP**2 / 2 * gradient_to) / STEP
            ratio = value - value_to + (move.square() - back.square()).sum(dim=1) / 2
            chance = torch.rand(n, generator=generator, dtype=torch.float64)
            moved = chance.log() < ratio
            z, gradient = (
                torch.where(moved[:, None], *p) for p in ((to, z), (gradient_to, gradient))
            )
            value = torch.where(moved, value_to, value)
        return trajectory(centre + z @ root.T)

    constraint = Equality(residual, atol=ACCURACY)
    mu = torch.full((TIMES * POINTS,), MEAN).double()
    return Posterior(Gaussian(mu, cov, schedule(timing)), constraint, (TIMES * POINTS,), sample)


def problem(speed: float, timing: str) -> Problem:
    """Returns one of the problems: the factor of the nonlinear term, and the schedule."""
    name = f"Burgers, speed {speed:g}, {timing}"
    residuals = (TIMES - 1) * POINTS + len(KNOWN)
    return Problem(name, "Burgers", "field", partial(burgers, speed, timing), residuals)
