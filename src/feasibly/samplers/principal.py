r"""Steps of a diffusion whose constrained values are taken as normal."""

__all__ = ["Alike", "Principal", "given", "principal"]

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg import eigh
from .base import Randn
from .moments import numbers
from .slopes import LARGE, Frame, blocks


class Principal(NamedTuple):
    r"""Normal values of states, in the basis in which the rows of their derivative :math:`J` are
    orthonormal; see :func:`whitened <feasibly.samplers.slopes.whitened>`.

    Attributes:
        gap: How far their means are from their targets, with shape (B, m).
        slope: Their covariance :math:`J V` with the sample, with shape (B, m, D).
        covariance: Their covariance :math:`J V J^\top`, with shape (B, m, m).
        noise: The covariance of what is added to them, likewise.
        log_h: The logarithm of their density at the targets, but for a constant, with shape (B).
    """

    gap: Tensor
    slope: Tensor
    covariance: Tensor
    noise: Tensor
    log_h: Tensor


def principal(frame: Frame, VJ: Tensor, gap: Tensor, noise: Tensor) -> Principal:
    """Returns values in the basis of a frame, given them as they are."""
    good = (frame.basis.isfinite() & frame.covariance.isfinite()).flatten(start_dim=1).all(dim=1)
    good = good & noise.flatten(start_dim=1).isfinite().all(dim=1) & gap.isfinite().all(dim=1)
    basis, covariance = frame.basis, frame.covariance
    if not good.all():
        matrices = (basis, VJ, noise)
        basis, VJ, noise = (torch.where(good[:, None, None], v, 0.0) for v in matrices)
        one = torch.eye(gap.shape[1]).to(covariance)
        covariance = torch.where(good[:, None, None], covariance, one)
        gap = torch.where(good[:, None], gap, 0.0)
    noise = basis @ noise @ basis.mT
    gap = (basis @ gap[..., None])[..., 0]
    root, _ = torch.linalg.cholesky_ex(covariance + noise)
    log_h = torch.where(good, _log_density(gap, root) - frame.log_volume, -math.inf)
    return Principal(gap, basis @ VJ, covariance, noise, log_h)


@dataclass(frozen=True, eq=False)
class Alike:
    """Normal values whose derivatives are the same at all states, and whose covariance is known at
    some: what other states take from the nearest of these.

    Attributes:
        basis: The basis of a frame, with shape (m, m).
        slope: The covariances of the values with the sample in this basis, with shape (R, m, D).
        covariance: Their covariances, with shape (R, m, m).
        noise: The covariance of what is added to them, with shape (m, m).
        log_volume: That of the frame, with shape ().
    """

    basis: Tensor
    slope: Tensor
    covariance: Tensor
    noise: Tensor
    log_volume: Tensor

    @classmethod
    def of(cls, frame: Frame, VJ: Tensor, noise: Tensor) -> "Alike":
        """Returns them in the basis of a frame, given them as they are."""
        basis = frame.basis[0]
        noise = basis @ noise @ basis.mT
        return cls(basis, basis @ VJ, frame.covariance, noise, frame.log_volume[0])

    def log_h(self, gap: Tensor, of: Tensor) -> Tensor:
        """Returns the logarithms of their densities at the targets, but for a constant, with shape
        (B), given how far their means are from these, with shape (B, m), and which of the states
        are the nearest, with shape (B)."""
        roots, _ = torch.linalg.cholesky_ex(self.covariance + self.noise)
        found = gap.new_empty(len(gap))
        for k, root in enumerate(roots):
            z = torch.linalg.solve_triangular(root, gap[of == k].mT, upper=False)
            found[of == k] = -z.square().sum(dim=0) / 2 - root.diagonal().log().sum()
        return found - self.log_volume

    def given(
        self,
        gap: Tensor,
        of: Tensor,
        mean: Tensor,
        std: Tensor,
        gain: Tensor,
        scale: Tensor,
        randn: Randn,
    ) -> tuple[Tensor, Tensor]:
        r"""As :func:`given`. In a basis in which :math:`C_s + R` is the identity and
        :math:`G G^\top` the diagonal :math:`\Lambda`, the values have the variances
        :math:`1 + \tau^2 \Lambda` before the step."""
        noise, errors = randn(mean), numbers(randn, gap, mean)
        std = std.double().reshape(-1, 1).expand(len(mean), 1)
        gain, scale = gain.double(), scale.double()
        move, ratio = torch.empty_like(mean), torch.empty_like(gap[:, 0])
        one = torch.eye(gap.shape[1]).to(gap)
        for k in of.unique().tolist():
            some, slope, covariance = of == k, self.slope[k], self.covariance[k]
            rest, _ = torch.linalg.cholesky_ex(one + gain * covariance)
            left = torch.cholesky_solve(covariance, rest)
            root, _ = torch.linalg.cholesky_ex((left + left.mT) / 2 + self.noise)
            slope = scale * torch.cholesky_solve(slope, rest)
            slope = torch.linalg.solve_triangular(root, slope, upper=False)
            square, turn = (part[0] for part in eigh((slope @ slope.mT)[None]))
            slope = turn.mT @ slope
            here = torch.linalg.solve_triangular(root, gap[some].mT, upper=False).mT @ turn
            z, tau = noise[some].double().flatten(start_dim=1), std[some]
            whole = 1 + tau**2 * square
            wrong = here + tau * z @ slope.mT + errors[some] @ turn
            step = tau * z - tau**2 * (wrong / whole) @ slope
            before = -(here.square() / whole + whole.log()).sum(dim=1)
            after = -(here + step @ slope.mT).square().sum(dim=1)
            move[some] = step.reshape(mean[some].shape).to(mean)
            ratio[some] = (before - after) / 2
        return mean + move, ratio


def given(
    now: Principal, mean: Tensor, std: Tensor, gain: Tensor, scale: Tensor, randn: Randn
) -> tuple[Tensor, Tensor]:
    r"""Samples an unconditional step :math:`x_s \sim \mathcal{N}(\mu, \tau^2 I)`, given that the
    values are zero, and returns it with :math:`\log p(x_s) / q(x_s)`.

    The values given a state :math:`x_s` are taken as

    .. math:: g \mid x_s \sim \mathcal{N}\big(\bar g + G (x_s - \mu), C_s + R\big), \qquad
        C_s = (I + \gamma C)^{-1} C, \qquad G = a (I + \gamma C)^{-1} J V,

    where :math:`C` is :math:`J V J^\top`, :math:`\gamma` the growth of
    :math:`\alpha^2 / \sigma^2` in the step, and :math:`a = \alpha_s / \sigma_s^2`. This is exact
    for normal data if the rows of :math:`J` span a space that :math:`V` maps to itself. Elsewhere
    weights vary more, and correct it.

    Arguments:
        now: The values at :math:`x_t`.
        mean: The mean :math:`\mu` of the unconditional step, with shape (B, *).
        std: Its standard deviation :math:`\tau`, with a shape that multiplies the mean.
        gain, scale: The growth :math:`\gamma` and the ratio :math:`a`.
        randn: The noise.
    """
    noise, errors = randn(mean), numbers(randn, now.gap, mean)
    std = std.double().reshape(-1, 1).expand(len(mean), 1)
    gain, scale = gain.double(), scale.double()
    found = []
    for some in blocks(len(mean), max(1, LARGE // now.slope[0].numel())):
        states = Principal(*(part[some] for part in now))
        white = noise[some].double().flatten(start_dim=1), errors[some]
        found.append(_given(states, std[some], gain, scale, *white))
    move, ratio = (torch.cat(parts) for parts in zip(*found, strict=True))
    return mean + move.reshape(mean.shape).to(mean), ratio


def _given(
    now: Principal, std: Tensor, gain: Tensor, scale: Tensor, noise: Tensor, errors: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns how far a step of :func:`given` goes from its unconditional mean, with shape (B, D),
    and the logarithm of its ratio, given white noise of the step and of the values."""
    rest, _ = torch.linalg.cholesky_ex(torch.eye(now.gap.shape[1]).to(std) + gain * now.covariance)
    slope = scale * torch.cholesky_solve(now.slope, rest)
    left = torch.cholesky_solve(now.covariance, rest)
    left = (left + left.mT) / 2 + now.noise
    whole = left + std[..., None] ** 2 * slope @ slope.mT
    root, _ = torch.linalg.cholesky_ex(left)
    error = root @ errors[..., None]
    wrong = now.gap + (slope @ (std * noise)[..., None] + error)[..., 0]
    factor, _ = torch.linalg.cholesky_ex(whole)
    weights = torch.cholesky_solve(wrong[..., None], factor)
    move = std * noise - std**2 * (slope.mT @ weights)[..., 0]
    ratio = _log_density(now.gap, factor)
    return move, ratio - _log_density(now.gap + (slope @ move[..., None])[..., 0], root)


def _log_density(x: Tensor, root: Tensor) -> Tensor:
    """Returns the log-density of a normal of mean zero, but for a constant, with shape (B), given
    the Cholesky factor of its covariance."""
    z = torch.linalg.solve_triangular(root, x[..., None], upper=False)
    return -z.square().sum(dim=(1, 2)) / 2 - root.diagonal(dim1=1, dim2=2).log().sum(dim=1)
