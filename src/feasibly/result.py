"""What a run of a sampler leaves behind."""

__all__ = [
    "DIAGNOSTICS",
    "RELIABLE",
    "Result",
    "Snapshot",
    "Weights",
    "aligned",
    "describe_fit",
    "in_words",
    "without_settings",
]

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .arguments import fit_fields, members_of
from .errors import safe, several
from .files import load_tensors, save_tensors
from .network import Evaluations


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after a diffusion step.

    Attributes:
        attempt: The attempt, 0 for the first.
        members: The number of members in it.
        step: The number of steps made.
        steps: The number of steps of a run.
        sigma: The noise level reached, relative to the signal.
        forward: Forward evaluations so far.
        backward: Backward evaluations so far.
        median: The median violation of the clean estimates; NaN without a constraint.
        worst: Their largest violation.
        feasible: The share of feasible clean estimates.
        failed: The number of samples that are not finite.
        seconds: The time since the start.

    Example:
        >>> seen = []
        >>> method = feasibly.Ancestral(steps=4)
        >>> result = feasibly.sample(denoiser, None, 2, (2,), method=method, callback=seen.append)
        >>> [(snapshot.step, snapshot.steps, snapshot.failed) for snapshot in seen]
        [(1, 4, 0), (2, 4, 0), (3, 4, 0), (4, 4, 0)]
    """

    attempt: int
    members: int
    step: int
    steps: int
    sigma: float
    forward: int
    backward: int
    median: float
    worst: float
    feasible: float
    failed: int
    seconds: float


RELIABLE = 0.7
"""The k-hat above which importance weights are not reliable (Vehtari et al., 2024)."""


DIAGNOSTICS = ("pareto_k", "ess", "log_evidence")
"""What results and stores say of the importance weights of a population, by its name there."""


@dataclass(frozen=True)
class Weights:
    r"""The importance weights of a population, by which its samples were drawn.

    Attributes:
        members: The indices of its samples.
        particles: The number of particles in each trajectory.
        pareto_k: The shape k-hat of the tail of the trajectories' mean weights, by Pareto-smoothed
            importance sampling. Above 0.7 they are not reliable, and were not shared.
        ess: Their effective sample size, in units of samples.
        log_evidence: The logarithm of their mean, an estimate of :math:`\log p(r = 0)`.
        error: Its standard error.
    """

    members: list[int]
    particles: int
    pareto_k: float
    ess: float
    log_evidence: float
    error: float


@dataclass(repr=False)
class Result:
    """An ensemble of samples, and how it came about.

    Attributes:
        samples: The samples, with shape :math:`(B, *)`; NaN for samples that failed.
        violation: The violation :math:`c(x)` of the samples, with shape :math:`(B)`; infinite for
            samples that failed.
        feasible: Which samples satisfy the constraint, with shape :math:`(B)`.
        members: The index of each member; with `seed` it determines the member's noise.
        seed: The seed of the ensemble.
        tolerance: The constraint's tolerance.
        evaluations: The network evaluations.
        trace: One snapshot a step, attempt after attempt and chunk after chunk.
        seconds: The duration of the run.
        method: What ran.
        reason: Why this method, in a sentence; empty if somebody named it.
        warnings: What a user must know of the run, in sentences.
        statistics: What samplers counted on the way, summed over the run.
        oddness: The denoising error of each sample, in units of what unconditional samples allow,
            with shape :math:`(B)`; see :mod:`feasibly.monitor`. NaN for samples with conditions
            of their own, which are not tested. None if the run had no monitor.
        relative: What :attr:`ratio` is, where the constraint has several parts; else None.
        chi_square: For each observation with noise, by its name, the mean square of its misfits in
            units of their errors, with shape :math:`(B)`: about one for samples that fit, NaN for
            samples that failed.
        populations: The importance weights of each population of samples that were drawn by them.

    Example:
        >>> method = feasibly.PPR(steps=8)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, seed=1)
        >>> result.samples.shape, result.members, result.seed
        (torch.Size([4, 2]), [0, 1, 2, 3], 1)
        >>> bool(result.feasible.all()), bool((result.ratio <= 1).all())
        (True, True)
    """

    samples: Tensor
    violation: Tensor
    feasible: Tensor
    members: list[int]
    seed: int
    tolerance: float
    evaluations: Evaluations
    trace: list[Snapshot] = field(default_factory=list)
    seconds: float = 0.0
    method: str = ""
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    oddness: Tensor | None = None
    relative: Tensor | None = None
    chi_square: dict[str, Tensor] = field(default_factory=dict)
    populations: list[Weights] = field(default_factory=list)

    @property
    def plausible(self) -> Tensor | None:
        """Which samples look like data to the denoiser, with shape :math:`(B)`; None if the run
        had no monitor. One in a hundred unconditional samples does not."""
        return None if self.oddness is None else ~(self.oddness > 1)

    @property
    def pareto_k(self) -> float:
        """The largest k-hat of importance weights; NaN if samples were not drawn by weights."""
        return max((one.pareto_k for one in self.populations), default=math.nan)

    @property
    def ess(self) -> float:
        """The effective sample size of the weights of all populations; that of as many independent
        samples if there are no weights."""
        weighted = {i for one in self.first_populations for i in one.members}
        return sum(one.ess for one in self.first_populations) + len(set(self.members) - weighted)

    @property
    def first_populations(self) -> list[Weights]:
        """The populations of which no sample was drawn before: those of a later attempt are drawn
        again."""
        found: list[Weights] = []
        known: set[int] = set()
        for one in self.populations:
            found += [] if known & set(one.members) else [one]
            known |= set(one.members)
        return found

    @property
    def log_evidence(self) -> tuple[float, float]:
        r"""An estimate of :math:`\log p(r = 0)`, and its standard error; NaN without weights.

        It is comparable between runs with one constraint: it lacks half of :math:`\log 2 \pi` for
        each equality, and is that of the rescaled residual if the residual was rescaled.
        """
        found = self.first_populations
        if not found:
            return math.nan, math.nan
        size = torch.tensor([float(len(one.members)) for one in found], dtype=torch.float64)
        log_z = torch.tensor([one.log_evidence for one in found], dtype=torch.float64)
        total = (log_z + (size / size.sum()).log()).logsumexp(dim=0)
        parts = (log_z - total).exp() * size / size.sum()
        error = parts * torch.tensor([one.error for one in found], dtype=torch.float64)
        return total.item(), error.square().sum().sqrt().item()

    def standard_error(self, statistic: Callable[[Tensor], Tensor]) -> Tensor:
        r"""Returns the standard error of the mean of a statistic, from the spread between
        populations.

        A single population has that of as many independent samples as its effective sample size.

        Arguments:
            statistic: A function of samples with shape (B, \*), which returns values with shape
                (B) or (B, k).
        """
        values, groups = self._by_population(statistic)
        if len(groups) < 2:
            return values.std(dim=0) / math.sqrt(self.ess)
        means = torch.stack([values[rows].mean(dim=0) for rows in groups])
        size = torch.tensor([float(len(rows)) for rows in groups]).to(means)
        w = (size / size.sum()).reshape(-1, *[1] * (means.ndim - 1))
        apart = means - (w * means).sum(dim=0)
        return ((w * apart.square()).sum(dim=0) / (len(groups) - 1)).sqrt()

    def rhat(self, statistic: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the R-hat of a statistic between populations, near 1 if they agree; NaN for
        fewer than two.

        References:
            | Inference from Iterative Simulation Using Multiple Sequences (Gelman & Rubin, 1992)
            | https://doi.org/10.1214/ss/1177011136

        Arguments:
            statistic: A function of samples; see :meth:`standard_error`.
        """
        values, groups = self._by_population(statistic)
        if len(groups) < 2:
            return torch.full_like(values[0], math.nan)
        size = sum(map(len, groups)) / len(groups)
        within = torch.stack([values[rows].var(dim=0) for rows in groups]).mean(dim=0)
        between = torch.stack([values[rows].mean(dim=0) for rows in groups]).var(dim=0)
        return ((size - 1) / size + between / within).sqrt()

    def _by_population(self, statistic: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Returns the values of a statistic at the finite samples, and the rows of each
        population. A sample that was drawn again counts as of the first one."""
        good = self.finite
        values = statistic(self.samples[good]).double()
        first = {i: k for k, one in enumerate(self.first_populations) for i in one.members}
        ids = [i for i, fine in zip(self.members, good.tolist(), strict=True) if fine]
        of = torch.tensor([first.get(i, -1) for i in ids])
        groups = [(of == k).nonzero().flatten() for k in sorted(set(of.tolist()))]
        return values, [rows for rows in groups if len(rows) > 1]

    @property
    def settled(self) -> Tensor:
        """Which samples no further attempt samples again, with shape :math:`(B)`: those that are
        feasible and not implausible."""
        return self.feasible if self.plausible is None else self.feasible & self.plausible

    @property
    def finite(self) -> Tensor:
        r"""Which samples have not failed, with shape :math:`(B)`."""
        return self.samples.flatten(start_dim=1).isfinite().all(dim=1)

    @property
    def overhead(self) -> float:
        """The share of the run's time that was not spent in the network."""
        return 1 - self.evaluations.seconds / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return self.summary(settings=False)

    def __repr__(self) -> str:
        shape = tuple(self.samples.shape)
        return f"<Result: {int(self.feasible.sum())} feasible samples, samples of shape {shape}>"

    @property
    def ratio(self) -> Tensor:
        r"""How large each residual is in units of what was asked, with shape (B); at most 1 where
        a sample is feasible. See :meth:`Constraint.ratio`."""
        if self.relative is None:
            return (self.violation / self.tolerance).sqrt()
        return self.relative

    def summary(self, settings: bool = True) -> str:
        """Returns what ran and why, how many samples are feasible and plausible, the cost, and the
        warnings. Residuals are in units of what was asked; see :attr:`ratio`.

        Arguments:
            settings: Whether the methods have all their settings, or their names alone.
        """
        finite, quantiles = self.ratio[self.finite], "no finite sample"
        if finite.numel():
            quantiles = f"median {finite.median():.2g}, worst {finite.max():.2g}"
        exact = f"feasible (residual / limit: {quantiles})"
        if self.chi_square and math.isinf(self.tolerance):  # all is observed with noise
            exact = "finite"
        reason = f"{self.reason}\n" if self.reason else ""
        fit = "".join(f"{describe_fit(name, value)}\n" for name, value in self.chi_square.items())
        plausible = ""
        if self.oddness is not None:
            tested = int((~self.oddness.isnan()).sum())
            plausible = f"{int((self.oddness <= 1).sum())} of {tested} samples plausible\n"
        first = [  # of each chunk
            two
            for one, two in pairwise(self.trace)
            if two.attempt == 1 and (one.attempt != 1 or two.step <= one.step)
        ]
        weights = ""
        if self.populations:
            ess = sum(one.ess for one in self.first_populations)
            most = max(one.particles for one in self.populations)
            poor = {i for one in self.populations if one.pareto_k > RELIABLE for i in one.members}
            where = f" (above {RELIABLE} for {several(len(poor), 'sample')})" if poor else ""
            weights = (
                f"importance weights: k-hat {self.pareto_k:.2g}{where}, "
                f"effective sample size {ess:.0f}, "
                f"up to {several(most, 'particle')} per trajectory\n"
            )
        again = ""
        if first:
            number = sum(one.members for one in first)
            again = f"{number} of {len(self.members)} samples took more than one attempt\n"
        warned = "".join(f"\nWarning: {one}" for one in self.warnings)
        taken = (self.evaluations.member_forward, self.evaluations.member_backward)
        forward, backward = (total / len(self.members) for total in taken)
        return (
            f"{in_words(self.method if settings else without_settings(self.method))}\n{reason}"
            f"{int(self.feasible.sum())} of {len(self.members)} samples {exact}\n"
            f"{fit}{plausible}{weights}{again}"
            f"{forward:.0f} forward and {backward:.0f} backward network evaluations per sample, "
            f"{self.seconds:.1f} s, {self.overhead:.0%} of it outside the network\n"
            f"seed {self.seed}, samples {self.members[0]} to {self.members[-1]}"
            f"{warned}"
        )

    def save(self, path: Path | str) -> None:
        """Writes samples, violations and statistics to a file, whose name ends in
        `.safetensors`."""
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"{path} must end in .safetensors, the only format that is written.")
        tensors = {k: getattr(self, k).contiguous() for k in ("samples", "violation", "feasible")}
        for name in ("oddness", "relative"):
            if (value := getattr(self, name)) is not None:
                tensors[name] = value.contiguous()
        tensors |= {f"chi_square {k}": v.contiguous() for k, v in self.chi_square.items()}
        names = ("members", "seed", "tolerance", "seconds", "method")
        names += ("reason", "warnings", "statistics")
        rest = {k: getattr(self, k) for k in names}
        rest["evaluations"] = asdict(self.evaluations)
        for name in ("trace", "populations"):
            rest[name] = [asdict(one) for one in getattr(self, name)]
        save_tensors(tensors, path, rest)

    def to_xarray(self, dims: Sequence[str] | None = None) -> Any:
        """Returns samples and what is known of each sample as an `xarray.Dataset`.

        It has `chi_square` for each `observation` with noise, and `pareto_k`, `ess` and
        `log_evidence` for each `population` with importance weights.

        Arguments:
            dims: The names of a sample's axes; `axis_0` and so on by default.

        Raises:
            ImportError: If xarray is not installed.
            ValueError: If there are not as many names as axes.
        """
        import xarray

        axes = self.samples.ndim - 1
        names = tuple(f"axis_{k}" for k in range(axes)) if dims is None else tuple(dims)
        if len(names) != axes:
            raise ValueError(
                f"to_xarray(dims=...) needs a name for each axis of a sample: got {len(names)}, "
                f"and there are {axes}."
            )
        found: dict[str, Any] = {"samples": (("member", *names), self.samples.cpu().numpy())}
        known = {"violation": self.violation, "feasible": self.feasible, "oddness": self.oddness}
        known["plausible"] = self.plausible
        found |= {k: (("member",), v.cpu().numpy()) for k, v in known.items() if v is not None}
        coordinates: dict[str, Any] = {"member": self.members}
        if self.chi_square:
            fit = torch.stack(list(self.chi_square.values()), dim=1).cpu().numpy()
            found["chi_square"] = (("member", "observation"), fit)
            coordinates["observation"] = list(self.chi_square)
        if self.populations:
            for name in DIAGNOSTICS:
                found[name] = ("population", [getattr(one, name) for one in self.populations])
        about = {"seed": self.seed, "tolerance": self.tolerance, "method": self.method}
        return xarray.Dataset(found, coords=coordinates, attrs=about)

    @classmethod
    def load(cls, path: Path | str) -> "Result":
        """Reads a file written by :meth:`save`.

        Raises:
            ValueError: If it is not such a file.
        """
        try:
            return cls._read(*load_tensors(path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path} cannot be read as a result ({safe(str(error)).rstrip('.')}); give a file "
                "written by Result.save."
            ) from error

    @classmethod
    def _read(cls, tensors: dict[str, Tensor], rest: dict[str, Any]) -> "Result":
        rest["evaluations"] = Evaluations(**rest["evaluations"])
        rest["trace"] = [Snapshot(**s) for s in rest["trace"]]
        rest["populations"] = [Weights(**one) for one in rest.get("populations", [])]
        for name in ("method", "reason"):
            rest[name] = safe(rest[name])
        rest["warnings"] = [safe(sentence) for sentence in rest["warnings"]]
        prefix = "chi_square "
        fit = {safe(k.removeprefix(prefix)): v for k, v in tensors.items() if k.startswith(prefix)}
        rest |= {k: v for k, v in tensors.items() if not k.startswith(prefix)}
        found = cls(chi_square=fit, **rest)
        for part in (found, found.evaluations, *found.trace, *found.populations):
            fit_fields(part)
        rows = (found.samples, found.violation, found.feasible, *fit.values())
        known = [*rows, found.oddness, found.relative]
        lengths = {len(row) for row in known if row is not None}
        if lengths != {len(members_of(found.members, "Result"))}:
            raise ValueError(f"its parts have different numbers of samples: {sorted(lengths)}")
        return found

    @classmethod
    def join(cls, parts: Sequence["Result"]) -> "Result":
        """Joins the results of disjoint samples of one ensemble."""
        first, odd = parts[0], [p.oddness for p in parts if p.oddness is not None]
        statistics: dict[str, float] = {}
        for p in parts:
            statistics |= {k: statistics.get(k, 0.0) + v for k, v in p.statistics.items()}
        return replace(
            first,
            samples=torch.cat([p.samples for p in parts]),
            violation=torch.cat([p.violation for p in parts]),
            feasible=torch.cat([p.feasible for p in parts]),
            oddness=torch.cat(odd) if len(odd) == len(parts) else None,
            relative=torch.cat([p.ratio for p in parts]),
            chi_square={k: torch.cat([p.chi_square[k] for p in parts]) for k in first.chi_square},
            members=[i for p in parts for i in p.members],
            evaluations=sum((p.evaluations for p in parts), Evaluations()),
            trace=[s for p in parts for s in p.trace],
            populations=[w for p in parts for w in p.populations],
            seconds=sum(p.seconds for p in parts),
            warnings=list(dict.fromkeys(w for p in parts for w in p.warnings)),
            statistics=statistics,
        )


def aligned(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a table as lines of text, the heads first, with columns of equal width."""
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
    lines = ["  ".join(key.ljust(width) for key, width in widths.items())]
    return lines + ["  ".join(row[key].ljust(w) for key, w in widths.items()) for row in rows]


def describe_fit(name: str, chi_square: Tensor) -> str:
    """Says how samples fit an observation with noise."""
    known = chi_square[chi_square.isfinite()]
    if not known.numel():
        return f"{name}: chi-square is not finite for any sample"
    return (
        f"{name}: chi-square per observed value {known.mean():.3g} on average, {known.min():.3g} "
        f"to {known.max():.3g}"
    )


def in_words(method: str) -> str:
    """Returns what ran with its number of attempts behind it, as people say it."""
    return re.sub(r"\bup to (\d+) times (.+?)(?=, then |$)", r"\2, up to \1 attempts", method)


def without_settings(method: str) -> str:
    """Returns the names of samplers and constraints, without what stands in brackets."""
    depth, kept = 0, []
    for letter in method:
        depth += letter == "("
        if not depth:
            kept.append(letter)
        depth -= letter == ")"
    return "".join(kept)
