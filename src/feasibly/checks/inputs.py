"""Tests of a denoiser and a constraint before use: bad input is refused before sampling."""

__all__ = ["as_data", "check_constraint", "check_denoiser", "check_parts"]

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import members
from ..constraints import BlackBox
from ..constraints.base import Constraint
from ..errors import IN_TORCH, ConstraintError, DenoiserError
from ..machine import exhausted, is_exhausted
from ..network import Network, explained
from .derivatives import LENGTH, unlike_gradient

ROUNDING = 0.05
"""How far an estimate may move with the size of its batch, relative to the batch: half precision
rounds to 0.3 %, while a mean over the batch moves it by tens of percent."""

COMPARISON = (
    "Return a number that is zero where the constraint holds, or for an inequality one that is at "
    "most zero there, such as x[:, 0] - 15 for x[:, 0] < 15"
)
"""What to do about a residual that is a comparison."""


def check_parts(name: str, denoiser: Any, constraint: Any) -> None:
    """Refuses arguments that are no denoiser and no constraint, and says what they are."""
    order = f"the order is {name}(denoiser, constraint)"
    if isinstance(denoiser, Constraint):
        raise ValueError(
            f"{name} got a constraint, {denoiser!r}, in place of the denoiser; {order}."
        )
    if constraint is None or isinstance(constraint, Constraint):
        return
    got = type(constraint).__name__
    if isinstance(constraint, type):
        got, fix = f"the class {constraint.__name__}", "pass an instance of it"
    elif isinstance(constraint, list | tuple):
        fix = "join several with Composite([a, b])"
    elif callable(getattr(constraint, "schedule", None)):
        fix = f"this is a denoiser; {order}"
    elif callable(constraint):
        fix = (
            "state a function r(x) that is zero where the constraint holds as Equality(r, "
            "tolerance=1e-6)"
        )
    else:
        fix = "choose one of feasibly.constraints"
    raise ValueError(f"{name}(constraint=...) takes a constraint, got {got}; {fix}.")


def as_data(data: Any) -> Tensor:
    """Returns clean data, a tensor or an array of numbers with shape (N, *), as a tensor.

    Raises:
        DenoiserError: If they are something else, or not a few different samples.
    """
    need = "A test on data needs a few different samples"
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
        data = torch.tensor(np.ascontiguousarray(data))
    if not isinstance(data, Tensor) or data.ndim < 2 or len(data) < 2:
        got = f"shape {tuple(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
        raise DenoiserError(
            f"{need}, as a tensor or an array with shape (N, *), N at least 2; got {got}. "
            "From a loader take one batch, and from pairs of data and labels take the data."
        )
    if data.is_complex():
        raise DenoiserError(
            f"{need}, real ones: pass real and imaginary parts as channels (torch.view_as_real)."
        )
    if (data == data[:1]).all():
        raise DenoiserError(f"{need}, and all of these are equal.")
    return data if data.is_floating_point() else data.float()


def check_denoiser(
    denoiser: Callable[[Tensor, Tensor], Any], x_t: Tensor, t: Tensor, gradient: bool
) -> Tensor:
    r"""Returns the clean estimates of a denoiser, which may be non-finite at this noise level.

    Arguments:
        denoiser: The denoiser.
        x_t: States, with shape :math:`(B, *)`.
        t: Their time, with shape :math:`()`.
        gradient: Whether the output must be differentiable.

    Raises:
        DenoiserError: If the output is no tensor, of another shape or dtype than `x_t`, mixes
            samples, is random, or lacks a needed gradient.

    Example:
        >>> x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
        >>> feasibly.checks.check_denoiser(denoiser, x, torch.tensor(0.5), gradient=True).shape
        torch.Size([4, 2])
    """

    def estimate(x_t: Tensor) -> Tensor:
        # with a gradient or without: some layers take other paths for each, which round otherwise
        with torch.set_grad_enabled(gradient):
            return Network(denoiser)(x_t.detach().requires_grad_(gradient), t)

    try:
        x_0 = estimate(x_t)
        with members.among(torch.tensor([0], device=x_t.device)):
            alone = estimate(x_t[:1])
    except DenoiserError:
        raise
    except Exception as error:
        if is_exhausted(error):
            raise DenoiserError(exhausted("The denoiser", error, len(x_t))) from error
        fix = (
            "Check `shape`, which is that of one sample, `dtype` and `device` against what the "
            "network expects"
        )
        raise DenoiserError(
            f"The denoiser failed on a state of shape {_of(x_t)} ({type(error).__name__}: "
            f"{error}). {explained(error) or fix}."
        ) from error
    if gradient and not x_0.requires_grad:
        raise DenoiserError(
            "The denoiser's output has no gradient with respect to x_t, which this method needs; "
            "remove torch.no_grad(), torch.inference_mode() and detach() from the denoiser."
        )

    def of_twins() -> Tensor:
        return estimate(x_t[:1].expand_as(x_t))[:1].detach()

    alpha_t, _ = Network(denoiser).schedule(t)
    if not _independent(x_0.detach(), alone.detach(), of_twins, x_t / alpha_t, 1e-2, 1e-3):
        raise DenoiserError(
            "The denoiser's estimate of a state depends on the other states in its batch, or "
            "changes from call to call; call .eval() on the network (dropout, batch "
            "normalisation)."
        )
    return x_0.detach()


@torch.enable_grad()
def check_constraint(constraint: Constraint, x: Tensor) -> Tensor:
    """Returns the residuals of clean samples, with shape (B, *), B > 1.

    Raises:
        ConstraintError: If the residual has a wrong shape, dtype or device, is not finite, not
            differentiable, has a gradient that is not its derivative, or mixes samples.

    Example:
        >>> x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
        >>> feasibly.checks.check_constraint(circle, x).shape
        torch.Size([4, 1])
    """
    name = repr(constraint)
    x = x.detach().requires_grad_()
    r = _residual(constraint, x)
    if not isinstance(r, Tensor) or r.ndim != 2 or r.shape[0] != x.shape[0]:
        got = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
        raise ConstraintError(
            f"{name}: residual(x) must have shape (B, m), one row per sample, but for x of shape "
            f"{tuple(x.shape)} it is {got}; reduce over the sample's axes only."
        )
    if not r.shape[1]:
        raise ConstraintError(f"{name}: the residual has no components; is what it selects empty?")
    if r.is_complex():
        raise ConstraintError(
            f"{name}: the residual is complex; return its real and imaginary parts, as "
            "torch.view_as_real(r).flatten(start_dim=1) has them."
        )
    if r.dtype == torch.bool:
        raise ConstraintError(f"{name}: the residual is a comparison. {COMPARISON}.")
    if r.dtype != x.dtype or r.device != x.device:
        raise ConstraintError(
            f"{name}: the residual is {r.dtype} on {r.device} for samples of {x.dtype} on "
            f"{x.device}; convert the constraint's tensors, e.g. y.to(x)."
        )
    _check_values(name, constraint, x, r)
    return r.detach()


def _residual(constraint: Constraint, x: Tensor) -> Tensor:
    """Evaluates a constraint; what its function raises is explained."""
    try:
        return constraint.residual(x)
    except ConstraintError:
        raise  # it says what is wrong
    except Exception as error:
        raise ConstraintError(
            f"{constraint!r} failed on samples of shape {_of(x)} ({type(error).__name__}: "
            f"{error}). {_advice(error)}."
        ) from error


def _advice(error: Exception) -> str:
    """Returns what to do about an error of a constraint's function."""
    if meant := explained(error):
        return meant
    if "numpy" in str(error):
        return IN_TORCH
    if "Boolean" in str(error):
        return COMPARISON
    if isinstance(error, IndexError):
        return "The first axis of x is the batch: write x[:, 5] for an element, and not x[5]"
    return "Check its shapes, and that its tensors are of that dtype and on that device"


def _of(x: Tensor) -> str:
    return f"{tuple(x.shape)}, {x.dtype} on {x.device}"


def _check_values(name: str, constraint: Constraint, x: Tensor, r: Tensor) -> None:
    if not r.isfinite().all():
        raise ConstraintError(
            f"{name}: {int((~r.isfinite()).sum())} of {r.numel()} residual components are not "
            "finite on the denoiser's own estimates; restate it without poles, logarithms or "
            "roots there (and without negative values, if it is a Scalar)."
        )
    if not r.requires_grad:
        raise ConstraintError(
            f"{name}: the residual does not depend differentiably on x; avoid detach(), .data, "
            "numpy, comparisons and rounding in it, or state it with constraints.BlackBox."
        )
    (g,) = torch.autograd.grad(r.square().sum(), x, allow_unused=True)
    if g is None or not g.isfinite().all():
        raise ConstraintError(
            f"{name}: the gradient of the squared residual is not finite; look for a square root "
            "or a norm at zero, and add a small constant inside it."
        )
    if r.count_nonzero() and not g.count_nonzero():
        raise ConstraintError(
            f"{name}: the residual is not zero but its gradient is. Comparisons, rounding and "
            "signs have no useful gradient: replace them by something smooth."
        )
    with torch.no_grad():
        if not torch.allclose(constraint.residual(x), r, rtol=1e-3, atol=1e-5):
            raise ConstraintError(
                f"{name}: the residual of the same samples changes from call to call; draw its "
                "random numbers once, outside of it."
            )
    # the last one too: a sum along the batch leaves the first as it is
    ids = members.current()
    for k in (0, len(x) - 1):
        place = k if ids is not None and len(ids) > 1 else 0  # one index stands for all
        at, row = torch.tensor([place], device=x.device), slice(k, k + 1)
        with members.among(at):
            alone = _residual(constraint, x[row])

        def of_twins(at: Tensor = at, row: slice = row) -> Tensor:
            with members.among(at.expand(len(x))):
                return constraint.residual(x[row].expand_as(x))[:1]

        same = alone.shape == r[row].shape
        if not same or not _independent(r[row], alone, of_twins, r, 1e-3, 1e-5):
            raise ConstraintError(
                f"{name}: a sample's residual depends on the other samples in its batch; reduce "
                "over the sample's axes only, and give observations without a batch axis. Where "
                "each sample has its own target, use constraints.EachMember."
            )
    at, epsilon = x.detach(), torch.finfo(torch.float32).eps
    # what another program returns has differences for derivatives already
    parts = (part for part in constraint.parts if not isinstance(part, BlackBox))
    if any(unlike_gradient(p.residual, at, LENGTH * at.std(), epsilon) for p in parts):
        raise ConstraintError(
            f"{name}: the gradient of the residual is not its derivative, because part of the "
            "residual is computed without gradients, or is rounded. Remove torch.no_grad(), "
            "detach(), numpy and rounding from it and its decoder, or state it with "
            "constraints.BlackBox."
        )


def _independent(
    batch: Tensor,
    alone: Tensor,
    of_twins: Callable[[], Tensor],
    scale: Tensor,
    rtol: float,
    atol: float,
) -> bool:
    """Whether the first row of a batch is the same alone, up to rounding.

    Half precision rounds by the size of the batch. Where the rows differ by no more than that,
    `of_twins` decides: the first row of a batch of that size whose rows are all the first.
    """
    first = batch[:1]
    if torch.allclose(alone, first, rtol=rtol, atol=atol, equal_nan=True):
        return True
    gap = (alone - first).nan_to_num(0.0, 0.0, 0.0)
    if gap.square().mean() > ROUNDING**2 * scale.square().mean():
        return False
    return torch.allclose(of_twins(), first, rtol=rtol, atol=atol, equal_nan=True)
