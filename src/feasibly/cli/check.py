"""`python -m feasibly check`: a denoiser and a constraint, before use."""

__all__ = ["check"]

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ..diagnosis import diagnose
from .load import load_constraint, load_denoiser


def check(
    denoiser: str,
    constraint: str | None = None,
    shape: tuple[int, ...] = (2,),
    data: Path | None = None,
    seed: int = 0,
) -> int:
    """Test a denoiser and a constraint before use.

    Exits with 1 if something is wrong.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), a prior's file, or module:function.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function.
        shape: The shape of one sample.
        data: Clean data to test the denoiser on, an .npy file of shape (N, *); without it the
            denoiser is tested on its own samples, which finds fewer mistakes.
        seed: The seed.
    """
    console = Console()
    clean = None if data is None else torch.from_numpy(np.load(data)).float()
    law = None if constraint is None else load_constraint(constraint)
    found = diagnose(load_denoiser(denoiser), law, shape, data=clean, seed=seed)

    table = Table("t", "alpha", "sigma", "denoising error", "must be below", "verdict")
    for level in found.levels:
        numbers = (level.t, level.alpha, level.sigma, level.error, 1.1 * level.limit)
        table.add_row(*(f"{v:.3g}" for v in numbers), level.verdict)
    console.print(table)
    if not found.monotone:
        console.print("The noise level sigma / alpha does not rise with t: is time reversed?")
    if found.violation is not None:
        low, median, high = found.violation
        words = (
            f"Residuals a sample: {found.residuals}. Violation of unconstrained samples: median "
            f"{median:.3g} (5 % {low:.3g}, 95 % {high:.3g})."
        )
        if found.suggested_tolerance is not None:
            words += f" Suggested tolerance: {found.suggested_tolerance:.1g}, a thousandth of the "
            words += "typical residual."
        console.print(words, highlight=False)
    console.print("Fit for use." if found.ok else "Not fit for use as it is.")
    return 0 if found.ok else 1
