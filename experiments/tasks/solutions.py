r"""Solutions of two equations from pairs of parameters, as finite data with an exact denoiser.

They are tasks of Physics-Constrained Flow Matching (PCFM): 80 values of one parameter times 80 of
another. If the first is known, the other 80 are equally likely. Solvers are our own, of the kind
that PCFM describes. They conserve mass to the last digit, so that the data satisfy what is asked.

References:
    | Physics-Constrained Flow Matching (Utkarsh et al., 2025), https://arxiv.org/abs/2506.04171
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Composite, Constraint, Equality, Mask
from feasibly.oracles import Empirical
from feasibly.schedules import Flow

from ..records import Record
from .heat import p_uniform

PAIRS = 80
ACCURACY = 1e-8
"""The tolerance of a constraint for one residual, in squared units."""


class Pairs(Empirical):
    """The denoiser of finite data, by products of matrices, for data of many dimensions."""

    def log_weights(self, x: Tensor, sigma: Tensor) -> Tensor:
        data = self.data.flatten(start_dim=1)
        x = x.flatten(start_dim=1).double()
        near = x @ data.T - data.square().sum(dim=1) / 2
        return (near / sigma.double().reshape(-1, 1).square()).log_softmax(dim=1)


@dataclass(frozen=True)
class Task:
    """Data of which something is given.

    Attributes:
        atoms: The data that satisfy it, with shape (K, nx, nt), which are equally likely.
        free: The parameters that are not given, each with shape (K).
        known: Which values are given, with shape (nx, nt); the constraint is more than that.
        law: The residuals of the conservation law, with shape (B, m).
    """

    denoiser: Pairs
    constraint: Constraint
    atoms: Tensor
    free: tuple[Tensor, ...]
    known: Tensor
    law: Callable[[Tensor], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.atoms.shape[1:])

    def sample(self, count: int, generator: Generator) -> Tensor:
        """Samples the exact distribution, in double precision."""
        return self.atoms[torch.randint(len(self.atoms), (count,), generator=generator)]

    def about(self, x: Tensor) -> Record:
        """Scores samples, with shape (N, nx, nt).

        Returns:
            `mmse` and `smse`, the squared errors of the mean and of the standard deviation,
            averaged over points, as PCFM has them. `given` and `law`, the root mean squares of the
            errors of given values and of the residuals of the law. `off`, the root mean square
            distance to the nearest datum, a point. `p`, the p-value of the test that free
            parameters are equally likely: the least over the parameters, times their number. The
            test is of ranks, spread evenly between whole numbers.
        """
        x = x.double()
        atoms = self.atoms.flatten(start_dim=1)
        distance = torch.cdist(x.flatten(start_dim=1), atoms)
        off, nearest = distance.min(dim=1)
        u = torch.rand(len(x), generator=Generator().manual_seed(len(x))).double()
        ps = [
            p_uniform((values.argsort().argsort()[nearest] + u) / len(values), 0, 1)
            for values in self.free
        ]
        return {
            "mmse": (x.mean(dim=0) - self.atoms.mean(dim=0)).square().mean().item(),
            "smse": (x.std(dim=0) - self.atoms.std(dim=0, correction=0)).square().mean().item(),
            "given": (x - self.atoms[0])[:, self.known].square().mean().sqrt().item(),
            "law": self.law(x).square().mean().sqrt().item(),
            "off": (off.square().mean() / atoms.shape[1]).sqrt().item(),
            "p": min(1.0, len(ps) * min(ps)),
        }


def burgers(p: Tensor, left: Tensor, n: int) -> Tensor:
    r"""Solves :math:`u_t + (u^2 / 2)_x = 0` on [0, 1] for times in [0, 1], by Godunov's scheme.

    The initial state is a front at p. Then the left value is given, and the right one is that of
    its neighbour.

    Arguments:
        p: The places of fronts, with shape (N).
        left: The left values, with shape (N).

    Returns:
        The solutions, with shape (N, n + 1, n + 1): space, then time.
    """
    x = torch.linspace(0, 1, n + 1, dtype=torch.float64)
    u = torch.sigmoid((p[:, None] - x) / 0.02)
    states = [u]
    for _ in range(n):
        inner = u[:, 1:-1] - through(u).diff(dim=1)  # equal steps in time and space
        u = torch.cat([left[:, None], inner, inner[:, -1:]], dim=1)
        states.append(u)
    return torch.stack(states, dim=-1)


def through(u: Tensor) -> Tensor:
    """Returns Godunov's flux between neighbours along the second axis."""
    return torch.maximum(u[:, :-1].clamp_min(0), -u[:, 1:].clamp_max(0)).square() / 2


def gained(u: Tensor) -> Tensor:
    """The gain of mass of inner points since the initial state, less what came in, at all later
    times, with shape (B, n). A point has the mass u / (n + 1)."""
    inner, flux = u[:, 1:-1].sum(dim=1), through(u)
    came = (flux[:, 0] - flux[:, -1])[:, :-1].cumsum(dim=1)
    return (inner[:, 1:] - inner[:, :1] - came) / u.shape[1]


RHO, NU, STEP = 0.01, 0.005, 0.01  # the rate of reaction, the diffusivity, and the step in time


def reaction_diffusion(initial: Tensor, flux: Tensor, steps: int) -> Tensor:
    r"""Solves :math:`u_t = \nu u_{xx} + \rho u (1 - u)` on [0, 1] with given fluxes at both ends.

    A step has the exact solution of the reaction, and diffusion by the midpoint rule.

    Arguments:
        initial: The initial states in cells, with shape (N, n).
        flux: The fluxes at the left and the right end, with shape (N, 2).

    Returns:
        The solutions, with shape (N, n, steps): space, then time.
    """
    n = initial.shape[1]

    def advance(u: Tensor, about: Tensor, dt: float) -> Tensor:
        inner = -NU * n * about.diff(dim=1)
        flow = torch.cat([flux[:, :1], inner, flux[:, 1:]], dim=1)
        return reacted(u, dt) - dt * n * flow.diff(dim=1)

    states = [initial]
    for _ in range(steps - 1):
        u = states[-1]
        states.append(advance(u, advance(u, u, STEP / 2), STEP))
    return torch.stack(states, dim=-1)


def reacted(u: Tensor, dt: float) -> Tensor:
    """Returns where the reaction alone takes a state in a time."""
    return u / (u + math.exp(-RHO * dt) * (1 - u))


def uneven(u: Tensor) -> Tensor:
    """What diffusion brings in a step, less what it brings in the first, for all later steps,
    with shape (B, steps - 2). Fluxes are constant, so it is zero."""
    brought = (u[:, :, 1:] - reacted(u[:, :, :-1], STEP)).mean(dim=1)
    return (brought[:, 1:] - brought[:, :1]) / STEP


def fronts(given: str, n: int = 64) -> Task:
    """Burgers fronts. Mass is conserved.

    Raises:
        ValueError: If `given` is neither.
    """
    if given not in ("initial state", "boundary"):
        raise ValueError(f"given is 'initial state' or 'boundary', got {given!r}.")
    random = partial(torch.rand, generator=Generator().manual_seed(42), dtype=torch.float64)
    p, left = 0.2 + 0.6 * random(PAIRS), random(PAIRS)
    data = burgers(p.repeat_interleave(PAIRS), left.repeat(PAIRS), n)
    table = data.reshape(PAIRS, PAIRS, n + 1, n + 1)
    known = torch.zeros(n + 1, n + 1, dtype=torch.bool)
    if given == "initial state":
        known[:, 0] = True
        atoms, free, residual = table[17], left, gained
    else:
        known[0, 1:] = True
        atoms, free = table[:, 17], p

        def residual(u: Tensor) -> Tensor:
            return torch.cat([gained(u), u[:, -1, 1:] - u[:, -2, 1:]], dim=1)

    return stated(data, atoms, (free,), known, residual)


def reactions(n: int = 48, steps: int = 100) -> Task:
    """Solutions of reaction and diffusion. The initial state is known, and the fluxes at both ends
    are constant."""
    random = partial(torch.rand, generator=Generator().manual_seed(42), dtype=torch.float64)
    initial = torch.stack([waves(random, n) for _ in range(PAIRS)])
    flux = 0.05 * random(PAIRS, 2) * torch.tensor([1.0, -1.0]).double()
    data = reaction_diffusion(
        initial.repeat_interleave(PAIRS, dim=0), flux.repeat(PAIRS, 1), steps
    )
    known = torch.zeros(n, steps, dtype=torch.bool)
    known[:, 0] = True
    atoms = data.reshape(PAIRS, PAIRS, n, steps)[17]
    return stated(data, atoms, (flux[:, 0], flux[:, 1]), known, uneven)


def waves(random: Callable[..., Tensor], n: int) -> Tensor:
    """Two waves of random lengths, heights and phases, stretched to [0, 1], with shape (n)."""
    x = (torch.arange(n).double() + 0.5) / n
    k = 1 + (3 * random(2, 1)).floor()
    u = (random(2, 1) * torch.sin(2 * math.pi * (k * x + random(2, 1)))).sum(dim=0)
    return (u - u.min()) / (u.max() - u.min())


def stated(
    data: Tensor,
    atoms: Tensor,
    free: tuple[Tensor, ...],
    known: Tensor,
    law: Callable[[Tensor], Tensor],
) -> Task:
    """Returns the task with given values and a conservation law."""
    residuals = law(atoms[:1]).shape[1]
    values = Mask(known, atoms[0], ACCURACY * int(known.sum()))
    constraint = Composite([values, Equality(law, ACCURACY * residuals)])
    return Task(Pairs(data, Flow()), constraint, atoms, free, known, law)


TASKS: Mapping[str, Callable[[], Task]] = {
    "Burgers, initial state": partial(fronts, "initial state"),
    "Burgers, boundary and mass": partial(fronts, "boundary"),
    "reaction-diffusion": reactions,
}
"""How each is made."""
