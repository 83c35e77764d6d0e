"""What a run says of its samples, in sentences."""

__all__ = [
    "RATE",
    "TRIED",
    "UNTESTED",
    "advice",
    "complaints",
    "counts",
    "describe",
    "doubts",
    "failure",
    "implausible",
    "misfit",
    "misfits",
    "noisy_parts",
    "shortfall",
    "warn",
]

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .constraints.base import Constraint
from .errors import CalibrationWarning, InfeasibleWarning, SamplingError, advise, safe
from .machine import exhausted, is_exhausted
from .members import calling
from .minimizers import LBFGS
from .network import explained
from .progress import current
from .randomness import MemberNoise
from .result import RELIABLE, Result, Weights
from .samplers.base import Method, described

RATE = 0.01
"""The share of unconditional samples that a monitor takes for implausible, at most and on average
over surveys."""

TRIED = 4
"""The number of infeasible samples on which it is tried why they are."""

ADVICE = "Check what the network returns there."

SLOW = 0.5
"""A projection that lowers the violation to this share or less is on its way."""

MISFIT = 1.5
"""Samples whose chi-square a value is larger, beyond chance, are said to fit badly."""

ENOUGH = 100
"""The effective sample size of weights below which a run of twice as many samples warns."""

LARGEST = 1e6
"""A k-hat that is larger is called infinite."""

NOTED = 0.1
"""The share of samples with unreliable weights above which a run warns."""

UNTRIED = (
    ". If that does not help, the kind, schedule or time that was stated for the network may be "
    "wrong, which clean samples tell: pass them as feasibly.wrap(..., data=)"
)

UNTESTED = (
    "Samples whose conditions differ from those of sample 0 were not tested for plausibility, "
    "because the unconditional samples were drawn under the conditions of sample 0. The method "
    "was chosen for these, too."
)


def describe(kernels: Sequence[Method]) -> str:
    """Returns in words which methods run, one after the other."""
    counted: list[tuple[str, int]] = []
    for words in map(safe, map(described, kernels)):  # a constraint may quote names of a table
        if counted and counted[-1][0] == words:
            counted[-1] = words, counted[-1][1] + 1
        else:
            counted.append((words, 1))
    return ", then ".join(
        words if times == 1 else f"up to {times} times {words}" for words, times in counted
    )


def failure(where: str, error: Exception, states: int) -> SamplingError:
    """Returns the error of a network that failed somewhere in a run, with so many states in a
    batch."""
    if is_exhausted(error):
        return SamplingError(exhausted(where.rstrip(","), error, states))
    if why := explained(error):
        return SamplingError(f"{where} failed. {why} ({error}).")
    fix = "test the denoiser and the constraint with feasibly.check or `python -m feasibly check`"
    if isinstance(error, OSError):  # of a disk or a connection
        fix = "the disk or the connection failed, not the method, so run it again once that works"
    return SamplingError(f"{where} failed ({type(error).__name__}: {error}); {fix}.")


def shortfall(result: Result, kernel: Method) -> str:
    """Says how many samples are infeasible, why as far as that shows, and what helps; nothing if
    there is nothing to say.

    Of a method that does not land on the constraint, some infeasible samples are no news, and of
    one that gives residuals noise on purpose, none are.
    """
    bad, said = ~result.feasible, non_finite(result, kernel)
    some, all_of = int(bad.sum()), len(result.members)
    if kernel.constraint is None or not kernel.enforces or kernel.noise:
        return said
    bad &= result.finite
    if not bad.any() or kernel.constraint.exact is None or (some < all_of and not kernel.lands):
        return said
    missed, rows = result.ratio[bad], bad.nonzero().flatten()[:TRIED].tolist()
    ids = [result.members[i] for i in rows]
    why = advice(kernel, result.samples[rows], ids, none=some == all_of)
    if some < all_of:
        number = len(missed)
        verb = "does" if number == 1 else "do"
        which = f"{number} of {all_of} samples {verb} not satisfy the constraint"
        span = f"residual / limit {missed.min():.3g} to {missed.max():.3g}"
        return f"{said} {which} ({span}); `result.feasible` shows which. {why}".strip()
    best = f"residual / limit at best {missed.min():.3g}"
    who = f"None of the {all_of} samples satisfies"
    if all_of == 1:
        who = "The sample does not satisfy"
    none = f"{who} the constraint ({best})."
    return f"{said} {none} {why}".strip()


def non_finite(result: Result, kernel: Method) -> str:
    """Says how many samples are not finite, and where the first became so; empty if none is."""
    lost = int((~result.finite).sum())
    if not lost:
        return ""
    at = next((one for one in result.trace if one.failed), None)
    where = "after the last step"
    if at is not None:
        where = f"the first by step {at.step} of {at.steps}, at sigma = {at.sigma:.3g}"
    return (
        f"{lost} of {len(result.members)} samples became non-finite, {where}; `result.finite` "
        f"shows which. {ADVICE if kernel.lands else kernel.advice}"
    )


@torch.no_grad()
def advice(kernel: Method, x: Tensor, ids: Sequence[int], *, none: bool) -> str:
    """Says why samples are infeasible, and what helps: longer and freer projections are tried on
    them, and whether the tolerance is below rounding.

    Arguments:
        kernel: The kernel.
        x: A few infeasible samples, which are finite, with shape (B, *).
        ids: The indices of the samples.
        none: Whether no sample of the run is feasible.
    """
    name = "last" if getattr(kernel, "last", None) else "minimize"
    search, constraint = getattr(kernel, name, None), kernel.constraint.exact
    if search is None or constraint is None or not len(x):
        return kernel.advice
    goal, unit, nearest = constraint.tolerance, math.sqrt(x[0].numel()), x
    own = unit * (kernel.noise_level(torch.tensor(0.0)) if kernel.space == "x_t" else 1.0)
    unbounded: dict[str, Any] = {"max_step": None, "max_distance": None}
    trials = (
        (replace(search, steps=4 * search.steps), own),
        (replace(search, **unbounded), unit),
        (LBFGS(steps=100, **unbounded), unit),
    )
    try:
        with calling(ids, x.device):
            before = best = constraint.violation(x).median().item()
            for longer, length in trials:
                found = longer(
                    lambda z: (constraint.residual(z), z),
                    x,
                    kernel.stop,
                    length,
                    violation=constraint.violation_of,
                )
                if (reached := constraint.violation(found.x).median().item()) <= goal:
                    return (
                        "The last projection stops too early; it converges with "
                        f"{name}={longer!r} as an option of {type(kernel).__name__}."
                    )
                if reached <= best:
                    best, nearest = reached, found.x
            signs = MemberNoise(0, ids, x.shape[1:], dtype=x.dtype)().to(x).sign()
            moved = nearest * (1 + torch.finfo(x.dtype).eps * signs)
            rounding = constraint.residual(moved) - constraint.residual(nearest)
    except Exception:  # the advice must not cost the samples
        return kernel.advice
    if (least := constraint.violation_of(rounding).median().item()) > goal:
        fix = " or sample with dtype=torch.float64" if x.dtype == torch.float32 else ""
        return (
            f"Rounding alone changes the violation by {least:.1g}, which is more than the "
            f"tolerance of {goal:.1g}: raise the tolerance{fix}."
        )
    if best < SLOW * before:
        return (
            f"Projections of these samples converge slowly, from {before:.2g} to {best:.2g} in a "
            "hundred iterations: rescale the components of the residual to similar sizes, or "
            "raise the tolerance."
        )
    unless = ""
    if none:
        unless = ", unless the constraint is impossible, or far from the model's distribution"
    return (
        "Projections of these samples end in a local minimum of the violation, so more iterations "
        f"do not help. Allow more `attempts`{unless}."
    )


def implausible(some: int, all_of: int, attempts: int = 1) -> str:
    """Says that so many samples are implausible, if chance does not explain them; else nothing.

    The rate of one reference varies by about itself, and each attempt has its own samples.
    """
    expected = RATE**attempts * all_of
    if some <= expected + 3 * math.sqrt(expected + (1.1 * expected) ** 2) + 1:
        return ""
    verb = "is" if some == 1 else "are"
    return (
        f"{some} of {all_of} samples {verb} implausible: to the denoiser they do not look like "
        "the model's data. Perhaps hardly any data satisfy the constraint, or the method has left "
        "the data distribution; compare with another method."
    )


def complaints(kernels: Sequence[Method], statistics: Mapping[str, float]) -> Iterator[str]:
    """Yields what kernels warn of, each method once, given the summed statistics of a run."""
    if statistics:
        for kernel in {type(kernel): kernel for kernel in kernels}.values():
            yield from kernel.warnings(statistics)


def doubts(populations: Sequence[Weights], fix: str = "") -> Iterator[str]:
    """Yields what a user must know of the importance weights that samples were drawn by.

    Arguments:
        populations: The weights.
        fix: How to take more particles; empty for four times as many by an option.
    """
    if not populations:
        return
    poor = [one for one in populations if one.pareto_k > RELIABLE]
    some, size = (sum(len(one.members) for one in group) for group in (poor, populations))
    worst = max(populations, key=lambda one: one.pareto_k)
    fix = fix or f"method=SMC(particles={4 * worst.particles})"
    ess = sum(one.ess for one in populations)
    if some > NOTED * size:
        k_hat = "infinite" if worst.pareto_k > LARGEST else f"{worst.pareto_k:.2g}"
        yield (
            f"The importance weights are not reliable: k-hat is {k_hat}, and should be at most "
            f"{RELIABLE}. Therefore {some} of {size} samples were drawn without sharing weights. "
            "Mode weights, means and spreads may be wrong, even where samples are feasible and "
            f"plausible. Use more particles: {fix}."
        )
    elif ess < min(ENOUGH, size / 2):
        yield (
            "A few trajectories carry most of the importance weight: the effective sample size is "
            f"{ess:.0f} for {size} samples. From this alone, mode weights have a standard error "
            f"of about {0.5 / math.sqrt(ess):.1g}, or twice that if a mode is rare. Use more "
            f"particles: {fix}."
        )


def noisy_parts(constraint: Constraint | None) -> dict[str, Constraint]:
    """Returns the parts of a constraint that are observed with errors, by name."""
    found: dict[str, Constraint] = {}
    for k, part in enumerate([] if constraint is None else constraint.parts):
        if part.noisy is not None:
            name = safe(repr(part))
            found[f"{name}, part {k}" if name in found else name] = part.noisy
    return found


@torch.no_grad()
def counts(constraint: Constraint | None, x: Tensor, member: int) -> dict[str, int]:
    """Returns how many values with errors each part of a constraint has, by name, given a sample
    of a sample, with shape (1, *)."""
    with calling([member], x.device):
        return {k: part.residual(x).shape[1] for k, part in noisy_parts(constraint).items()}


def misfit(name: str, fit: float, values: int) -> str:
    """Says that samples fit an observation worse than its errors allow; empty if they do not.

    Over many values, chi-square a value is one for posterior samples of a right model, on average
    over observations, with a standard deviation of some (2 / m)^(1/2).

    Arguments:
        name: The observation.
        fit: Chi-square a value, on average over samples.
        values: The number of its values.
    """
    if not fit > MISFIT + 5 * math.sqrt(2 / values):
        return ""
    return (
        f"The samples fit {name} worse than its noise allows: chi-square per observed value is "
        f"{fit:.2g} on average, and should be about one. The method may have missed the "
        "observation, the noise may be larger than stated, or the model may hardly ever produce "
        "such values."
    )


def misfits(result: Result, constraint: Constraint | None) -> Iterator[str]:
    """Yields which observations with noise samples fit worse than errors allow."""
    found = counts(constraint, result.samples[:1].nan_to_num(), result.members[0])
    for (name, m), fit in zip(found.items(), result.chi_square.values(), strict=True):
        if words := misfit(name, fit.nanmean().item(), m):
            yield words


def warn(result: Result, kernels: Sequence[Method]) -> None:
    """Warns the caller of :func:`run` of infeasible samples and of what kernels complain of."""
    current().erase()
    particles = max(getattr(kernel, "particles", 0) for kernel in kernels)
    more = f"method=SMC(particles={4 * particles}), which starts with four times as many"
    wrapped = kernels[-1].denoiser.denoiser
    if hasattr(wrapped, "predicts") and getattr(wrapped, "data_moments", None) is None:
        more += UNTRIED
    doubted = doubts(result.first_populations, more)
    for sentence in (*complaints(kernels, result.statistics), *doubted):
        result.warnings.append(sentence)
        advise(sentence, CalibrationWarning)
    if result.oddness is not None and result.oddness.isnan().any():
        result.warnings.append(UNTESTED)
    for sentence in misfits(result, kernels[-1].constraint):
        result.warnings.append(sentence)
        advise(sentence, CalibrationWarning)
    plausible = result.plausible
    if plausible is not None and (
        suspicion := implausible(
            int((~plausible & result.finite).sum()), len(plausible), len(kernels)
        )
    ):
        result.warnings.append(suspicion)
        advise(suspicion, CalibrationWarning)
    if missed := shortfall(result, kernels[-1]):
        result.warnings.append(missed)
        advise(missed, InfeasibleWarning)
