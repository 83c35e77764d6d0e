r"""The covariance of trajectories on a circle of latitude."""

__all__ = ["ZonalCovariance"]

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ZonalCovariance(nn.Module):
    r"""The covariance :math:`\Sigma` of trajectories that are the same at all longitudes, with
    shape :math:`(T, C, \mathrm{lat}, \mathrm{lon})`, taken from data by :meth:`fit`.

    Frames that are much alike have few principal components that matter. Of the `leading` ones,
    the covariance of components, channels and latitudes with each other is kept for each zonal
    wavenumber; different wavenumbers are uncorrelated where all longitudes are the same. Of the
    others, their variance alone.

    Arguments:
        frames: The number :math:`T` of frames.
        channels: The number :math:`C` of channels.
        rows: The number of latitudes.
        columns: The number of longitudes.
        leading: The number of principal components of the frames that are kept in full.
    """

    frames: Tensor
    rest: Tensor
    basis: Tensor
    variance: Tensor

    def __init__(
        self, frames: int, channels: int, rows: int, columns: int, leading: int = 4
    ) -> None:
        super().__init__()
        self.leading, self.columns = leading, columns
        size, waves = leading * channels * rows, columns // 2 + 1
        self.register_buffer("frames", torch.eye(frames))
        self.register_buffer("rest", torch.ones(frames - leading))
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
        self.rest.copy_(variance.flip(0).clamp_min(floor)[self.leading :])
        waves = self._waves(torch.einsum("tk,nt...->nk...", self.frames, x)[:, : self.leading])
        for m, wave in enumerate(waves.transpose(0, 1).to(torch.complex128)):
            variance, basis = torch.linalg.eigh(wave.T @ wave.conj() / len(wave))
            self.basis[:, m] = torch.stack((basis.real, basis.imag))
            self.variance[m] = variance.clamp_min(floor)

    def forward(self, f: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`f(\Sigma, \sigma) x`.

        Arguments:
            f: A function of variances and noise levels, element by element.
            x: Trajectories, with shape :math:`(B, T, C, \mathrm{lat}, \mathrm{lon})`.
            sigma: The noise level, with one element or :math:`B`.
        """
        # in full precision, or rounding the large components would drown the small ones
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, self.frames.dtype))
            h = torch.einsum("tk,bt...->bk...", self.frames, x)
            head, tail = h[:, : self.leading], h[:, self.leading :]
            basis = torch.complex(*self.basis)
            a = torch.einsum("mji,bmj->bmi", basis.conj(), self._waves(head))
            a = f(self.variance, sigma.reshape(-1, 1, 1)) * a
            a = torch.einsum("mij,bmj->bmi", basis, a)
            a = torch.fft.irfft(a.movedim(1, -1), n=self.columns, norm="ortho")
            head = a.reshape(head.shape)
            tail = f(self.rest[:, None, None, None], sigma.reshape(-1, 1, 1, 1, 1)) * tail
            return torch.einsum("tk,bk...->bt...", self.frames, torch.cat((head, tail), dim=1))

    def _waves(self, head: Tensor) -> Tensor:
        """Zonal wavenumbers, with shape (B, columns / 2 + 1, leading * channels * rows)."""
        return torch.fft.rfft(head, norm="ortho").flatten(1, -2).movedim(-1, 1)
