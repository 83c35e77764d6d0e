"""Whether a denoiser and a constraint are fit for use."""

__all__ = ["Check", "check"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .api import plan
from .arguments import shape_of, typed, whole
from .checks import Diagnosis, diagnose, self_test
from .checks.diagnosis import PROJECTED
from .checks.inputs import as_data, check_parts
from .constraints.base import Constraint
from .ensemble import Footprint, estimate
from .errors import DenoiserError
from .machine import size
from .network import own_mode
from .problem import Problem
from .remarks import level_remarks
from .result import aligned
from .run import run
from .samplers import Ancestral

SAMPLES = 256
"""How many samples of its own a denoiser is tested on."""

REMOTE = 10
"""The distance, in standard deviations, beyond which a constraint is doubted."""


@dataclass(frozen=True, repr=False)
class Check:
    """What :func:`check` found, which printing it says in words.

    Attributes:
        diagnosis: The denoising errors, and how far samples are from the constraint.
        mistake: What is wrong with the denoiser on the data, in words; empty if no mistake was
            found, or without data.
        tolerance: The constraint's tolerance; None without a constraint.
        reason: How :func:`feasibly.sample` would sample, and why; empty without a constraint.
        remarks: What it would warn of before sampling, in sentences.
        footprint: The memory that members take; None without a constraint.

    Example:
        >>> found = feasibly.check(denoiser, shape=(2,))
        >>> found.ok, found.verdict, found.mistake
        (True, 'Fit for use.', '')
    """

    diagnosis: Diagnosis
    mistake: str = ""
    tolerance: float | None = None
    reason: str = ""
    remarks: tuple[str, ...] = ()
    footprint: Footprint | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against sampling."""
        return self.diagnosis.ok and not self.mistake

    @property
    def verdict(self) -> str:
        """Whether denoiser and constraint are fit for use, in a sentence."""
        return "Fit for use." if self.ok else "Not fit for use as it is."

    def table(self) -> list[dict[str, str]]:
        """Returns the denoising errors, absolute and as a share of the data's variance, a row for
        each noise level, highest first."""
        return [
            {
                "t": f"{level.t:.3g}",
                "alpha": f"{level.alpha:.3g}",
                "sigma": f"{level.sigma:.3g}",
                "denoising error": f"{level.error:.3g}",
                "must be below": f"{level.bound:.3g}",
                "of the variance": f"{100 * level.error**2 / self.diagnosis.variance:.3g} %",
                "verdict": level.verdict,
            }
            for level in self.diagnosis.levels
        ]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found besides, in sentences; the last is the verdict."""
        found, said = self.diagnosis, []
        if not found.monotone:
            said.append("The noise level sigma / alpha does not rise with t: is time reversed?")
        said += found.misfits
        if found.violation is not None:
            said.append(_violation(found, *found.violation))
        if found.projected is not None:
            said.append(self._possible())
        if self.footprint is not None:
            said.append(
                f"{self.reason} This takes {size(self.footprint.member)} of memory per sample at "
                f"its peak, and {size(self.footprint.fixed)} in addition."
            )
        parts = (*said, *self.remarks, found.gradient, self.mistake, self.verdict)
        return tuple(filter(None, dict.fromkeys(parts)))  # each once

    def __str__(self) -> str:
        lines = aligned(self.table())
        return "\n".join(line.rstrip() for line in (*lines, *self.sentences))

    def __repr__(self) -> str:
        levels = self.diagnosis.levels
        right = sum(level.verdict == "ok" for level in levels)
        fit = "fit for use" if self.ok else "not fit for use"
        return f"<Check: {fit}, {right} of {len(levels)} noise levels ok>"

    def _possible(self) -> str:
        """What a projection of samples on the constraint came to."""
        found = self.diagnosis
        share = f"{found.projected} of the first {PROJECTED} samples"
        tried = f"A direct projection makes {share} feasible"
        if not found.projected:
            return (
                f"{tried}; the smallest violation is {found.nearest:.3g}, the tolerance "
                f"{self.tolerance:.3g}. The constraint may be impossible to satisfy, or its "
                "tolerance too small for this precision."
            )
        if (found.remoteness or 0) <= REMOTE:
            return f"{tried}."
        return (
            f"{tried}. But in samples a residual component is {found.remoteness:.3g} of its "
            "standard deviations from zero: unless it is a sum of many terms, no sample of this "
            "model comes near, and sampling will fail. Draw a few samples to see."
        )


@typed
@own_mode()
def check(
    denoiser: Any,
    constraint: Constraint | None = None,
    shape: Sequence[int] | None = None,
    *,
    data: Tensor | np.ndarray | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Check:
    r"""Tests a denoiser and a constraint before use.

    It finds the denoiser's error at several noise levels, how far samples are from the
    constraint, and how :func:`feasibly.sample` would sample. With data, it also says which
    assumption is wrong, if one is.

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint; None to test the denoiser alone.
        shape: The shape of one sample; None for that of the data.
        data: Clean data to test the denoiser on, with shape (N, \*). Row i is denoised under the
            conditions of member i, if the denoiser has any. Without data the denoiser is tested on
            its own samples, which finds fewer mistakes.
        seed: The seed.
        dtype: The type of the samples, float32 or float64.

    Returns:
        The findings: print them, or read their `ok`.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If the denoiser's own samples are not finite, or a step fails.
        ValueError: If an argument is not right.

    Example:
        >>> total = feasibly.Linear([[1.0, 1.0]], [1.0], atol=1e-3)
        >>> found = feasibly.check(denoiser, total, (2,))
        >>> found.ok, found.mistake
        (True, '')
    """
    check_parts("check", denoiser, constraint)
    whole("seed", seed, 0, 2**32 - 1, of="check")
    if data is None:
        if shape is None:
            raise ValueError("check(...) needs the shape of one sample, or data; give shape=...")
        tested = _own(denoiser, shape_of(shape), seed, dtype)
    else:
        tested = as_data(data).to(dtype)
        if shape is not None and shape_of(shape) != tuple(tested.shape[1:]):
            raise ValueError(
                f"check(data=...) has samples of shape {tuple(tested.shape[1:])}, but shape is "
                f"{tuple(shape)}; give the shape of one sample."
            )
    found = diagnose(denoiser, constraint, tested, seed=seed)
    mistake = "" if data is None else _mistake(denoiser, tested)
    if constraint is None or found.gradient:  # without it there is no plan
        return Check(found, mistake, None if constraint is None else constraint.tolerance)
    of_one = tuple(tested.shape[1:])
    chosen = plan(denoiser, constraint, of_one, dtype=dtype)
    taken = estimate(chosen.kernels[-1])
    # what the diagnosis has said of noise levels, and of other samples
    of_levels: tuple[str, ...] = ()
    if chosen.monitor is not None:
        of_levels = tuple(level_remarks(chosen.monitor.survey))
    remarks = tuple(one for one in chosen.remarks if not (found.misfits and one in of_levels))
    return Check(found, mistake, constraint.tolerance, chosen.reason, remarks, taken)


def _own(denoiser: Any, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Samples of the denoiser itself, to test it on where there are no data."""
    # its last estimates: to denoise the last states would hide noise that is left in them
    problem = Problem(denoiser, None, shape, dtype=dtype)
    return run([Ancestral(output="projected").bind(problem)], SAMPLES, seed=seed).samples


def _mistake(denoiser: Any, data: Tensor) -> str:
    """What is wrong with the denoiser on these data."""
    try:
        self_test(denoiser, data)
    except DenoiserError as error:
        return str(error)
    return ""


def _violation(found: Diagnosis, low: float, median: float, high: float) -> str:
    """How far unconstrained samples are from the constraint."""
    if found.projected is None:
        return f"Observed values per sample: {found.residuals}, all with noise."
    suggested = ""
    if found.suggested_tolerance is not None:
        suggested = (
            f" Suggested tolerance: {found.suggested_tolerance:.1g}, a thousandth of the typical "
            "residual."
        )
    return (
        f"Residual components per sample: {found.residuals}. Violation of unconditional samples: "
        f"median {median:.3g} (5 % {low:.3g}, 95 % {high:.3g}).{suggested}"
    )
