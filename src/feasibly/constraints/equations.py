r"""Partial differential equations in time: :math:`u_t = F(u)` between the frames of a sample."""

__all__ = ["Evolution", "burgers", "heat", "kuramoto_sivashinsky", "vorticity"]

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arguments import typed
from .base import Array, Constraint, finite
from .operators import check_grid, derivative, laplacian, wavenumber


class Evolution(Constraint):
    r"""The constraint that frames follow :math:`u_t = F(u)`, with the residual

    .. math:: \frac{u^{n+1} - u^n}{\Delta t} - \theta F(u^{n+1}) - (1 - \theta) F(u^n) .

    Samples are trajectories, with shape :math:`(B, T, *)`. If a solver made the data, use its
    scheme and its time step. No such formula is exact between the frames of a coarser record.

    Arguments:
        F: The right-hand side, which maps :math:`(B, T, *)` to the same shape, frame by frame.
            :func:`heat`, :func:`burgers`, :func:`kuramoto_sivashinsky` and :func:`vorticity`
            return one.
        dt: The time :math:`\Delta t` between frames.
        tolerance: The largest mean square of the residual, over all points of all steps, in
            squared units of :math:`u` over time.
        theta: The weight :math:`\theta`: 0 for the explicit and 1 for the implicit Euler method,
            1/2 for the method of Crank and Nicolson, which is of second order.
    """

    @typed
    def __init__(
        self, F: Callable[[Tensor], Tensor], dt: float, tolerance: float, theta: float = 0.5
    ) -> None:
        super().__init__(tolerance)
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
        r = ((x[:, 1:] - x[:, :-1]) / self.dt - drift).flatten(start_dim=1)
        return r / math.sqrt(r.shape[1])


def heat(
    diffusivity: float, spacing: Sequence[float], scheme: str = "spectral"
) -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = \nu \nabla^2 u`, over as many last axes as there are spacings."""
    check_grid(spacing, scheme, "heat")
    return lambda u: diffusivity * laplacian(u, spacing, scheme)


def burgers(
    viscosity: float, spacing: float, scheme: str = "spectral"
) -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = \nu u_{xx} - (u^2 / 2)_x`, along the last axis."""
    check_grid((spacing,), scheme, "burgers")

    def F(u: Tensor) -> Tensor:
        flux = derivative(u.square() / 2, -1, spacing, 1, scheme)
        return viscosity * derivative(u, -1, spacing, 2, scheme) - flux

    return F


def kuramoto_sivashinsky(spacing: float, scheme: str = "spectral") -> Callable[[Tensor], Tensor]:
    r"""Returns :math:`F(u) = - u_{xx} - u_{xxxx} - (u^2 / 2)_x`, along the last axis."""
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

    Arguments:
        viscosity: The viscosity :math:`\nu`.
        spacing: The two distances between grid points.
        forcing: The curl :math:`f` of the force, which broadcasts to a frame.
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
