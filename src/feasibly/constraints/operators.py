r"""Differential operators on uniform grids, which constraints share.

There are three schemes: `spectral` (periodic, exact for resolved waves), `periodic` (central
differences of second order) and `open` (the same, one-sided at both ends). Except with
`spectral`, derivatives of a higher order are composed of first and second ones. The spacing of a
periodic grid is its length over its number of points: the first point is not repeated at the end.
"""

__all__ = ["SCHEMES", "derivative", "divergence", "laplacian", "shells", "wavenumber"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SCHEMES = ("spectral", "periodic", "open")


def check_grid(spacing: Sequence[float], scheme: str, name: str) -> None:
    """Refuses an unknown scheme, and distances that are not positive and finite."""
    if scheme not in SCHEMES:
        raise ValueError(f"{name}(scheme=...) must be one of {SCHEMES}, got {scheme!r}.")
    if not all(0 < h < math.inf for h in spacing):
        raise ValueError(f"{name}(spacing=...) must be positive and finite, got {spacing}.")


def wavenumber(n: int, spacing: float, scheme: str, like: Tensor, odd: bool = True) -> Tensor:
    r"""Returns the :math:`k` for which a first derivative is a multiplication by :math:`i k`.

    They are in the order of `torch.fft.fft`, for a grid of `n` points, in the type of `like`.
    The scheme `periodic` has :math:`\sin(k h) / h`. If `odd`, the highest wave of an even grid is
    dropped, whose odd derivatives are zero on the grid.
    """
    k = 2 * math.pi * torch.fft.fftfreq(n, spacing, dtype=torch.float64)
    if scheme == "periodic":
        k = torch.sin(k * spacing) / spacing
    if odd and n % 2 == 0:
        k[n // 2] = 0.0
    return k.to(like)


def derivative(
    u: Tensor, dim: int, spacing: float, order: int = 1, scheme: str = "spectral"
) -> Tensor:
    r"""Returns the derivative of an order along `dim`, in the shape of `u`. The scheme `open`
    needs four points."""
    check_grid((spacing,), scheme, "derivative")
    if scheme == "spectral":
        n = u.shape[dim]
        k = wavenumber(n, spacing, scheme, u, odd=order % 2 == 1)
        # i^n k^n: real for even orders, where the highest wave stays
        factor = (-1) ** (order // 2) * k**order
        factor = 1j * factor if order % 2 else factor.to(1j * factor)
        u_hat = torch.fft.fft(u.movedim(dim, -1))
        return torch.fft.ifft(factor * u_hat).real.movedim(-1, dim)
    while order > 2:
        u, order = _difference(u, dim, spacing, 2, scheme), order - 2
    return _difference(u, dim, spacing, order, scheme)


def _difference(u: Tensor, dim: int, h: float, order: int, scheme: str) -> Tensor:
    if scheme == "periodic":
        before, after = u.roll(1, dim), u.roll(-1, dim)
        return (after - before) / (2 * h) if order == 1 else (after - 2 * u + before) / h**2
    u = u.movedim(dim, -1)
    before, middle, after = u[..., :-2], u[..., 1:-1], u[..., 2:]
    first, last = u[..., :4], u[..., -4:].flip(-1)
    if order == 1:
        edge, inner = u.new_tensor([-1.5, 2.0, -0.5, 0.0]) / h, (after - before) / (2 * h)
        ends = (first @ edge, -last @ edge)
    else:
        edge = u.new_tensor([2.0, -5.0, 4.0, -1.0]) / h**2
        inner, ends = (after - 2 * middle + before) / h**2, (first @ edge, last @ edge)
    return torch.cat([ends[0][..., None], inner, ends[1][..., None]], dim=-1).movedim(-1, dim)


def laplacian(u: Tensor, spacing: Sequence[float], scheme: str = "spectral") -> Tensor:
    r"""Returns :math:`\nabla^2 u` over the last axes of `u`, one axis for each spacing."""
    d = len(spacing)
    parts = [derivative(u, i - d, h, 2, scheme) for i, h in enumerate(spacing)]
    return torch.stack(parts).sum(dim=0)


def divergence(u: Tensor, spacing: Sequence[float], scheme: str = "spectral") -> Tensor:
    r"""Returns :math:`\nabla \cdot u`, with shape :math:`(*, n_1, ..., n_d)`.

    The field `u` has shape :math:`(*, d, n_1, ..., n_d)`. Its component :math:`i` points along
    grid axis :math:`i`.
    """
    d = len(spacing)
    parts = zip(u.unbind(dim=-d - 1), spacing, strict=True)
    return torch.stack(
        [derivative(u_i, i - d, h, 1, scheme) for i, (u_i, h) in enumerate(parts)]
    ).sum(dim=0)


def shells(shape: Sequence[int], device: torch.device) -> Tensor:
    r"""Returns the shell of each wave of a periodic grid, the rounded length of its integer
    wavevector, in the shape and order of `torch.fft.fftn`."""
    axes = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64) for n in shape]
    squares = [k.square() for k in torch.meshgrid(*axes, indexing="ij")]
    return torch.stack(squares).sum(dim=0).sqrt().round().long().to(device)
