r"""A folder of finished members, which is a zarr store for those who read it.

The values of a member are one chunk of the samples' array: one file, raw, written whole and then
moved into place. Only then is the member's *record* written, and a member counts if it has one. So
a run that stops at any moment loses what it was drawing, and nothing else.

References:
    | Zarr core specification, version 3
    | https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

__all__ = ["Record", "Store"]

import contextlib
import json
import math
import os
import shutil
import uuid
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks.probe import Probe
from ..checks.probe import differences as differ
from ..errors import StoreError
from . import template
from .files import folder, read_json, shown, sync, write
from .layout import Layout
from .manifest import Config, Manifest, versions

ACCOUNT = ".feasibly"
"""The folder of what is no array: the manifest, the records and the claims."""

STATES = ("finished", "dropped", "failed")


@dataclass(frozen=True)
class Record:
    """What is known of a member that has been drawn.

    Attributes:
        member: Its index.
        state: `finished`; `dropped`, if it was infeasible and the run drops those; or `failed`,
            if it or its violation became non-finite; a restart draws it again.
        violation: Its violation; None if it failed.
        feasible: Whether it satisfies the constraint.
        checksum: The CRC-32 of its values; 0 if they are not stored.
        forward: Forward evaluations of the network: the mean over the members drawn with it.
        backward: Vector-Jacobian products, likewise.
        seconds: The time it took, likewise.
        worker: Which process drew it.
        path: The violation of its clean estimate after each step of its last attempt, None where
            it was not finite; empty without a constraint.
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


class Store:
    """The store of a run.

    Arguments:
        path: A folder that holds one; :meth:`create` makes it.

    Raises:
        StoreError: If it holds none, or one that is damaged or forged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.records = self.path / ACCOUNT / "members"
        self.claims = self.path / ACCOUNT / "claims"
        if not (self.path / ACCOUNT / "manifest.json").is_file():
            raise StoreError(
                f"{self.path} holds no ensemble; give the folder that `sample --out` made."
            )
        self.manifest = Manifest.load(self.path / ACCOUNT / "manifest.json")
        self.config = self.manifest.config
        self.array = self.path / self.manifest.variable
        # the store itself may lie elsewhere, by a link; what is in it may not
        inner = (self.array, self.array / "c", self.path / ACCOUNT, self.records, self.claims)
        for part in inner:
            if not part.is_dir() or part.is_symlink():
                raise StoreError(f"{part} is no folder of this store; the store is damaged.")
        template.check(self.array / "zarr.json", self.config)

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Config,
        layout: Layout | None = None,
        probe: Probe | None = None,
        denoiser: Any = None,
    ) -> "Store":
        """Makes a store, or opens one that is there already and belongs to the same run.

        Arguments:
            path: The folder.
            config: The configuration of the run.
            layout: What a sample is; None for axes by number.
            probe: What the run's parts return for fixed states; None to compare configurations
                only.
            denoiser: The denoiser, by whose precision the probe is compared.

        Raises:
            StoreError: If something else is there, or nothing can be.

        Warns:
            UserWarning: If the store was begun with other versions.
        """
        path = Path(path)
        layout = layout or Layout.default(config.shape)
        layout.check(config.shape)
        if not path.exists():
            try:
                _make(path, config, layout, probe)
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be made ({error}); make room, or give an --out where this "
                    "user may write."
                ) from error
        store = cls(path)
        differences = store.config.differences(config)
        if differences:
            raise StoreError(
                f"{path} holds members of another run ({'; '.join(differences)}); give another "
                "--out, or the configuration that it was made with."
            )
        if probe and store.manifest.probe:
            parts = " and the ".join(differ(store.manifest.probe, probe, denoiser))
            if parts:
                raise StoreError(
                    f"{path} holds members of another run: the {parts} returned other values for "
                    "the same states when it was begun. Give another store, or the "
                    f"{parts} that this one was begun with."
                )
        begun = store.manifest.versions
        others = [
            f"{k} {begun.get(k)}, here {v}" for k, v in versions().items() if begun.get(k) != v
        ]
        if others:
            warnings.warn(
                f"{path} was begun with {'; '.join(others)}: members drawn now may differ in "
                "rounding, or by what has changed.",
                stacklevel=3,
            )
        return store

    def missing(self) -> list[int]:
        """Returns the members that have no record, in order."""
        known = set(os.listdir(self.records))
        return [i for i in range(self.config.members) if f"{i}.json" not in known]

    def put(self, record: Record, sample: np.ndarray) -> None:
        r"""Keeps a member, for good; the caller has claimed it.

        Arguments:
            record: What is known of it; its checksum is computed here.
            sample: Its values, with shape :math:`(*)`.

        Raises:
            OSError: If it cannot be written; it is unfinished then.
        """
        checksum = 0
        if record.state == "finished":
            values = np.ascontiguousarray(sample, dtype=template.dtype(self.config))
            checksum = zlib.crc32(values.data)
            chunk = self.chunk(record.member)
            folder(chunk.parent)
            if not self._holds(chunk.parent):
                raise StoreError(f"{chunk.parent} leads out of the store; the store is forged.")
            write(chunk, values.tobytes(), alone=True)
        text = json.dumps(asdict(record) | {"checksum": checksum}, allow_nan=False)
        write(self.records / f"{record.member}.json", text.encode(), alone=True)

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
            raise StoreError(f"Member {member} of {self.path} is not there; resume the run.")
        values = np.fromfile(chunk, dtype=template.dtype(self.config)).reshape(self.config.shape)
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
        found = read_json(path)
        if not _valid(found, member):
            raise StoreError(f"{path} is no record of member {member}: {shown(found)}.")
        return Record(**found | {"path": tuple(found["path"])})

    def all_records(self) -> list[Record]:
        """Returns the records that are there and not damaged, in the order of the members."""
        found = []
        for name in os.listdir(self.records):
            stem, _, suffix = name.partition(".")
            # 007 is no name that a run gives, nor is one in another script's digits
            named = suffix == "json" and stem.isdecimal() and stem == str(int(stem))
            if named and int(stem) < self.config.members:
                with contextlib.suppress(StoreError, OSError):
                    found.append(self.record(int(stem)))
        return sorted(found, key=lambda record: record.member)

    def is_whole(self, record: Record) -> bool:
        """Whether the file of a finished member has its full size; true of others."""
        if record.state != "finished":
            return True
        size = math.prod(self.config.shape) * template.dtype(self.config).itemsize
        chunk = self.chunk(record.member)
        return self._holds(chunk) and chunk.is_file() and chunk.stat().st_size == size

    def _holds(self, path: Path) -> bool:
        """Whether a path of the store leads where it says, by no link."""
        root = self.path.resolve()
        return path.resolve() == root / path.relative_to(self.path)

    def repair(self) -> list[int]:
        """Forgets the members that failed and those whose files are damaged, so that they are
        drawn again; reads the whole store.

        Returns:
            The members forgotten.
        """
        forgotten = []
        for member in sorted(set(range(self.config.members)) - set(self.missing())):
            try:
                record = self.record(member)
                if record.state == "failed":
                    raise StoreError("drawn again, in case what made it fail has passed")
                if record.state == "finished":
                    self.get(member)
            except (StoreError, OSError):
                (self.records / f"{member}.json").unlink(missing_ok=True)
                forgotten.append(member)
        return forgotten


def _make(path: Path, config: Config, layout: Layout, probe: Probe | None) -> None:
    """Makes a store, whole or not at all; leaves it to another process that was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.draft")
    try:
        template.make(draft, config, layout)
        for name in ("members", "claims"):
            (draft / ACCOUNT / name).mkdir(parents=True)
        (draft / layout.name / "c").mkdir()
        Manifest.new(config, layout.name, probe).save(draft / ACCOUNT / "manifest.json")
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


def _valid(found: Any, member: int) -> bool:
    if not isinstance(found, Mapping) or set(found) != set(Record.__dataclass_fields__):
        return False

    def number(value: Any) -> bool:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        return known and 0 <= value <= 1e300

    path = found["path"]
    whole = all(type(found[name]) is int for name in ("member", "checksum"))
    return (
        whole
        and found["member"] == member
        and 0 <= found["checksum"] < 2**32
        and found["state"] in STATES
        and (
            number(found["violation"])
            if found["state"] != "failed"
            else found["violation"] is None
        )
        and type(found["feasible"]) is bool
        and all(number(found[name]) for name in ("forward", "backward", "seconds"))
        and isinstance(path, list)
        and all(v is None or number(v) for v in path)
        and isinstance(found["worker"], str)
        and found["worker"].isalnum()
        and len(found["worker"]) <= 64
    )
