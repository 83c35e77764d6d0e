r"""The covariance of trajectories that are the same at all longitudes."""

__all__ = ["ZonalCovariance"]

from collections.abc import Callable

import torch
from torch import Tensor, nn

Function = Callable[[Tensor, Tensor], Tensor]
"""A function of variances and noise levels, element by element."""


class ZonalCovariance(nn.Module):
    r"""The covariance :math:`\Sigma` of trajectories that are the same at all longitudes, with
    shape :math:`(T, C, \mathrm{lat}, \mathrm{lon})`, taken from data by :meth:`fit`.

    Of the `leading` principal components of frames, the covariance of components, channels and
    latitudes with each other is kept for each zonal wavenumber; different wavenumbers are
    uncorrelated. Of the others, their variance alone.
    """

    frames: Tensor
    spread: Tensor
    basis: Tensor
    variance: Tensor

    def __init__(
        self, frames: int, channels: int, rows: int, columns: int, leading: int = 4
    ) -> None:
        super().__init__()
        self.leading, self.columns = leading, columns
        size, waves = leading * channels * rows, columns // 2 + 1
        self.register_buffer("frames", torch.eye(frames))
        self.register_buffer("spread", torch.ones(frames))
        self.register_buffer("basis", torch.eye(size).expand(2, waves, size, size).clone())
        self.basis[1] = 0
        self.register_buffer("variance", torch.ones(waves, size))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Takes the covariance from data `x`, with shape (N, T, C, lat, lon); means are not
        subtracted."""
        flat = x.transpose(0, 1).flatten(start_dim=1).double()
        variance, frames = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
        self.frames.copy_(frames.flip(1))
        floor = 1e-6 * variance.max()
        self.spread.copy_(variance.flip(0).clamp_min(floor))
        waves = self._waves(self._components(x)[:, : self.leading])
        for m, wave in enumerate(waves.transpose(0, 1).to(torch.complex128)):
            variance, basis = torch.linalg.eigh(wave.T @ wave.conj() / len(wave))
            self.basis[:, m] = torch.stack((basis.real, basis.imag))
            self.variance[m] = variance.clamp_min(floor)

    def forward(self, f: Function, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`f(\Sigma, \sigma) x` of trajectories, with shape :math:`(B, T, C,
        \mathrm{lat}, \mathrm{lon})`, and noise levels, one or :math:`B`."""
        # in full precision, or rounding the large components would drown the small ones
        with torch.autocast(x.device.type, enabled=False):
            h = self._components(x)
            head, tail = h[:, : self.leading], h[:, self.leading :]
            basis = torch.complex(*self.basis)
            a = torch.einsum("mji,bmj->bmi", basis.conj(), self._waves(head))
            a = f(self.variance, sigma.reshape(-1, 1, 1)) * a
            a = torch.einsum("mij,bmj->bmi", basis, a).movedim(1, -1)
            head = torch.fft.irfft(a, n=self.columns, norm="ortho").reshape(head.shape)
            tail = self._scaled(f, tail, sigma, self.spread[self.leading :])
            return self._trajectories(torch.cat((head, tail), dim=1))

    def coarse(self, f: Function, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`f(S, \sigma) x`, likewise, where :math:`S` knows the covariance of
        frames, and channels and places are independent."""
        with torch.autocast(x.device.type, enabled=False):
            return self._trajectories(self._scaled(f, self._components(x), sigma, self.spread))

    def _scaled(self, f: Function, h: Tensor, sigma: Tensor, variance: Tensor) -> Tensor:
        return f(variance[:, None, None, None], sigma.reshape(-1, 1, 1, 1, 1)) * h

    def _components(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, self.frames.dtype))
        return torch.einsum("tk,bt...->bk...", self.frames, x)

    def _trajectories(self, h: Tensor) -> Tensor:
        return torch.einsum("tk,bk...->bt...", self.frames, h)

    def _waves(self, head: Tensor) -> Tensor:
        """Zonal wavenumbers, with shape (B, columns / 2 + 1, leading * channels * rows)."""
        return torch.fft.rfft(head, norm="ortho").flatten(1, -2).movedim(-1, 1)
