"""What the records of a store add up to."""

__all__ = ["Summary"]

import math
from dataclasses import dataclass

import numpy as np

from .store import MEMBERS, Record, Store

TELLINGS = 4
"""How often at most an account is written anew, because others finish members meanwhile; they will
write it again when they end."""


@dataclass(frozen=True)
class Summary:
    """The account of a run, as far as it has come.

    Attributes:
        store: Its store.
        records: What is known of each member that has been drawn, in their order.
    """

    store: Store
    records: tuple[Record, ...]

    @classmethod
    def read(cls, store: Store) -> "Summary":
        """Reads the account from the records; members whose file is not whole are left out."""
        return cls(store, tuple(r for r in store.all_records() if store.is_whole(r)))

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
    def missing(self) -> list[int]:
        """The members that are not drawn yet."""
        return sorted(set(range(self.asked)) - {r.member for r in self.records})

    @property
    def is_short(self) -> bool:
        """Whether members are lacking, for good or until the run goes on."""
        return self.counted < self.asked

    def state(self, name: str) -> list[int]:
        """Returns the members in a state: `finished`, `dropped` or `failed`."""
        return [r.member for r in self.records if r.state == name]

    def paths(self) -> np.ndarray:
        """Returns the violation of each record's member after each step, with shape (records,
        steps); NaN where it is not known or not finite."""
        made = np.full((len(self.records), max([0, *(len(r.path) for r in self.records)])), np.nan)
        for row, r in zip(made, self.records, strict=True):
            row[: len(r.path)] = [np.nan if v is None else v for v in r.path]
        return made

    def variables(self) -> dict[str, np.ndarray]:
        """Returns what is known of the members as arrays, each with shape (members)."""
        made = {
            name: np.full(self.asked, False if kind == "bool" else np.nan, dtype=kind)
            for name, (kind, _) in MEMBERS.items()
        }
        for r in self.records:
            made["finished"][r.member] = r.state == "finished"
            made["violation"][r.member] = math.inf if r.violation is None else r.violation
            for name in ("feasible", "forward", "backward", "seconds"):
                made[name][r.member] = getattr(r, name)
        return made

    def write(self) -> "Summary":
        """Writes what is known into the store, for its readers, and returns the account."""
        summary = self
        for _ in range(TELLINGS):
            self.store.write_variables(summary.variables())
            latest = Summary.read(self.store)
            # another process may have finished a member, and told so, in between
            if latest.records == summary.records:
                break
            summary = latest
        return latest

    def __str__(self) -> str:
        config = self.store.config
        finished = len(self.state("finished"))
        lines = [
            config.method,
            f"{finished} of {self.asked} members finished, {self.feasible} feasible"
            + ("" if config.tolerance is None else f" (c <= {config.tolerance:g})"),
        ]
        violations = [r.violation for r in self.records if r.violation is not None]
        if violations:
            median, worst = np.median(violations), max(violations)
            lines.append(f"violation median {median:.3g}, worst {worst:.3g}")
        forward, backward, seconds = (
            sum(getattr(r, name) for r in self.records)
            for name in ("forward", "backward", "seconds")
        )
        lines.append(
            f"{forward:.0f} forward and {backward:.0f} backward evaluations, {seconds:.1f} s of "
            f"all processes; seed {config.seed}"
        )
        if self.is_short:
            lines.append(self.shortfall())
        return "\n".join(lines)

    def shortfall(self) -> str:
        """Says how many members are lacking, and why."""
        reasons = []
        if self.missing:
            reasons.append(f"{some(self.missing)} not drawn yet")
        if self.state("failed"):
            reasons.append(f"{some(self.state('failed'))} became non-finite")
        lost = [
            r.member for r in self.records if not r.feasible and r.state in ("finished", "dropped")
        ]
        if lost and self.store.config.infeasible != "keep":
            reasons.append(f"{some(lost)} infeasible")
        return f"Only {self.counted} of {self.asked} members count: {'; '.join(reasons)}."


def some(members: list[int]) -> str:
    """A list of members in words, cut short where it is long."""
    shown = ", ".join(map(str, members[:10])) + (", ..." if len(members) > 10 else "")
    return f"{len(members)} ({shown})"
