"""What the records of a store add up to."""

__all__ = ["Summary"]

import math
from dataclasses import dataclass

import numpy as np
import torch

from ..messages import UNTESTED, doubts, implausible, misfit
from ..result import DIAGNOSTICS, Weights, describe_fit, in_words, without_settings
from .arrays import MEMBERS
from .store import Record, Store

WRITES = 4
"""How often at most the variables by member are written anew, because others finish members
meanwhile."""


@dataclass(frozen=True)
class Summary:
    """The summary of a run, as far as it has come.

    Attributes:
        store: Its store.
        records: What is known of each member that has been sampled, in their order.
        warnings: What the sampler warned of, each kind once.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=method, monitor=False)
        >>> summary = feasibly.ensemble.run(plan, folder / "run.zarr", 4, batch_size=4)
        >>> summary.counted, summary.feasible, summary.missing
        (4, 4, [])
    """

    store: Store
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def read(cls, store: Store) -> "Summary":
        """Reads the records and warnings; members whose file is not whole are left out."""
        records = tuple(r for r in store.all_records() if store.is_whole(r))
        return cls(store, records, tuple(store.warnings()))

    @property
    def asked(self) -> int:
        """The number of members asked for."""
        return self.store.config.members

    @property
    def counted(self) -> int:
        """The number of members that the run's policy counts: those finished and, unless it is
        `keep`, feasible."""
        keep = self.store.config.infeasible == "keep"
        return sum(r.state == "finished" and (keep or r.feasible) for r in self.records)

    @property
    def feasible(self) -> int:
        """The number of feasible members."""
        return sum(r.feasible for r in self.records)

    @property
    def infeasible(self) -> list[int]:
        """The members that were sampled and do not satisfy the constraint, kept or dropped."""
        return [r.member for r in self.records if not r.feasible and r.state != "failed"]

    @property
    def implausible(self) -> list[int]:
        """The members that were tested and do not look like data to the denoiser."""
        return [r.member for r in self.records if r.oddness is not None and r.oddness > 1]

    @property
    def missing(self) -> list[int]:
        """The members that are not sampled yet."""
        return sorted(set(range(self.asked)) - {r.member for r in self.records})

    @property
    def is_short(self) -> bool:
        """Whether members are lacking, for good or until the run goes on."""
        return self.counted < self.asked

    def state(self, name: str) -> list[int]:
        """Returns the members in a state: `finished`, `dropped` or `failed`."""
        return [r.member for r in self.records if r.state == name]

    def fits(self) -> dict[str, np.ndarray]:
        """Returns chi-square of each observation with errors by its name, with shape (records);
        NaN where it is not known."""
        names = self.store.manifest.observations
        found = np.full((len(names), len(self.records)), np.nan)
        for column, r in zip(found.T, self.records, strict=True):
            known = r.chi_square[: len(names)]
            column[: len(known)] = [np.nan if v is None else v for v in known]
        return dict(zip(names, found, strict=True))

    def variables(self) -> dict[str, np.ndarray]:
        """Returns what is known of the members as arrays, with shape (members), and `chi_square`,
        if observations have errors, with shape (members, observations)."""
        made: dict[str, np.ndarray] = {
            name: np.full(self.asked, False if kind == "bool" else np.nan, dtype=kind)
            for name, (kind, _) in MEMBERS.items()
        }
        for r in self.records:
            made["finished"][r.member] = r.state == "finished"
            made["violation"][r.member] = math.inf if r.violation is None else r.violation
            for name in ("oddness", *DIAGNOSTICS):
                value = getattr(r, name)
                made[name][r.member] = math.nan if value is None else value
            for name in ("feasible", "forward", "backward", "seconds"):
                made[name][r.member] = getattr(r, name)
        if fits := self.fits():
            made["chi_square"] = np.full((self.asked, len(fits)), np.nan)
            rows = [r.member for r in self.records]
            made["chi_square"][rows] = np.stack(list(fits.values()), axis=1)
        return made

    def write(self) -> "Summary":
        """Writes the variables by member into the store, of all members if it has grown; returns
        the latest summary."""
        store = Store(self.store.path)
        summary = self if store.config == self.store.config else Summary.read(store)
        for _ in range(WRITES):
            summary.store.write_variables(summary.variables())
            latest = Summary.read(Store(self.store.path))
            # another process may have finished a member, and written so, in between
            same = latest.records == summary.records
            if same and latest.store.config == summary.store.config:
                break
            summary = latest
        return latest if latest.store.config == self.store.config else Summary.read(self.store)

    def __str__(self) -> str:
        config = self.store.config
        finished = len(self.state("finished"))
        lines = [
            in_words(without_settings(config.method)),
            f"{finished} of {self.asked} samples finished, {self.feasible} feasible",
        ]
        violations = [r.violation for r in self.records if r.violation is not None]
        if violations and config.tolerance is not None:
            median, worst = np.median(violations), max(violations)
            spread = f"violation: median {median:.2g}, worst {worst:.2g}"
            lines[-1] += f" ({spread}; tolerance {config.tolerance:.2g})"
        lines += [describe_fit(k, torch.from_numpy(fit)) for k, fit in self.fits().items()]
        names = ("forward", "backward", "seconds")
        forward, backward, seconds = (sum(getattr(r, k) for r in self.records) for k in names)
        lines.append(
            f"{forward:.0f} forward and {backward:.0f} backward network evaluations in all, "
            f"{seconds:.1f} s summed over processes; seed {config.seed}"
        )
        tested = sum(r.oddness is not None for r in self.records)
        if tested:
            lines.append(f"{tested - len(self.implausible)} of {tested} samples plausible")
        if 0 < tested < sum(r.state != "failed" for r in self.records):
            lines.append(f"Warning: {UNTESTED}")
        if self.is_short:
            lines.append(self.shortfall())
        if self.infeasible:
            lines.append(f"Warning: {self.violations()}")
        words = [*self.doubts(), *self.warnings]
        return "\n".join([*lines, *(f"Warning: {sentence}" for sentence in words)])

    def shortfall(self) -> str:
        """Says how many members are lacking, and why."""
        reasons = []
        if self.missing:
            reasons.append(f"{some(self.missing)} not sampled yet")
        if self.state("failed"):
            reasons.append(f"{some(self.state('failed'))} became non-finite")
        if self.infeasible and self.store.config.infeasible != "keep":
            reasons.append(f"{some(self.infeasible)} infeasible")
        return f"Only {self.counted} of {self.asked} samples count: {'; '.join(reasons)}."

    def doubts(self) -> list[str]:
        """Says why samples may be wrong: many are implausible, observations with errors do not
        fit, or importance weights are not reliable."""
        drawn = {r.member: r for r in self.records if r.pareto_k is not None}
        found = []
        for members in self.store.manifest.populations():
            if some := [drawn[i] for i in members if i in drawn]:
                known = [getattr(some[0], name) for name in DIAGNOSTICS]
                found.append(Weights([r.member for r in some], 0, *known, 0.0))
        words = doubts(found, "method=SMC(particles=...), in a new store")
        return [*filter(None, [self.suspicion()]), *self.misfits(), *words]

    def suspicion(self) -> str:
        """Says how many members are implausible, if chance does not explain them; else empty."""
        return implausible(len(self.implausible), len(self.records))

    def misfits(self) -> list[str]:
        """Says which observations with errors members fit worse than errors allow."""
        counts, found = self.store.manifest.observations, self.fits().items()
        known = {name: fit[np.isfinite(fit)] for name, fit in found}
        said = (misfit(k, fit.mean(), counts[k]) for k, fit in known.items() if fit.size)
        return [words for words in said if words]

    def violations(self) -> str:
        """Says how many members are infeasible, and by how much; empty if none is."""
        missed = [r.violation for r in self.records if not r.feasible and r.violation is not None]
        if not missed:
            return ""
        tolerance = self.store.config.tolerance or math.inf
        low, high = min(missed), max(missed)
        others = "; the variable `feasible` of the store marks the others" if self.feasible else ""
        verb = "does" if len(missed) == 1 else "do"
        return (
            f"{len(missed)} of {len(self.records)} samples {verb} not satisfy the constraint "
            f"(violation {low:.3g} to {high:.3g}, tolerance {tolerance:.3g}){others}."
        )


def some(members: list[int]) -> str:
    """A list of members in words, cut short where it is long."""
    shown = ", ".join(map(str, members[:10])) + (", ..." if len(members) > 10 else "")
    return f"{len(members)} ({shown})"
