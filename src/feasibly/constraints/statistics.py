"""Constraints on statistics of the values within a sample: histograms, quantiles, spectra."""

__all__ = ["Histogram", "Quantiles", "Spectrum", "energy_spectrum"]

import torch
from torch import Tensor

from ..arguments import typed
from .base import Array, Constraint, Limit, check_axes, constant, finite
from .operators import shells


class Histogram(Constraint):
    r"""The constraint that a sample has given values, in any order.

    The sorted values are equal, :math:`x_{(i)} = y_{(i)}`, so that both have one histogram.

    Arguments:
        y: The values, in units of a sample. There must be as many as a sample has.
        tolerance: The largest sum of squared differences of the sorted values, in those units
            squared. It is the number of values times the squared Wasserstein distance.
        atol: Instead, the largest difference of two sorted values.

    Example:
        >>> values = feasibly.constraints.Histogram([0.0, 1.0, 1.0], atol=1e-3)
        >>> values.is_feasible(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])).tolist()
        [True, False]
    """

    @typed
    def __init__(self, y: Array, tolerance: Limit = None, *, atol: Limit = None) -> None:
        super().__init__(tolerance, atol)
        self.y = finite(y, "Histogram(y=...)").flatten().sort().values

    def residual(self, x: Tensor) -> Tensor:
        x = x.flatten(start_dim=1)
        if x.shape[1] != self.y.numel():
            raise ValueError(
                f"Histogram: a sample has {x.shape[1]} values, but y has {self.y.numel()}. Give "
                "the same number, or use Quantiles."
            )
        return x.sort(dim=1).values - self.y.to(x)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x` with each value replaced by the value of `y` with its rank."""
        rank = x.flatten(start_dim=1).argsort(dim=1).argsort(dim=1)
        return self.y.to(x)[rank].reshape(x.shape)


class Quantiles(Constraint):
    r"""The constraint that quantiles of the values within a sample are known.

    They are interpolated linearly between the sorted values.

    Arguments:
        levels: The levels in [0, 1], with shape :math:`(K)`; 0.5 is the median.
        y: The quantiles, in units of a sample, with shape :math:`(K)`.
        tolerance: The largest sum of squared errors, in those units squared.
        atol: Instead, the largest error of one quantile.

    Example:
        >>> median = feasibly.constraints.Quantiles([0.5], [2.0], atol=0.01)
        >>> median.residual(torch.tensor([[1.0, 2.0, 9.0], [1.0, 1.0, 1.0]])).tolist()
        [[0.0], [-1.0]]
    """

    @typed
    def __init__(
        self, levels: Array, y: Array, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        levels, y = finite(levels, "Quantiles(levels=...)"), finite(y, "Quantiles(y=...)")
        if levels.ndim != 1 or levels.shape != y.shape or levels.min() < 0 or levels.max() > 1:
            raise ValueError(
                "Quantiles needs levels in [0, 1] and as many values, both with shape (K), got "
                f"{levels.tolist()} and shape {tuple(y.shape)}."
            )
        order = levels.argsort()
        self.levels, self.y = levels[order], y[order]
        if (self.y.diff() < 0).any():
            raise ValueError("Quantiles(y=...) must not decrease with the level.")

    def residual(self, x: Tensor) -> Tensor:
        ordered = x.flatten(start_dim=1).sort(dim=1).values
        place = self.levels.to(x) * (ordered.shape[1] - 1)
        low = place.floor().long()
        high = (low + 1).clamp_max(ordered.shape[1] - 1)
        return torch.lerp(ordered[:, low], ordered[:, high], place - low) - self.y.to(x)


def energy_spectrum(u: Tensor, dims: int) -> Tensor:
    r"""Returns the energy of each shell of wavenumbers,

    .. math:: E_k = \frac{1}{2 N^2} \sum_{|\kappa| \in (k - 1/2, k + 1/2]} |\hat u_\kappa|^2 .

    The sum over all shells is half the mean square.

    Arguments:
        u: A field on a periodic grid of :math:`N` points, with shape :math:`(*, n_1, ..., n_d)`.
        dims: The number :math:`d` of grid axes. Wavenumbers count waves across an axis.

    Returns:
        The energies of the shells, with shape :math:`(*, K)`. The first is shell 0, the mean.

    Example:
        >>> wave = (torch.arange(8) * 2 * torch.pi / 8).sin()  # one wave: shell 1
        >>> feasibly.constraints.energy_spectrum(wave, 1).round(decimals=4).abs().tolist()
        [0.0, 0.25, 0.0, 0.0, 0.0]
    """
    axes = tuple(range(-dims, 0))
    u_hat = torch.fft.fftn(u, dim=axes, norm="forward")
    power = (u_hat.real.square() + u_hat.imag.square()).flatten(start_dim=-dims) / 2
    shell = shells(u.shape[-dims:], u.device).flatten()
    count = int(shell.max()) + 1
    return power.new_zeros((*power.shape[:-1], count)).index_add(-1, shell, power)


class Spectrum(Constraint):
    r"""The constraint that the energies of some shells of wavenumbers are known:
    :math:`\sqrt{E_k(x) / E_k} = 1`.

    :func:`energy_spectrum` defines the energies. The mean, shell 0, is free, and so are the
    shells after the last one given.

    Arguments:
        energy: The energies :math:`E_1, ..., E_K`, positive, in squared units of a sample, with
            shape :math:`(K)`. They are the same for all fields of a sample.
        dims: The number of grid axes, which are the last axes of a sample.
        tolerance: The largest sum of squared relative errors of the amplitudes of the shells. One
            shell that is off by 1 % has 1e-4.
        atol: Instead, the largest relative error of one amplitude.

    Example:
        >>> wave = (torch.arange(8) * 2 * torch.pi / 8).sin()
        >>> shells = feasibly.constraints.energy_spectrum(wave, 1)[1:2]
        >>> spectrum = feasibly.constraints.Spectrum(shells, dims=1, atol=0.01)
        >>> spectrum.is_feasible(torch.stack((wave, 2 * wave))).tolist()
        [True, False]
    """

    @typed
    def __init__(
        self, energy: Array, dims: int, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        energy = constant(energy, "Spectrum(energy=...)")
        if energy.ndim != 1 or not (energy > 0).all():
            raise ValueError(
                "Spectrum(energy=...) must be positive energies of shells 1, 2, ..., with shape "
                f"(K), got {energy.tolist()}. Leave off the shells that are free or empty."
            )
        self.energy, self.dims = energy, dims

    def _energies(self, x: Tensor) -> Tensor:
        check_axes(x, self.dims, f"Spectrum(dims={self.dims})")
        energies = energy_spectrum(x, self.dims)[..., 1:]
        known = self.energy.numel()
        if energies.shape[-1] < known:
            raise ValueError(
                f"Spectrum: {known} shells are given, but the grid {tuple(x.shape[-self.dims :])} "
                f"has {energies.shape[-1]}. Leave off the last ones."
            )
        return energies[..., :known]

    def residual(self, x: Tensor) -> Tensor:
        ratio = self._energies(x) / self.energy.to(x)
        # the slope of a square root at an empty shell would be infinite
        root = ratio.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        return (root - 1).flatten(start_dim=1)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x` with the waves of each shell scaled to its energy.

        A sample with an empty shell becomes NaN, since all its directions are equally near.
        """
        axes = tuple(range(-self.dims, 0))
        known, grid = self.energy.numel(), x.shape[-self.dims :]
        gain = torch.sqrt(self.energy.to(x) / self._energies(x))
        shell = shells(grid, x.device)
        given = (shell >= 1) & (shell <= known)
        scale = gain[..., (shell - 1).clamp(0, known - 1)]
        u_hat = torch.fft.fftn(x, dim=axes)
        return torch.fft.ifftn(torch.where(given, scale * u_hat, u_hat), dim=axes).real
