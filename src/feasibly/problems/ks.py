r"""Kuramoto-Sivashinsky: trajectories of a chaotic field, of which some frames are observed
exactly (paper, Section 5 and Appendix "Additional KS Constraints").

Samples are trajectories :math:`u`, with shape :math:`(B, T, X)`: frames of the field at
equidistant times, in units of its root mean square. The initial transient is over, so all frames
have the same distribution.
"""

__all__ = [
    "KS",
    "OBSERVATIONS",
    "RMS",
    "energy_spectrum",
    "layout",
    "residual",
    "spectrum_distance",
]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import priors
from ..constraints import Constraint, Observation
from ..denoisers import Denoiser
from ..ensemble import Coordinate, Layout
from ..metrics import max_norm, summary
from ..problem import Problem
from ..run import run
from ..samplers.ancestral import Ancestral
from .ks_solver import DT, LENGTH, POINTS, wavenumbers

RMS = 1.307
"""The root mean square of the field in physical units. Samples are in units of it."""

TOLERANCE = 4e-4
"""The paper's tolerance, for the sum of squares over all observed values."""

OBSERVATIONS: dict[str, tuple[tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "sine-3": ((0.0, 0.5, 1.0), torch.sin),
    "sine-1": ((0.0,), torch.sin),
    "linear-1": ((0.0,), lambda u: u),
}
"""The paper's three constraints: the observed frames, from the first (0) to the last (1), and the
observed function."""


class KS:
    r"""Trajectories of which some frames are observed: :math:`A(u) = A(u^\mathrm{ref})`.

    As in the paper, the reference :math:`u^\mathrm{ref}` is itself a sample of the prior.

    Arguments:
        observation: The observed frames and function: `sine-3` is the paper's main constraint
            :math:`\sum_{i \in \{0, 64, 127\}} \|\sin(u^i) - \sin(u^{i, \mathrm{ref}})\|^2`,
            `sine-1` and `linear-1` observe the first frame only.
        denoiser: The prior; None for the shipped prior, of 64 x 64 points.
        size: The number of frames and of grid points.
    """

    def __init__(
        self,
        observation: str = "sine-3",
        denoiser: Denoiser | None = None,
        size: int = 64,
    ) -> None:
        if observation not in OBSERVATIONS:
            raise ValueError(
                f"KS has no observation {observation!r}; choose one of {sorted(OBSERVATIONS)}."
            )
        if size not in SUPPORT:
            raise ValueError(
                f"KS has no bounds of samples for size={size}, only for {sorted(SUPPORT)}. Add "
                "those of your prior to feasibly.problems.ks.SUPPORT."
            )
        self.name = observation
        self.shape = (size, size)
        if denoiser is None and size != 64:
            raise ValueError(
                f"The shipped prior has 64 x 64 points. Give a denoiser for size={size}."
            )
        self.denoiser = priors.load("ks") if denoiser is None else denoiser

    def reference(self, k: int) -> Tensor:
        """Returns reference `k`, a sample of the prior by 256 steps of DDPM, of shape (T, X)."""
        problem = Problem(self.denoiser, None, self.shape)
        return run([Ancestral(steps=256).bind(problem)], [k], seed=2**20).samples[0]

    @property
    def observed(self) -> list[int]:
        """The observed frames."""
        where, _ = OBSERVATIONS[self.name]
        return [round(w * (self.shape[0] - 1)) for w in where]

    def constraint(self, reference: Tensor) -> Constraint:
        """Returns the observation of a reference, with shape (T, X), as a constraint."""
        frames, (_, function) = self.observed, OBSERVATIONS[self.name]

        def A(u: Tensor) -> Tensor:
            return function(u[..., frames, :])

        return Observation(A, A(reference), TOLERANCE)

    def in_support(self, u: Tensor) -> Tensor:
        """Returns which samples are on-manifold, that is, within :data:`SUPPORT`. Since a sine is
        periodic, a sample can be feasible while its values are far from the data."""
        return torch.stack([s <= bound for s, bound in self._bounded(u).values()]).all(dim=0)

    def _bounded(self, u: Tensor) -> dict[str, tuple[Tensor, float]]:
        """Returns the statistics of samples, each with its bound."""
        bounds = SUPPORT[self.shape[0]]
        return {name: (values, bounds[name]) for name, values in statistics(u).items()}

    def failures(self, u: Tensor, feasible: Tensor) -> dict[int, str]:
        """Returns the members of an ensemble, with shape (M, T, X), that are feasible but
        off-manifold: each number, with the statistics that exceed their bounds."""
        reasons: dict[int, str] = {}
        for name, (values, bound) in self._bounded(u).items():
            for i in (feasible & ~(values <= bound)).nonzero().flatten().tolist():
                reason = f"{name} {values[i]:.3g} > {bound:g}"
                reasons[i] = f"{reasons[i]}, {reason}" if i in reasons else reason
        return reasons

    def scores(self, u: Tensor, feasible: Tensor, reference: Tensor) -> dict:
        r"""Scores an ensemble against its reference.

        Arguments:
            u: The ensemble, with shape :math:`(M, T, X)`. Members that are not finite count in the
                shares only.
            feasible: Which members are feasible, with shape :math:`(M)`.
            reference: The reference, with shape :math:`(T, X)`.

        Returns:
            A dictionary of numbers, and of lists with a number for each frame. Take means over
            several references before roots.

            * `feasible`, `on_manifold`, `joint`: the shares of members that are feasible,
              on-manifold, and both;
            * `max_norm`, `residual`: the means over members, the latter of the equation's
              residual; `residual_feasible`: the same over feasible members;
            * `spectrum`: the log-spectral distance to the reference;
            * by frame, the scores of :func:`feasibly.metrics.summary`.
        """
        good = u.isfinite().flatten(start_dim=1).all(dim=1)
        inside = good & self.in_support(torch.where(good[:, None, None], u, 0.0))
        shares = {
            "feasible": feasible.double().mean().item(),
            "on_manifold": inside.double().mean().item(),
            "joint": (feasible & inside).double().mean().item(),
        }
        u, feasible = u[good].double(), feasible[good]
        if len(u) < 2:
            return shares
        x, y = u[None], reference[None].double()
        r = residual(u)
        whole = {
            "max_norm": max_norm(x, y).mean().item(),
            "residual": r.mean().item(),
            "residual_feasible": r[feasible].mean().item() if feasible.any() else None,
            "spectrum": log_spectral_distance(u, y),
        }
        return shares | whole | summary(x, y)


def statistics(u: Tensor) -> dict[str, Tensor]:
    """Returns statistics that distinguish trajectories from other fields, each with shape (B): the
    largest value, the largest change between frames, and the residual of the equation."""
    return {
        "range": u.abs().flatten(start_dim=1).amax(dim=1),
        "change": u.diff(dim=1).abs().flatten(start_dim=1).amax(dim=1),
        "residual": residual(u),
    }


SUPPORT = {64: {"range": 2.85, "change": 1.6, "residual": 0.22}}
"""The bounds of :meth:`KS.in_support` by size. They are 1.1 times the largest values among 96
samples of the shipped prior and 96 trajectories of the solver; the prior's card lists those."""


def layout(shape: Sequence[int]) -> Layout | None:
    """Returns the axes of trajectories, time and position; None unless a sample has two."""
    if len(shape) != 2:
        return None
    frames, points = shape
    interval = DT * POINTS / frames
    time = Coordinate("time", [interval * k for k in range(frames)], long_name="time")
    x = Coordinate("x", [LENGTH / points * k for k in range(points)], long_name="position")
    return Layout((time, x), "u", long_name="field, in units of its root mean square")


def residual(u: Tensor) -> Tensor:
    r"""Returns the root mean square of the equation's residual, in physical units.

    Between two frames, a time :math:`\Delta` apart, it is that of the trapezoidal rule,

    .. math:: \frac{u^{n+1} - u^n}{\Delta} + \frac{1}{2} \big(N(u^{n+1}) + N(u^n)\big), \qquad
        N(u) = u_{xx} + u_{xxxx} + u u_x ,

    with spectral derivatives. At 64 x 64 its median is 0.125 for true trajectories, since their
    frames are far apart, and that of :math:`u_t` is 0.33. Trajectories are in units of
    :data:`RMS`, with shape :math:`(B, T, X)`, and the residual has the shape :math:`(B)`.
    """
    u = RMS * u.double()
    frames, points = u.shape[1:]
    k = wavenumbers(points, LENGTH).to(u.device)
    u_hat, square = torch.fft.rfft(u), torch.fft.rfft(u * u)
    N = torch.fft.irfft((k**4 - k**2) * u_hat + 0.5j * k * square, n=points)
    interval = DT * POINTS / frames
    r = u.diff(dim=1) / interval + (N[:, 1:] + N[:, :-1]) / 2
    return r.square().mean(dim=(1, 2)).sqrt()


def energy_spectrum(u: Tensor) -> Tensor:
    r"""Returns the mean energy of each Fourier mode in space, with shape :math:`(X / 2 + 1)`, of
    trajectories with shape :math:`(B, T, X)`."""
    points = u.shape[-1]
    return (torch.fft.rfft(u.double()) / points).abs().square().mean(dim=(0, 1))


def spectrum_distance(u: Tensor, v: Tensor, modes: int = 20) -> float:
    """Returns the largest relative difference between the spectra of two sets of trajectories, of
    modes from 1."""
    return (_energy_ratio(u, v, modes) - 1).abs().max().item()


def log_spectral_distance(u: Tensor, v: Tensor, modes: int = 20) -> float:
    """Returns the log-spectral distance of two sets of trajectories: the root mean square of the
    logarithm of the ratio of energies, over modes from 1."""
    return _energy_ratio(u, v, modes).log().square().mean().sqrt().item()


def _energy_ratio(u: Tensor, v: Tensor, modes: int) -> Tensor:
    """Returns the ratio of energies in each of the first modes except the mean."""
    a, b = (energy_spectrum(x)[1 : modes + 1] for x in (u, v))
    return a / b
