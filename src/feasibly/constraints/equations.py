r"""Differential equations: :math:`u_t = F(u)` between frames, and :math:`\nabla \cdot u = 0`."""

__all__ = [
    "DivergenceFree",
    "Evolution",
    "burgers",
    "heat",
    "kuramoto_sivashinsky",
    "vorticity",
]

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arguments import typed
from .base import Array, Constraint, Limit, finite
from .operators import check_grid, derivative, divergence, laplacian, wavenumber


class _Everywhere(Constraint):
    """An equation at all points of a grid. Its violation is a mean square or, given `atol`, the
    largest square of a point."""

    def _misses(self, r: Tensor) -> Tensor:
        """Returns the residual of what is missed at each point, with shape (B, *)."""
        r = r.flatten(start_dim=1)
        return r / math.sqrt(r.shape[1]) if self.atol is None else r


class Evolution(_Everywhere):
    r"""The constraint that frames follow :math:`u_t = F(u)`, with the residual

    .. math:: \frac{u^{n+1} - u^n}{\Delta t} - \theta F(u^{n+1}) - (1 - \theta) F(u^n) ,

    over :math:`\sqrt{m}` for :math:`m` values unless `atol` is given.

    Samples are trajectories, with shape :math:`(B, T, *)`. If a solver made the data, use its
    scheme and its time step. No such formula is exact between the frames of a coarser record.

    Arguments:
        F: The right-hand side, which maps :math:`(B, T, *)` to the same shape, frame by frame.
            :func:`heat`, :func:`burgers`, :func:`kuramoto_sivashinsky` and :func:`vorticity`
            return one.
        dt: The time :math:`\Delta t` between frames.
        tolerance: The largest mean square of the residual, over all points of all steps, in
            squared units of :math:`u` over time.
        atol: Instead, the largest absolute value at one point of one step.
        theta: The weight :math:`\theta`: 0 for the explicit and 1 for the implicit Euler method,
            1/2 for the method of Crank and Nicolson, which is of second order.

    Example:
        >>> decay = feasibly.constraints.Evolution(lambda u: -u, dt=1.0, atol=1e-6, theta=0.0)
        >>> frames = torch.tensor([[1.0], [0.0], [0.0]])  # one explicit step of length 1
        >>> decay.residual(torch.stack((frames, torch.ones(3, 1)))).tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """

    @typed
    def __init__(
        self,
        F: Callable[[Tensor], Tensor],
        dt: float,
        tolerance: Limit = None,
        theta: float = 0.5,
        *,
        atol: Limit = None,
    ) -> None:
        super().__init__(tolerance, atol)
        if not dt > 0 or not 0 <= theta <= 1:
            raise ValueError(
                f"Evolution needs a positive dt and theta in [0, 1], got {dt} and {theta}."
            )
        self.F, self.dt, self.theta = F, dt, theta

    def residual(self, x: Tensor) -> Tensor:
        if x.shape[1] < 2:
            raise ValueError(
                "Evolution needs samples with at least two frames, on their first axis, got "
                f"shape {tuple(x.shape[1:])}."
            )
        F = self.F(x)
        drift = self.theta * F[:, 1:] + (1 - self.theta) * F[:, :-1]
        return self._misses((x[:, 1:] - x[:, :-1]) / self.dt - drift)


class DivergenceFree(_Everywhere):
    r"""The constraint :math:`\nabla \cdot u = 0` on a uniform grid in two or three dimensions.

    Samples have shape :math:`(B, *, d, n_1, ..., n_d)`, where component :math:`i` points along
    grid axis :math:`i`. The constraint holds for all fields of a sample.

    Arguments:
        spacing: The :math:`d` distances between grid points.
        tolerance: The largest mean over the grid of :math:`(\nabla \cdot u)^2` of a feasible
            sample, in squared units of :math:`u` over those of the spacing.
        atol: Instead, the largest :math:`|\nabla \cdot u|` at one point.
        scheme: `spectral`, `periodic` (central differences) or `open` (central differences,
            one-sided at the ends).

    Example:
        >>> wave = (torch.arange(8) * 2 * torch.pi / 8).sin().expand(8, 8)
        >>> shear = torch.stack((wave, torch.zeros(8, 8)))  # u depends on y alone
        >>> field = feasibly.constraints.DivergenceFree((0.1, 0.1), tolerance=1e-6)
        >>> field.is_feasible(torch.stack((shear, shear.mT))).tolist()
        [True, False]
    """

    linear = True

    @typed
    def __init__(
        self,
        spacing: Sequence[float],
        tolerance: Limit = None,
        scheme: str = "spectral",
        *,
        atol: Limit = None,
    ) -> None:
        super().__init__(tolerance, atol)
        check_grid(spacing, scheme, "DivergenceFree")
        if len(spacing) not in (2, 3):
            raise ValueError(
                "DivergenceFree(spacing=...) must be two or three distances, got "
                f"{tuple(spacing)}."
            )
        self.spacing, self.scheme = tuple(spacing), scheme

    def residual(self, x: Tensor) -> Tensor:
        d = len(self.spacing)
        if x.ndim < d + 2 or x.shape[-d - 1] != d:
            raise ValueError(
                f"DivergenceFree needs samples that end with an axis of {d} components and {d} "
                f"grid axes, got shape {tuple(x.shape[1:])}."
            )
        return self._misses(divergence(x, self.spacing, self.scheme))

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns the Leray projection :math:`\hat u - k (k \cdot \hat u) / |k|^2`.

        The scheme `open` has no waves: its equations are solved as those of any linear constraint.
        """
        if self.scheme == "open":
            return super().projection(x)
        d = len(self.spacing)
        axes = tuple(range(-d, 0))
        sides = zip(x.shape[-d:], self.spacing, strict=True)
        grid = [wavenumber(n, h, self.scheme, x) for n, h in sides]
        k = torch.stack(torch.meshgrid(*grid, indexing="ij"))
        squares = k.square().sum(dim=0)
        # The mean, and waves whose derivatives vanish, have no divergence. Rounding of sin(k h)
        # must not give them one.
        still = squares <= 1e-10 * squares.max()
        inverse = torch.where(still, 0.0, 1 / squares)
        u_hat = torch.fft.fftn(x, dim=axes)
        along = (k * u_hat).sum(dim=-d - 1, keepdim=True) * inverse
        return torch.fft.ifftn(u_hat - k * along, dim=axes).real


def heat(
    diffusivity: float, spacing: Sequence[float], scheme: str = "spectral"
) -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = \nu \nabla^2 u`, over as many last axes as there are spacings.

    Example:
        >>> F = feasibly.constraints.heat(diffusivity=2.0, spacing=(1.0,), scheme="periodic")
        >>> F(torch.tensor([0.0, 0.0, 1.0, 0.0])).tolist()
        [0.0, 2.0, -4.0, 2.0]
    """
    check_grid(spacing, scheme, "heat")
    return lambda u: diffusivity * laplacian(u, spacing, scheme)


def burgers(
    viscosity: float, spacing: float, scheme: str = "spectral"
) -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = \nu u_{xx} - (u^2 / 2)_x`, along the last axis.

    Example:
        >>> F = feasibly.constraints.burgers(viscosity=0.1, spacing=0.5, scheme="periodic")
        >>> F(torch.ones(1, 8)).abs().max().item()  # a constant state is steady
        0.0
    """
    check_grid((spacing,), scheme, "burgers")

    def F(u: Tensor) -> Tensor:
        flux = derivative(u.square() / 2, -1, spacing, 1, scheme)
        return viscosity * derivative(u, -1, spacing, 2, scheme) - flux

    return F


def kuramoto_sivashinsky(spacing: float, scheme: str = "spectral") -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = - u_{xx} - u_{xxxx} - (u^2 / 2)_x`, along the last axis.

    Example:
        >>> F = feasibly.constraints.kuramoto_sivashinsky(spacing=0.5, scheme="periodic")
        >>> F(torch.ones(1, 8)).abs().max().item()
        0.0
    """
    check_grid((spacing,), scheme, "kuramoto_sivashinsky")

    def F(u: Tensor) -> Tensor:
        flux = derivative(u.square() / 2, -1, spacing, 1, scheme)
        return -sum(derivative(u, -1, spacing, n, scheme) for n in (2, 4)) - flux

    return F


def vorticity(
    viscosity: float, spacing: Sequence[float], forcing: Array = 0.0
) -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F` of the Navier-Stokes equations in two periodic dimensions.

    The field is the vorticity :math:`\omega = \partial_x v - \partial_y u` over the last two
    axes, :math:`x` and :math:`y`:

    .. math:: F(\omega) = \nu \nabla^2 \omega - u \, \omega_x - v \, \omega_y + f, \qquad
        (u, v) = (\psi_y, -\psi_x), \quad \nabla^2 \psi = - \omega .

    The two spacings are those of the axes. The forcing :math:`f`, the curl of the force,
    broadcasts to a frame.

    Example:
        >>> F = feasibly.constraints.vorticity(viscosity=0.1, spacing=(1.0, 1.0), forcing=0.5)
        >>> F(torch.zeros(1, 8, 8)).unique().tolist()  # from rest
        [0.5]
    """
    check_grid(spacing, "spectral", "vorticity")
    h_x, h_y = spacing
    force = finite(forcing, "vorticity(forcing=...)")

    def F(w: Tensor) -> Tensor:
        k_x = wavenumber(w.shape[-2], h_x, "spectral", w, odd=False)[:, None]
        k_y = wavenumber(w.shape[-1], h_y, "spectral", w, odd=False)
        squares = k_x**2 + k_y**2
        inverse = torch.where(squares == 0, 0.0, 1 / squares)  # a mean has no stream function
        psi = torch.fft.ifft2(torch.fft.fft2(w) * inverse).real
        u, v = derivative(psi, -1, h_y), -derivative(psi, -2, h_x)
        advection = u * derivative(w, -2, h_x) + v * derivative(w, -1, h_y)
        return viscosity * laplacian(w, spacing) - advection + force.to(w)

    return F
