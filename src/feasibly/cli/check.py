"""`python -m feasibly check`: a denoiser and a constraint, before use."""

__all__ = ["check"]

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..api import plan
from ..checks import Diagnosis, diagnose, self_test
from ..checks.diagnosis import PROJECTED, Cost
from ..denoisers import Adapter
from ..ensemble import estimate
from ..errors import DenoiserError
from ..samplers import Ancestral
from .load import load_constraint, load_denoiser
from .words import Shape, size

SAMPLES = 256
"""How many samples of its own a denoiser is tested on."""

REMOTE = 10
"""The distance, in standard deviations, beyond which a constraint is doubted."""


def check(
    denoiser: str,
    constraint: str | None = None,
    shape: Shape = (2,),
    data: Path | None = None,
    seed: int = 0,
) -> int:
    """Test a denoiser and a constraint before use.

    Prints what the denoiser assumes, its error at several noise levels against the variance of
    the data, what an evaluation takes, and how `sample` would sample. With data, it also says
    which assumption is wrong, if one is. Exits with 1 if something is wrong.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), a prior's file, the folder of a model of
            diffusers, or module:function for a function that returns a denoiser of yours, such
            as what feasibly.wrap returns.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function.
        shape: The shape of one sample.
        data: Clean data to test the denoiser on, an .npy file of shape (N, *); without it the
            denoiser is tested on its own samples, which finds fewer mistakes.
        seed: The seed.
    """
    console = Console()
    clean = None if data is None else load_data(data, shape)
    wanted = None if constraint is None else load_constraint(constraint)
    model = load_denoiser(denoiser)
    if isinstance(model, Adapter):
        console.print(repr(model), highlight=False, markup=False, soft_wrap=True)
    tested = own_samples(model, shape, seed) if clean is None else clean
    found = diagnose(model, wanted, tested, seed=seed)
    console.print(table(found))
    if not found.monotone:
        console.print("The noise level sigma / alpha does not rise with t: is time reversed?")
    if found.cost is not None:
        console.print(words(found.cost), highlight=False, soft_wrap=True)
    if found.violation is not None:
        low, median, high = found.violation
        text = (
            f"Residuals a sample: {found.residuals}. Violation of unconstrained samples: median "
            f"{median:.3g} (5 % {low:.3g}, 95 % {high:.3g})."
        )
        if found.projected is None:
            text = f"Observed values a sample: {found.residuals}, all with noise."
        if found.suggested_tolerance is not None:
            text += f" Suggested tolerance: {found.suggested_tolerance:.1g}, a thousandth of the "
            text += "typical residual."
        console.print(text, highlight=False)
        if found.projected is not None:
            console.print(possible(found, wanted), highlight=False, markup=False, soft_wrap=True)
        console.print(method(model, wanted, shape), highlight=False, soft_wrap=True)
    fault = mistake(model, clean)
    if fault:
        console.print(fault, highlight=False, markup=False, soft_wrap=True)
    fit = found.ok and not fault
    console.print("Fit for use." if fit else "Not fit for use as it is.")
    return 0 if fit else 1


def load_data(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Clean data from an .npy file."""
    try:
        found = torch.from_numpy(np.load(path)).float()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); give an .npy file.") from error
    if tuple(found.shape[1:]) != tuple(shape):
        raise ValueError(
            f"{path} has samples of shape {tuple(found.shape[1:])}, and --shape is {shape}; give "
            "the shape of one sample."
        )
    return found


def own_samples(model: Any, shape: tuple[int, ...], seed: int) -> Tensor:
    """Samples of the model itself, to test it on where there are no data."""
    # its last estimates: to denoise the last states would hide noise that is left in them
    return Ancestral(model, output="projected").sample(SAMPLES, shape, seed=seed).samples


def table(found: Diagnosis) -> Table:
    """The errors at every noise level, absolute and as a share of the data's variance."""
    shown = Table(
        "t", "alpha", "sigma", "denoising error", "must be below", "of the variance", "verdict"
    )
    for level in found.levels:
        numbers = (level.t, level.alpha, level.sigma, level.error, level.bound)
        share = f"{100 * level.error**2 / found.variance:.3g} %"
        shown.add_row(*(f"{v:.3g}" for v in numbers), share, level.verdict)
    return shown


def words(cost: Cost) -> str:
    """What an evaluation takes, in words."""
    kept = f"{size(cost.activations)}, {size(cost.states * cost.activations)} in all"
    return (
        f"An evaluation of {cost.states} states takes {1e3 * cost.forward:.3g} ms, with a "
        f"gradient {1e3 * cost.gradient:.3g} ms. The parameters take {size(cost.parameters)}, and "
        f"for a gradient a state keeps {kept}."
    )


def possible(found: Diagnosis, constraint: Any) -> str:
    """What a projection of samples on the constraint came to."""
    tried = (
        f"A direct projection brings {found.projected} of the first {PROJECTED} samples within it"
    )
    if found.projected:
        far = (
            f" But a residual is {found.remoteness:.3g} of its standard deviations from zero in "
            "samples: if it is no sum of many, no sample of this model comes near, and sampling "
            "will fail. Sample a few members to see."
        )
        return f"{tried}.{far if (found.remoteness or 0) > REMOTE else ''}"
    return (
        f"{tried}; the least violation is {found.nearest:.3g}, the tolerance "
        f"{constraint.tolerance:.3g}. The constraint may be impossible, or its tolerance below "
        "what can be computed in this precision."
    )


def method(model: Any, constraint: Any, shape: tuple[int, ...]) -> str:
    """How the constraint would be sampled, and what memory that takes, in words."""
    chosen = plan(model, constraint, shape)
    found = estimate(chosen.attempts, shape)
    return (
        f"{chosen.reason} This takes {size(found.member)} of memory a member at its peak, and "
        f"{size(found.fixed)} besides."
    )


def mistake(model: Any, data: Tensor | None) -> str:
    """What is wrong with the model on these data; nothing without data."""
    try:
        if data is not None:
            self_test(model, data)
    except DenoiserError as error:
        return str(error)
    return ""
