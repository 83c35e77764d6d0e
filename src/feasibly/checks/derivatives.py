"""Derivatives that are missing or that mislead, which a difference of values shows.

A network that is computed in part without gradients still has a gradient, of a wrong value. A
residual may be flat where the data are, or jump. Samplers follow gradients, and see none of this.
"""

__all__ = ["check_gradient", "roughness", "unlike_gradient"]

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..constraints import BlackBox
from ..constraints.base import Constraint
from ..errors import ConstraintError, DenoiserError
from ..network import Network
from ..randomness import generator

LEVELS = ((5 / 6, 1.0), (1 / 2, 0.15), (1 / 6, 0.15))
"""Where the logarithms of the noise levels at which a network is tested lie between the ends of
the schedule, and the length of a test there in units of the noise."""

LENGTH = 0.1
"""How far a test of a residual goes, in units of the spread of clean samples."""

SLACK = 0.05
"""By which share a difference and the gradient may differ, besides what they vary by."""

FLAT = 0.05
"""The share of the samples, weighted by what the constraint allows, that may be where a residual
is flat."""

FLAT_STEP = 1e-3
"""A residual that such a change of a sample, in units of the standard deviation, leaves as it is
is flat there."""

NEAR, JUMP, HALVINGS = 0.25, 0.5, 14
"""A residual jumps if it changes by half of what is typical of samples over a segment that was
halved so often, and if fewer than a quarter of samples are nearer to zero than one side."""


def unlike_gradient(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    reach: Tensor,
    epsilon: float,
    size: Tensor | float = 0.0,
    of_states: bool = False,
) -> bool:
    r"""Returns whether the gradient of `f` cannot be its derivative at some row.

    The difference of two values is the integral of the gradient between them. So :math:`\langle u,
    f(x + v/2) - f(x - v/2) \rangle` is compared with the mean of :math:`\langle J^T u, v \rangle`
    at the midpoints of thirds. Half of what both vary by along the way is allowed, because of
    kinks, jumps, noise and rounding. Three tests along different ways must fail.

    Arguments:
        f: The function of a batch (B, \*), each row on its own, with values of shape (B, \*).
        x: Where to test it, with shape (B, \*).
        reach: The size of the elements of :math:`v`, which broadcasts to `x`.
        epsilon: The relative rounding error of `f`.
        size: What it is relative to, besides the values, as a norm, with shape (B).
        of_states: Whether values are states too. Then :math:`u` is along the difference, or along
            :math:`v` in every other row, where a path past the detached part shows. Else it is a
            random sign for each value, in units of how values change.
    """
    random = generator(0)

    def fails() -> bool:
        v = reach * torch.randn(x.shape, generator=random, dtype=x.dtype).to(x)
        return bool(_unlike(f, x, v, epsilon, size, of_states).any())

    try:
        return all(fails() for _ in range(3))
    except DenoiserError:
        raise
    except Exception:  # a run says so where it comes there, if it does
        return False


def _unlike(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    v: Tensor,
    epsilon: float,
    size: Tensor | float,
    of_states: bool,
) -> Tensor:
    """Returns where that is so along the ways `v` through `x`, with shape (B)."""
    start, end = x - v / 2, x + v / 2
    with torch.no_grad():
        first, last = (f(z).flatten(start_dim=1).double() for z in (start, end))
    change = last - first
    if of_states:
        u = change.clone()
        u[1::2] = v.flatten(start_dim=1)[1::2].double()
        u = torch.nn.functional.normalize(u, dim=1)
    else:
        unit = change.square().mean(dim=0).sqrt()
        signs = torch.rand(change.shape, generator=generator(0), dtype=torch.float64) < 0.5
        u = torch.where(signs.to(x.device), 1.0, -1.0) / torch.where(unit > 0, unit, torch.inf)
    way = (end.double() - start.double()).flatten(start_dim=1)  # as rounded
    places, values, slopes = (0, 1 / 6, 1 / 2, 5 / 6, 1), [(u * first).sum(dim=1)], []
    for s in places[1:-1]:
        at = (x + (s - 1 / 2) * v).detach().requires_grad_()
        with torch.enable_grad():
            y = f(at)
            g = torch.zeros_like(at)
            if y.requires_grad:
                told = (u.reshape(y.shape) * y).sum()
                (g,) = torch.autograd.grad(told, at, allow_unused=True, materialize_grads=True)
        values.append((u * y.detach().flatten(start_dim=1)).sum(dim=1))
        slopes.append((g.flatten(start_dim=1).double() * way).sum(dim=1))
    values.append((u * last).sum(dim=1))
    rates = torch.stack(values).diff(dim=0).T / torch.tensor(places).to(u).diff()
    told, seen = torch.stack(slopes, dim=1), values[-1] - values[0]
    varied = sum(rate.amax(dim=1) - rate.amin(dim=1) for rate in (rates, told)) / 2
    rounding = epsilon * u.norm(dim=1) * (first.norm(dim=1) + size)
    mean = told.mean(dim=1)
    gap, larger = (seen - mean).abs(), torch.maximum(seen.abs(), mean.abs())
    return (gap > varied + rounding + SLACK * larger) & change.any(dim=1)


def check_gradient(
    denoiser: Callable[[Tensor, Tensor], Any], x_0: Tensor, known: bool = False
) -> None:
    """Refuses a denoiser whose gradient is not the derivative of its output.

    Arguments:
        denoiser: The denoiser.
        x_0: Clean samples, with shape :math:`(B, *)`, B > 1, or noise in place of them.
        known: Whether they are samples. Else they are replaced by estimates of the denoiser, from
            the highest noise level down.

    Raises:
        DenoiserError: If it is not.
    """
    network = Network(denoiser)
    grid = torch.linspace(0, 1, 33, dtype=torch.float64, device=x_0.device)
    ratios = [sigma / alpha for alpha, sigma in map(network.schedule, grid)]
    heights = torch.stack(ratios).log()
    wanted = torch.lerp(heights[0], heights[-1], heights.new_tensor([at for at, _ in LEVELS]))
    times = grid[torch.searchsorted(heights, wanted).clamp(max=len(grid) - 1)].to(x_0.dtype)
    random, epsilon = generator(0), _epsilon(denoiser)
    # each row changes a part of the state of its own, so that a small part that is detached shows
    places, rows = torch.arange(x_0[0].numel()), torch.arange(len(x_0))[:, None]
    part = (len(places) * rows // len(x_0) <= places) & (
        places < len(places) * (rows + 1) // len(x_0)
    )
    for t, (_, length) in zip(times, LEVELS, strict=True):
        alpha_t, sigma_t = network.schedule(t)
        z = torch.randn(x_0.shape, generator=random, dtype=x_0.dtype).to(x_0)
        reach = length * sigma_t * part.reshape(x_0.shape).to(x_0)
        x_t = alpha_t * x_0 + sigma_t * z
        try:
            with torch.no_grad():
                estimate = network(x_t, t)
        except DenoiserError:
            raise
        except Exception:  # as above
            return
        size = (x_t / alpha_t).double().flatten(start_dim=1).norm(dim=1)
        if unlike_gradient(lambda x, t=t: network(x, t), x_t, reach, epsilon, size, True):
            raise DenoiserError(
                "The denoiser's gradient is not the derivative of its output (at sigma = "
                f"{(sigma_t / alpha_t).item():.3g}), which this method needs: part of the network "
                "is computed without gradients. Remove torch.no_grad(), torch.inference_mode(), "
                "detach(), .data, .item(), numpy and rounding from everything that depends on "
                "x_t, including self-conditioning, or use a method that needs no gradient "
                "(`python -m feasibly methods` lists them)."
            )
        if not known:
            x_0 = torch.where(estimate.isfinite(), estimate, x_0)


def _epsilon(denoiser: Any) -> float:
    """Returns the relative rounding error of a denoiser: that of its coarsest weights."""
    parameters = getattr(denoiser, "parameters", None)
    kinds = {p.dtype for p in parameters()} if callable(parameters) else set()
    return max(torch.finfo(k).eps for k in {torch.float32, *kinds} if k.is_floating_point)


def roughness(constraint: Constraint, x: Tensor) -> Iterator[str]:
    r"""Yields what misleads samplers in residuals that must vanish or have errors: one is flat
    where the constraint allows samples, or jumps close to zero.

    Arguments:
        constraint: The constraint.
        x: Clean samples, with shape (B, \*), a few dozen of them.

    Raises:
        ConstraintError: If a residual varies, but is flat at all samples.
    """
    for part in constraint.parts:
        for one in (part.equalities, part.noisy):
            if one is not None and not one.linear:
                with torch.no_grad():
                    r = one.residual(x)
                    # another program may be a staircase: its differences are over longer steps
                    jumps = "" if isinstance(one, BlackBox) else _jumps(one, x, r)
                    found = _flat(one, x, r), jumps
                yield from filter(None, found)


def _flat(part: Constraint, x: Tensor, r: Tensor) -> str:
    """Says that a residual is flat where samples may be, as a penalty relu(g) and a saturating
    sensor are; empty if none is. A residual that never varies is no equation, and does not
    count."""
    noise = torch.randn(x.shape, generator=generator(0), dtype=x.dtype).to(x)
    step = FLAT_STEP * x.std(dim=0) * noise
    flat = (part.residual(x + step) == r) & (part.residual(x - step) == r)
    flat &= (r != r[:1]).any(dim=0)
    if not flat.any():
        return ""
    with torch.enable_grad():  # what changes by steps may have differences for derivatives
        z = x.detach().requires_grad_()
        g, told = torch.zeros_like(z), part.residual(z)[flat].sum()
        if told.requires_grad:
            (g,) = torch.autograd.grad(told, z, allow_unused=True, materialize_grads=True)
    flat &= ~g.flatten(start_dim=1).any(dim=1, keepdim=True)
    r, exact = r.double(), part.noisy is None
    weight = (r.square() <= part.tolerance).double() if exact else (-r.square() / 2).exp()
    share = (weight * flat).sum(dim=0) / weight.sum(dim=0).clamp_min(torch.finfo(r.dtype).tiny)
    if (flat.all(dim=0) & (share <= FLAT)).any():
        raise ConstraintError(
            f"{part!r}: a component of the residual varies between samples, but its gradient is "
            "zero at all of them. Comparisons, rounding and signs have no useful gradient: "
            "replace them by something smooth, or state the constraint with constraints.BlackBox "
            "and a step."
        )
    if not (share > FLAT).any():
        return ""
    often = flat[:, share > FLAT].double().mean(dim=0).max().item()
    fix = (
        "State it as Inequality(g, tolerance): relu(g) = 0 means g <= 0, and clamp(x, max=1) = 1 "
        "means x >= 1, or 1 - x <= 0."
        if exact
        else "Use a smooth sensor model, such as softplus or tanh; a measurement of which only a "
        "limit is known is an inequality: clamp(x, max=1) = 1 means x >= 1, or 1 - x <= 0."
    )
    return (
        f"{part!r}: a component of the residual is flat, with a zero gradient, on {often:.0%} of "
        "unconditional samples, and the constraint allows such samples. Nothing leads a sampler "
        f"to them, so it may miss them. {fix}"
    )


def _jumps(part: Constraint, x: Tensor, r: Tensor) -> str:
    """Says that a residual jumps with one side close to zero; empty if none does.

    Segments between pairs of samples are halved, and the half over which a residual changes most
    is kept. What is continuous changes ever less.
    """
    start, end = (half[: len(x) // 2] for half in (x, x[len(x) // 2 :]))
    rows = torch.arange(len(start), device=x.device)
    some = torch.randperm(r.shape[1], generator=generator(0)).to(x.device)
    which = some[rows % len(some)]  # a residual for each segment
    left, right = r[rows, which], r[rows + len(x) // 2, which]
    size = r[:, which].abs()
    typical, near = size.mean(dim=0), size.quantile(NEAR, dim=0)
    for _ in range(HALVINGS):
        middle = torch.lerp(start, end, 0.5)
        value = part.residual(middle)[rows, which]
        first = (value - left).abs() > (right - value).abs()
        right, left = torch.where(first, value, right), torch.where(first, left, value)
        shape = (-1, *(1,) * (x.ndim - 1))
        end = torch.where(first.reshape(shape), middle, end)
        start = torch.where(first.reshape(shape), start, middle)
        apart = (right - left).abs()
        jumps = apart > JUMP * typical
        if not jumps.any():
            return ""
    close = jumps & (torch.minimum(left.abs(), right.abs()) <= near)
    # what is less than the tolerance, or an error, may be rounding, and does no harm
    alone = torch.zeros_like(r[: len(start)])
    alone[rows, which] = apart
    close &= part.violation_of(alone) > part.tolerance if part.noisy is None else apart > 1
    if not close.any():
        return ""
    worst = int(torch.where(close, apart, 0.0).argmax())
    return (
        f"{part!r}: a component of the residual jumps from {left[worst].item():.3g} to "
        f"{right[worst].item():.3g}, close to where it is zero. Samples just beyond the jump are "
        "led the long way round, so that they are wrong or infeasible. State the difference of "
        "two angles as atan2(sin(r), cos(r)), or by its sine and 1 - cosine; replace rounding, "
        "remainders and indexing by something continuous."
    )
