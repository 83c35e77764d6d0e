"""A folder of finished members, which is a zarr store for those who read it.

A member's values are one chunk of the samples' array: one raw file, written whole and then moved
into place. Its *record*, with their checksum, is written just before, by the first process that
has sampled it; others leave the member to that one. A member counts if it has both. So a run that
stops at any moment loses only what it was sampling.

References:
    | Zarr core specification, version 3
    | https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

__all__ = ["Record", "Store"]

import contextlib
import errno
import math
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checks.probe import Probe
from ..checks.probe import differences as differ
from ..errors import StoreError, advise
from ..files import remedy
from ..result import DIAGNOSTICS
from .arrays import files
from .manifest import (
    LIMITS,
    Config,
    Layout,
    Manifest,
    is_text,
    listed,
    maybe,
    number,
    read_json,
    sealed,
    shown,
    unsealed,
    versions,
    whole,
)

PRIVATE = ".feasibly"
"""The folder of what is no array: the manifest, the records and the warnings."""

STATES = ("finished", "dropped", "failed")

ATTEMPTS = 5
"""How often a file is written whose draft another process takes for that of a dead one."""

PATIENCE = 10.0
"""The seconds that a process waits for another to make the store grow, which takes less than
one."""


@dataclass(frozen=True)
class Record:
    """What is known of a member that has been sampled.

    Attributes:
        member: Its index.
        state: `finished`; `dropped`, if it was infeasible and the run drops those; or `failed`, if
            it or its violation is not finite; a restart samples it again.
        violation: Its violation; None if it failed.
        feasible: Whether it satisfies the constraint.
        checksum: The CRC-32 of its values; 0 if they are not stored.
        forward: Forward evaluations of the network: the mean over the members sampled with it.
        backward: Vector-Jacobian products, likewise.
        seconds: The time it took, likewise.
        worker: Which process sampled it.
        path: The violation of its clean estimate after each step of its last attempt, None where
            it was not finite; empty without a constraint.
        oddness: Its denoising error, in units of what unconditional samples allow; None if
            untested.
        chi_square: The mean square of its misfits, in units of the errors, for each observation
            with errors in the order of the manifest's; None where it is not finite.
        pareto_k: The k-hat of the importance weights of its population; None if it has none.
        ess: Their effective sample size.
        log_evidence: The logarithm of their mean.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=method, monitor=False)
        >>> summary = feasibly.ensemble.run(plan, folder / "run.zarr", 2, batch_size=2)
        >>> [(record.member, record.state, record.feasible) for record in summary.records]
        [(0, 'finished', True), (1, 'finished', True)]
    """

    member: int
    state: str
    violation: float | None
    feasible: bool
    checksum: int
    forward: float
    backward: float
    seconds: float
    worker: str
    path: tuple[float | None, ...] = ()
    oddness: float | None = None
    chi_square: tuple[float | None, ...] = ()
    pareto_k: float | None = None
    ess: float | None = None
    log_evidence: float | None = None


class Store:
    """The store of a run.

    Arguments:
        path: A folder that holds one; :meth:`create` makes it.

    Raises:
        StoreError: If it holds none, or one that is damaged or forged.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=method, monitor=False)
        >>> _ = feasibly.ensemble.run(plan, folder / "run.zarr", 4, batch_size=4)
        >>> store = feasibly.ensemble.Store(folder / "run.zarr")
        >>> store.config.members, store.config.shape
        (4, (2,))
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.records = self.path / PRIVATE / "members"
        self.notes = self.path / PRIVATE / "warnings"
        if not (self.path / PRIVATE / "manifest.json").is_file():
            raise StoreError(
                f"{self.path} holds no ensemble; give the folder that `sample --out` created."
            )
        self.manifest = Manifest.load(self.path / PRIVATE / "manifest.json")
        self.config = self.manifest.config
        self.array = self.path / self.manifest.layout.name
        # the store itself may lie elsewhere, by a link; what is in it may not
        private = (self.path / PRIVATE, self.records, self.notes)
        for part in (self.array, self.array / "c", *private):
            missing = part in private and not part.is_dir()  # others are made anew
            if missing or part.is_symlink():
                raise StoreError(f"{part} is not a folder of this store; the store is damaged.")

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Config,
        layout: Layout | None = None,
        probe: Callable[[int], Probe] | None = None,
        denoiser: Any = None,
        chunk: int | None = None,
        observations: Mapping[str, int] | None = None,
    ) -> "Store":
        """Makes a store, or opens one that is there already and belongs to the same run; a store
        of fewer members of that run grows.

        Arguments:
            path: The folder.
            config: The configuration of the run.
            layout: What a sample is; None for axes by number.
            probe: Returns what the run's parts return for fixed states, given the number of
                members; None to compare configurations only.
            denoiser: The denoiser, by whose precision the probe is compared.
            chunk: How many members the run samples at a time; None for `auto`.
            observations: The parts of the constraint that are observed with errors; see
                :class:`Manifest`.

        Raises:
            StoreError: If something else is there, or a run of more members, or nothing can be.

        Warns:
            UserWarning: If the store was begun with other versions.
        """
        path = Path(path)
        layout = layout or Layout.default(config.shape)
        layout.check(config.shape)
        found = probe or (lambda members: {})
        if not path.exists():
            new = Manifest.new(config, layout, found(config.members), chunk, observations)
            try:
                _make(path, new)
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be created ({error}); {remedy(error)}."
                ) from error
        store = cls(path)
        store._check_run(config)
        store._check_probe(found(store.config.members), denoiser)
        if store.config.members < config.members:
            store = store._grow(config.members, found(config.members))
            store._check_run(config)  # another process may have had it grow further
        begun = store.manifest.versions
        others = [
            f"{k} {begun.get(k)}, now {v}" for k, v in versions().items() if begun.get(k) != v
        ]
        if others:
            advise(
                f"{path} was started with {'; '.join(others)}: samples drawn now may differ by "
                "rounding, or because of these changes."
            )
        return store

    def _check_run(self, config: Config) -> None:
        """Refuses another run than the store's, or one of fewer members."""
        if replace(self.config, members=config.members).differences(config):
            raise StoreError(
                f"{self.path} holds samples of another run "
                f"({'; '.join(self.config.differences(config))}); give another --out, or the "
                "configuration with which it was started."
            )
        if config.members < self.config.members:
            raise StoreError(
                f"{self.path} holds an ensemble of {self.config.members} samples, and cannot "
                f"shrink to {config.members}; ask for {self.config.members} or more, or give "
                "another --out."
            )

    def _check_probe(self, probe: Probe, denoiser: Any) -> None:
        """Refuses a run whose parts return other numbers than those of the store's."""
        if not probe or not self.manifest.probe:
            return
        parts = " and the ".join(differ(self.manifest.probe, probe, denoiser))
        if parts:
            raise StoreError(
                f"{self.path} holds samples of another run: the {parts} returned other values for "
                f"the same states when it was started. Give another store, or the {parts} with "
                "which this one was started."
            )

    def _grow(self, members: int, probe: Probe) -> "Store":
        """Returns this as the store of a run of more members, which another process may have made.

        The manifest alone says how many there are, and is replaced at once. Arrays become longer
        when variables are written. Processes that began with fewer members end with those.
        """
        try:
            with self._alone():
                latest = Store(self.path).manifest  # nobody else changes it now
                if latest.config.members < members:
                    config = replace(latest.config, members=members)
                    sizes = (*latest.sizes, latest.config.members)
                    known = probe if latest.probe else {}
                    grown = replace(latest, config=config, probe=known, sizes=sizes)
                    write(self.path / PRIVATE / "manifest.json", grown.encode())
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot grow to {members} samples ({error}); {remedy(error)}."
            ) from error
        return Store(self.path)

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """Keeps other processes from making the store grow, and waits for one that does."""
        lock, end = self.path / PRIVATE / "growing", time.monotonic() + PATIENCE
        while True:
            try:
                lock.touch(exist_ok=False)
                break
            except FileExistsError:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{lock} has been there for {PATIENCE:g} seconds: a process died while it "
                        "enlarged the store. Remove that file, and call again."
                    ) from None
                time.sleep(PATIENCE / 100)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

    def missing(self) -> list[int]:
        """Returns the members that have no record, in order."""
        known = set(os.listdir(self.records))
        return [i for i in range(self.config.members) if f"{i}.json" not in known]

    def put(self, record: Record, sample: np.ndarray) -> None:
        """Keeps a member, for good, unless another process has kept it already.

        Arguments:
            record: What is known of it; its checksum is computed here.
            sample: Its values, with shape :math:`(*)`.

        Raises:
            OSError: If it cannot be written; it is unfinished then.
        """
        values = np.ascontiguousarray(sample, dtype=self.dtype)
        finished = record.state == "finished"
        chunk = self.chunk(record.member)
        if finished:
            make_folder(self._inside(chunk.parent))
        checksum = zlib.crc32(values.data) if finished else 0
        content = sealed(asdict(record) | {"checksum": checksum})
        path = self.records / f"{record.member}.json"
        if write(path, content, once=True) and finished:
            try:
                write(self._inside(chunk), values.tobytes())
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    def has(self, member: int) -> bool:
        """Whether a member has a record."""
        return (self.records / f"{member}.json").exists()

    @property
    def dtype(self) -> np.dtype:
        """How a value is stored: little-endian on every machine."""
        return np.dtype(self.config.dtype).newbyteorder("<")

    def chunk(self, member: int) -> Path:
        """Returns the file of a member's values."""
        return self.array.joinpath("c", str(member), *["0"] * len(self.config.shape))

    def get(self, member: int) -> np.ndarray:
        r"""Returns a finished member's values, with shape :math:`(*)`.

        Raises:
            StoreError: If they are not what was written.
        """
        record, chunk = self.record(member), self.chunk(member)
        if not self.is_whole(record) or record.state != "finished":
            raise StoreError(f"Sample {member} of {self.path} is missing; resume the run.")
        values = np.fromfile(chunk, dtype=self.dtype).reshape(self.config.shape)
        if zlib.crc32(values.data) != record.checksum:
            raise StoreError(f"{chunk} was changed since it was written; resume the run.")
        return values

    def record(self, member: int) -> Record:
        """Returns what is known of a member.

        Raises:
            StoreError: If its record is damaged.
            OSError: If there is none.
        """
        path = self.records / f"{member}.json"
        found = unsealed(path, read_json(path))
        if not _is_record(found, member):
            raise StoreError(f"{path} is not a record of sample {member}: {shown(found)}.")
        return Record(**found | {k: tuple(found[k]) for k in ("path", "chi_square")})

    def all_records(self) -> list[Record]:
        """Returns the records that are there and not damaged, in the order of the members."""
        found, known = [], set(os.listdir(self.records))
        for member in range(self.config.members):
            if f"{member}.json" in known:
                with contextlib.suppress(StoreError, OSError):
                    found.append(self.record(member))
        return found

    def is_whole(self, record: Record) -> bool:
        """Whether the file of a finished member has its full size; true of others."""
        if record.state != "finished":
            return True
        size = math.prod(self.config.shape) * self.dtype.itemsize
        chunk = self.chunk(record.member)
        return self._holds(chunk) and chunk.is_file() and chunk.stat().st_size == size

    def warn(self, sentence: str) -> None:
        """Keeps a warning of the sampler, unless one is there that differs in numbers only."""
        kind = zlib.crc32(re.sub(r"\d[\d.,e+-]*", "#", sentence).encode())
        path = self.notes / f"{kind:08x}.json"
        if not os.path.lexists(path):
            write(path, sealed({"sentence": " ".join(sentence.split())}))

    def warnings(self) -> list[str]:
        """Returns the warnings of the samplers, each kind once, without damaged ones."""
        found = []
        names = sorted(name for name in os.listdir(self.notes) if name.endswith(".json"))
        for name in names[: LIMITS["warnings"]]:
            with contextlib.suppress(StoreError, OSError):
                note = unsealed(self.notes / name, read_json(self.notes / name))
                if is_text(note.get("sentence")):
                    found.append(note["sentence"])
        return found

    def repair(self) -> list[int]:
        """Forgets the members that failed and those whose files are damaged, so that they are
        sampled again; reads the whole store, and returns these members."""
        forgotten = []
        for draft in self.path.rglob("*.draft"):  # of processes that were killed
            draft.unlink(missing_ok=True)
        missing = set(self.missing())
        for member in range(self.config.members):
            if member not in missing and not self._is_good(member):
                _remove(self.records / f"{member}.json")
                forgotten.append(member)
        return forgotten

    def rebuild(self) -> bool:
        """Writes anew those files for the readers of zarr that are not what the manifest says, and
        returns whether there were any; the values by member are then to be written.

        Raises:
            StoreError: If a file leads out of the store.
        """
        changed = False
        for name, content in files(Store(self.path).manifest).items():
            path = self._inside(self.path / name)
            size = path.stat().st_size if path.is_file() else None
            if size == len(content) and path.read_bytes() == content:
                continue
            changed = True
            folder = path.parent
            if path.name == "zarr.json" and folder not in (self.path, self.array):
                # of another length, or kind: a reader finds no values until they are written
                shutil.rmtree(folder / "c", ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            _remove(path, folders_only=True)
            write(path, content)
        return changed

    def write_variables(self, values: Mapping[str, np.ndarray]) -> None:
        """Writes the variables of :data:`MEMBERS`, each with shape (members), and `chi_square`,
        with shape (members, observations): one raw chunk each."""
        self.rebuild()
        for name, array in values.items():
            chunk = self._inside(self.path.joinpath(name, "c", *["0"] * array.ndim))
            chunk.parent.mkdir(parents=True, exist_ok=True)
            write(chunk, array.astype(array.dtype.newbyteorder("<")).tobytes())

    def _is_good(self, member: int) -> bool:
        """Whether a member is as it was written, and has not failed: a failure may pass."""
        try:
            record = self.record(member)
            if record.state != "finished":
                return record.state == "dropped"
            return self.is_whole(record) and _checksum(self.chunk(member)) == record.checksum
        except (StoreError, OSError):
            return False

    def _inside(self, path: Path) -> Path:
        """Returns a path of the store that a file is written to, and refuses links."""
        if not self._holds(path):
            raise StoreError(f"{path} leads out of the store; the store is forged.")
        return path

    def _holds(self, path: Path) -> bool:
        """Whether a path of the store leads where it says, by no link."""
        while path != self.path:
            if path.is_symlink():
                return False
            path = path.parent
        return True


def _remove(path: Path, folders_only: bool = False) -> None:
    """Removes a file, or a folder that is in the place of one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif not folders_only:
        path.unlink(missing_ok=True)


def _checksum(path: Path) -> int:
    """The CRC-32 of a file, read in parts: it may be as large as a forged record says."""
    total = 0
    with open(path, "rb") as file:
        while part := file.read(LIMITS["file"]):
            total = zlib.crc32(part, total)
    return total


RULES: dict[str, Callable[[Any], bool]] = {
    "member": whole(0, LIMITS["members"]),
    "state": lambda v: v in STATES,
    "violation": maybe(number()),
    "feasible": lambda v: type(v) is bool,
    "checksum": whole(0, 2**32 - 1),
    **dict.fromkeys(("forward", "backward", "seconds"), number()),
    "worker": lambda v: isinstance(v, str) and v.isalnum() and len(v) <= 64,
    "path": listed(maybe(number())),
    "chi_square": listed(maybe(number()), LIMITS["observations"]),
    **dict.fromkeys(("oddness", *DIAGNOSTICS), maybe(number(-1e300))),
}
"""What the fields of a record must be."""


def _is_record(found: Mapping[str, Any], member: int) -> bool:
    return (
        set(found) == set(RULES)
        and all(valid(found[name]) for name, valid in RULES.items())
        and found["member"] == member
        and (found["violation"] is None) == (found["state"] == "failed")
    )


# The folder: what zarr reads, made before the run.


def _make(path: Path, manifest: Manifest) -> None:
    """Makes a store, whole or not at all; leaves it to another process that was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.draft")
    try:
        for name, content in files(manifest).items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        for name in ("members", "warnings"):
            (draft / PRIVATE / name).mkdir(parents=True)
        (draft / manifest.layout.name / "c").mkdir()
        write(draft / PRIVATE / "manifest.json", manifest.encode())
        for made in [*draft.rglob("*"), draft]:
            sync(made)
        try:
            os.rename(draft, path)
        except OSError:
            if not path.exists():
                raise
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# The files: each is there whole or not at all.


def write(path: Path, content: bytes, once: bool = False) -> bool:
    """Writes a file, on disk when this returns; whoever reads meanwhile finds the old or the new.
    Returns whether it was written.

    If it cannot be written, nothing is left of it.

    Arguments:
        path: The file.
        content: What to write.
        once: Whether to leave a file that is there already as it is.
    """
    attempts = ATTEMPTS
    while True:
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.draft")
        try:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if not once:
                os.replace(draft, path)
            elif not _place(draft, path):
                return False
            sync(path.parent)
            return True
        except FileNotFoundError:  # a process that repairs the store has removed the draft
            attempts -= 1
            if not attempts:
                raise
        finally:
            draft.unlink(missing_ok=True)


def _place(draft: Path, path: Path) -> bool:
    """Gives a draft its name, unless there is such a file; returns whether it has it now."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        try:
            with open(path, "xb") as file:
                file.write(draft.read_bytes())
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
    return True


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, on disk when this returns, if they are not there."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Has a file, or the names in a folder, on disk when this returns, so that no name is lost
    with the power."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(number)
