r"""A solver of the Kuramoto-Sivashinsky equation :math:`u_t = - u_{xx} - u_{xxxx} - u u_x` (paper,
Section 5 and Appendix B.2).

In Fourier space :math:`\hat u_t = (k^2 - k^4) \hat u - \tfrac{1}{2} i k \, \widehat{u^2}`, on the
periodic domain :math:`[0, L)` and without de-aliasing. Everything is in double precision, since
the rounding of :math:`k^4` leaves a residual of :math:`5 \times 10^{-3}` in single precision.
"""

__all__ = ["bdf1", "initial_conditions", "simulate", "wavenumbers"]

import math

import torch
from torch import Generator, Tensor

LENGTH = 64.0
"""The length L of the paper's domain."""

POINTS = 512
"""The number of grid points of the paper's solver."""

DT = 0.1
"""The paper's time step."""

STEPS = 1024
"""The paper's number of time steps."""

BLOCK = 64
"""The number of trajectories that are simulated together."""


def wavenumbers(points: int, length: float = LENGTH) -> Tensor:
    r"""Returns the angular wavenumbers of a real field, with shape :math:`(N / 2 + 1)`."""
    return 2 * math.pi / length * torch.arange(points // 2 + 1, dtype=torch.float64)


def initial_conditions(
    n: int, generator: Generator, points: int = POINTS, length: float = LENGTH
) -> Tensor:
    r"""Returns random :math:`u^0(x) = \sum_{k=1}^{10} a_k \cos(2 \pi \omega_k x / L + \phi_k)`.

    The frequencies are real numbers, as the paper writes them. So :math:`u^0` jumps at the seam of
    the domain, and has a mean (standard deviation 0.14), which the equation conserves. The fields
    have the shape :math:`(n, N)`, with :math:`N` points.
    """

    def uniform(low: float, high: float) -> Tensor:
        sample = torch.rand(n, 10, 1, generator=generator, dtype=torch.float64)
        return low + (high - low) * sample

    a, omega, phi = uniform(0, 1), uniform(1, 5), uniform(0, 2 * math.pi)
    x = torch.arange(points, dtype=torch.float64) * length / points
    return (a * torch.cos(2 * math.pi * omega * x / length + phi)).sum(dim=1)


def bdf1(
    u: Tensor,
    steps: int,
    dt: float = DT,
    length: float = LENGTH,
    tolerance: float = 1e-9,
    iterations: int = 200,
) -> Tensor:
    r"""Integrates by the first-order backward difference formula, i.e. implicit Euler

    .. math:: F(u^{n+1}) = u^{n+1} - u^n + \Delta t \,
        (u_{xx} + u_{xxxx} + u u_x)^{n+1} = 0 ,

    where simplified Newton iterations solve each step. They replace the Jacobian of :math:`F` by
    its linear part :math:`P = 1 - \Delta t (k^2 - k^4)`, which is diagonal in Fourier space, and
    start from a cubic extrapolation in time. They agree with Newton's method to
    :math:`10^{-10}`.

    Arguments:
        u: The initial fields, with shape :math:`(B, N)`.
        steps: The number of time steps.
        dt: The time step :math:`\Delta t`.
        length: The length :math:`L` of the domain.
        tolerance: The relative size of an update below which the iterations of a member end.
        iterations: The most iterations in a step.

    Returns:
        The fields after each step, with shape :math:`(B, steps, N)`.

    Raises:
        ArithmeticError: If a step does not converge. The message names the step and the member.
    """
    points = u.shape[-1]
    k = wavenumbers(points, length)
    P = 1 - dt * (k**2 - k**4)
    half = dt * 0.5j * k / P

    past = [torch.fft.rfft(u.double())]
    frames = u.new_empty((u.shape[0], steps, points), dtype=torch.float64)
    for step in range(steps):
        source = past[-1] / P
        u_hat = _extrapolate(past)
        moving = torch.ones(u.shape[0], 1, dtype=torch.bool)
        for _ in range(iterations):
            u = torch.fft.irfft(u_hat, n=points)
            new = source - half * torch.fft.rfft(u * u)
            change = (new - u_hat).abs().norm(dim=1)
            settled = change <= tolerance * new.abs().norm(dim=1)  # never, if it is NaN
            # a converged member stays, so that its result does not depend on the others
            u_hat = torch.where(moving, new, u_hat)
            moving = moving & ~settled[:, None]
            if not moving.any():
                break
        else:
            member = int(moving.flatten().nonzero()[0])
            raise ArithmeticError(
                f"bdf1() did not converge at step {step} for member {member} in {iterations} "
                f"iterations. Reduce dt={dt}."
            )
        frames[:, step] = torch.fft.irfft(u_hat, n=points)
        past = [*past[-3:], u_hat]
    return frames


def _extrapolate(past: list[Tensor]) -> Tensor:
    """Returns the value after up to four equidistant ones, by a polynomial through them."""
    n = len(past)
    return sum(  # type: ignore[return-value]
        (-1) ** (n - 1 - i) * math.comb(n, i) * value for i, value in enumerate(past)
    )


def simulate(block: int, seed: int, size: int = 128) -> Tensor:
    r"""Simulates one block of the paper's trajectories :math:`u^{512:1024}`, downsized.

    They are the last 512 of 1024 steps. Downsizing keeps every :math:`512 / \mathrm{size}`-th
    frame and grid point. At 128 points no scale of the solution is lost: the error of a
    reconstruction is :math:`3 \times 10^{-7}`. At 64 points it is :math:`10^{-3}`.

    Arguments:
        block: The number of the block. With `seed`, it determines the trajectories.
        seed: The seed, at most :math:`2^{32}`.
        size: The number of frames and of grid points, which divides 512.

    Returns:
        The trajectories in physical units, with shape :math:`(64, \mathrm{size},
        \mathrm{size})`, in single precision: frames on the first axis, space on the second.
    """
    if POINTS % size:
        raise ValueError(f"simulate(size=...) must divide {POINTS}, got {size}.")
    generator = Generator().manual_seed(seed * 2**31 + block)
    frames = bdf1(initial_conditions(BLOCK, generator), STEPS)
    stride = POINTS // size
    return frames[:, STEPS - POINTS :: stride, ::stride].float().contiguous()
