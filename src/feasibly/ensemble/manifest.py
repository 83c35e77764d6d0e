"""What a store says of its run, and the checks that a store from elsewhere must pass."""

__all__ = [
    "INFEASIBLE",
    "LIMITS",
    "POPULATION",
    "Config",
    "Coordinate",
    "Layout",
    "Manifest",
    "fingerprint",
    "is_text",
    "listed",
    "maybe",
    "number",
    "read_json",
    "sealed",
    "shown",
    "unsealed",
    "versions",
    "whole",
]

import json
import math
import platform
import re
import reprlib
import subprocess
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

import torch

from ..checks.probe import PARTS, Probe
from ..errors import StoreError
from ..result import DIAGNOSTICS

POPULATION = 64
"""How many members of a store share importance weights. A stop loses those of one such
population at most, of each process."""

FORMAT = 7
INFEASIBLE = ("keep", "retry", "drop")
LIMITS = {
    "members": 10**6,
    "axes": 16,
    "elements": 2**40,
    "observations": 100,
    "warnings": 100,
    "probe": 4096,  # numbers of a part
    "text": 10_000,  # characters
    "file": 2**20,  # bytes, of JSON
    "manifest": 2**25,  # bytes, which are those of coordinates
}
"""The largest run that a store may claim to be, so that a forged one takes no memory."""

RESERVED = {"member", "violation", "feasible", "finished", "forward", "backward", "seconds"}
RESERVED |= {"oddness", "chi_square", "observation", *DIAGNOSTICS}


@dataclass(frozen=True)
class Coordinate:
    """An axis of a sample.

    Attributes:
        name: Its name, such as `time`.
        values: The coordinate of each point; None for 0, 1, 2, ...
        units: Their units, as the CF conventions write them, such as `h`, `m s-1` or `hours since
            2026-01-01`.
        long_name: What it is, in words for a plot.

    Example:
        >>> feasibly.ensemble.Coordinate("time", values=(0.0, 6.0, 12.0), units="h").name
        'time'
    """

    name: str
    values: Sequence[float] | None = None
    units: str = "1"
    long_name: str = ""


@dataclass(frozen=True)
class Layout:
    """What a sample is: a variable of a store, with named axes.

    Attributes:
        axes: The axes of one sample, in order.
        name: The name of the variable.
        units: The units of its values.
        long_name: What it is, in words for a plot.

    Example:
        >>> axes = (feasibly.ensemble.Coordinate("x"), feasibly.ensemble.Coordinate("y"))
        >>> layout = feasibly.ensemble.Layout(axes, name="height", units="m")
        >>> layout.check((64, 64))
        >>> [axis.name for axis in feasibly.ensemble.Layout.default((64, 64)).axes]
        ['axis_0', 'axis_1']
    """

    axes: tuple[Coordinate, ...]
    name: str = "samples"
    units: str = "1"
    long_name: str = "sample"

    @classmethod
    def default(cls, shape: Sequence[int]) -> "Layout":
        """Names the axes by their number."""
        return cls(tuple(Coordinate(f"axis_{k}") for k in range(len(shape))))

    @classmethod
    def read(cls, found: Any) -> "Layout":
        """Makes a layout of what a manifest has, or of one with arrays.

        Raises:
            ValueError: If it is none.
        """
        try:
            axes = (Coordinate(**axis) for axis in found["axes"])
            made = cls(**found | {"axes": tuple(map(_plain, axes))})
            texts = [made, *made.axes]
            if all(map(is_text, (t for o in texts for t in (o.name, o.units, o.long_name)))):
                return made
        except (TypeError, KeyError, ValueError) as error:
            # by its repr, since it may quote the file
            raise ValueError(f"the layout is {shown(found)} ({str(error)!r:.200})") from error
        raise ValueError(f"the layout is {shown(found)}")

    def check(self, shape: Sequence[int]) -> None:
        """Refuses a layout that does not fit samples of a shape.

        Raises:
            ValueError: If names are no names or taken, or numbers of axes or points differ.
        """
        names = [self.name, *(axis.name for axis in self.axes)]
        if any(not name.isidentifier() or name in RESERVED for name in names) or len(
            set(names)
        ) < len(names):
            raise ValueError(
                f"A layout's names must be different words, and none of {sorted(RESERVED)}, got "
                f"{names}; rename the variable or an axis."
            )
        for units in (self.units, *(axis.units for axis in self.axes)):
            if "since" in units and not re.search(r"since \d+-\d+-\d+", units):
                raise ValueError(
                    f"The units {units!r} name no date after `since`, so that xarray cannot open "
                    "the store; write a date, or the unit alone, such as `h`."
                )
        if len(self.axes) != len(shape):
            raise ValueError(
                f"The layout names {len(self.axes)} axes, {names[1:]}, but samples have shape "
                f"{tuple(shape)}; give one Coordinate per axis."
            )
        for axis, size in zip(self.axes, shape, strict=True):
            if axis.values is not None and len(axis.values) != size:
                raise ValueError(
                    f"Axis {axis.name!r} has {len(axis.values)} coordinates for {size} points."
                )
            if axis.values is not None and not all(math.isfinite(v) for v in axis.values):
                raise ValueError(f"Axis {axis.name!r} has coordinates that are not finite.")


@dataclass(frozen=True)
class Config:
    """What determines the members of a run, besides what its :func:`probe
    <feasibly.checks.probe.probe>` distinguishes.

    Attributes:
        method: The sampler, in words: its `repr`.
        weights: The :func:`fingerprint` of the denoiser's weights.
        tolerance: The constraint's tolerance; None without a constraint.
        seed: The seed of the ensemble.
        members: The number of members; their indices start at 0.
        shape: The shape of one sample.
        dtype: The type of the samples, `float32` or `float64`.
        infeasible: What happens to members that end infeasible, after all attempts: `keep` counts
            them, `retry` keeps them uncounted, `drop` leaves them out of the store.
        population: The number of members that share importance weights, where a sampler has them.
        source: The arguments of the command that started the run, to start it again; empty for a
            run of the library.

    Example:
        >>> from dataclasses import replace
        >>> config = feasibly.ensemble.Config("PPR()", "", 1e-6, 0, 8, (2,), "float32")
        >>> config.differences(replace(config, seed=1))
        ['seed: 0 in the store, now 1']
    """

    method: str
    weights: str
    tolerance: float | None
    seed: int
    members: int
    shape: tuple[int, ...]
    dtype: str
    infeasible: str = "keep"
    population: int = POPULATION
    source: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (valid, what) in RULES.items():
            if not valid(getattr(self, name)):
                value = shown(getattr(self, name))
                raise ValueError(f"{name} of an ensemble must be {what}, got {value}.")

    def differences(self, other: "Config") -> list[str]:
        """Returns in what two configurations differ, in words."""
        names = [f.name for f in fields(self) if f.name != "source"]
        if self.source and other.source:  # a run of the library has none
            names.append("source")
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return [f"{name}: {a!r} in the store, now {b!r}" for name, a, b in pairs if a != b]


@dataclass(frozen=True)
class Manifest:
    """The first thing that a run writes.

    Attributes:
        config: What determines the members.
        versions: The versions of what ran.
        commit: The commit of the folder it was started in; empty outside of a repository.
        created: When, in UTC.
        layout: What a sample is. The files for the readers of zarr follow from it.
        probe: What the schedule, the denoiser and the constraint return for fixed states; empty if
            they were not probed.
        chunk: How many members the run sampled at a time when it was begun; None for `auto`.
        observations: The parts of the constraint that are observed with errors, by name, and how
            many values each has.
        sizes: The numbers of members that were asked for before the store grew.

    Example:
        >>> config = feasibly.ensemble.Config("PPR()", "", 1e-6, 0, 100, (2,), "float32")
        >>> feasibly.ensemble.Manifest.new(config).populations()  # which share importance weights
        [range(0, 64), range(64, 100)]
    """

    config: Config
    versions: Mapping[str, str]
    commit: str
    created: str
    layout: Layout
    probe: Probe = field(default_factory=dict)
    chunk: int | None = None
    observations: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()

    def populations(self) -> list[range]:
        """Returns the members that share weights: those between multiples of their number, and the
        sizes that the store has had."""
        size, count = self.config.population, self.config.members
        ends = sorted({*range(0, count, size), *self.sizes, count})
        return list(starmap(range, pairwise(ends)))

    @classmethod
    def new(
        cls,
        config: Config,
        layout: Layout | None = None,
        probe: Probe | None = None,
        chunk: int | None = None,
        observations: Mapping[str, int] | None = None,
    ) -> "Manifest":
        """Describes a run that starts now and here."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        layout = Layout.read(asdict(layout or Layout.default(config.shape)))
        rest = (layout, probe or {}, chunk, observations or {})
        return cls(config, versions(), commit(), created, *rest)

    def encode(self) -> bytes:
        """Returns the content of the manifest's file."""
        content = sealed(asdict(self) | {"format": FORMAT})
        if len(content) > LIMITS["manifest"]:
            raise ValueError(
                f"The layout takes {len(content)} bytes, but a manifest holds at most "
                f"{LIMITS['manifest']}; leave out coordinates."
            )
        return content

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Reads a manifest, which may be anybody's.

        Raises:
            StoreError: If it is none, or not one that this version writes.
        """
        try:
            found = read_json(path, LIMITS["manifest"])
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read ({error.strerror}); is it a store?"
            ) from error
        if isinstance(found, dict) and found.get("format") in range(1, FORMAT):
            raise StoreError(
                f"{path} was written by an earlier version of feasibly, which draws different "
                "samples. Finish the run with that version, or start a new store."
            )
        found = unsealed(path, found)
        names = {f.name for f in fields(cls)} | {"format"}
        if found.get("format") != FORMAT or set(found) != names:
            raise StoreError(f"{path} is not a manifest of format {FORMAT}.")
        for name, valid in FIELDS.items():
            if not valid(found[name]):
                raise StoreError(f"{path}: {name} is {shown(found[name])}.")
        config = found["config"]
        known = {f.name for f in fields(Config)}
        if not isinstance(config, dict) or set(config) != known:
            raise StoreError(f"{path}: the configuration must have exactly {sorted(known)}.")
        try:
            made = Config(**{k: _tuples(v) for k, v in config.items()})
            layout = Layout.read(found["layout"])
            layout.check(made.shape)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error
        if max(found["sizes"], default=1) > made.members:
            raise StoreError(f"{path}: sizes is {shown(found['sizes'])}.")
        kept: dict[str, Any] = {name: found[name] for name in FIELDS}
        kept |= {"probe": _tuples(found["probe"]), "sizes": tuple(found["sizes"])}
        return cls(config=made, layout=layout, **kept)


def versions() -> dict[str, str]:
    """Returns the versions of what runs."""
    found = {"python": platform.python_version()}
    for name in ("feasibly", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from its source
            found[name] = "unknown"
    return found


def fingerprint(denoiser: Any) -> str:
    """Returns a checksum of a denoiser's weights and buffers; empty if it has none to show."""
    state = getattr(denoiser, "state_dict", None)
    tensors = state() if callable(state) else {}
    total = 0
    for name, value in sorted(tensors.items()):
        if isinstance(value, torch.Tensor):
            total = zlib.crc32(name.encode(), total)
            flat = value.detach().cpu().contiguous().reshape(-1)
            total = zlib.crc32(flat.view(torch.uint8).numpy(), total)
    return f"{total:08x}" if tensors else ""


def commit() -> str:
    """Returns the commit of the current folder, marked if files were changed since."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def sealed(found: Mapping[str, Any]) -> bytes:
    """Returns the content of a JSON file that has a checksum of its own."""
    return json.dumps({**found, "seal": _checksum(found)}, allow_nan=False).encode()


def unsealed(path: Path, found: Any) -> Any:
    """Returns what was sealed, given what was read from a file.

    Raises:
        StoreError: If it has changed since.
    """
    try:
        if isinstance(found, dict) and found.pop("seal", None) == _checksum(found):
            return found
    except (ValueError, RecursionError):  # of numbers that are too long, and lists too deep
        pass
    raise StoreError(f"{path} is damaged: its checksum is not that of its content.")


def _checksum(found: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(found, sort_keys=True).encode())


def read_json(path: Path, most: int = LIMITS["file"]) -> Any:
    """Reads a JSON file that anybody may have written, of so many bytes at most.

    Raises:
        StoreError: If it is no file, too long, no JSON, or has numbers that JSON does not know.
        OSError: If it cannot be read.
    """
    if path.is_symlink():
        raise StoreError(f"{path} is a link; a store's files must lie within it.")
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise StoreError(f"{path} is not a regular file; the store is damaged.")
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise StoreError(f"{path} is longer than {most} bytes, which no run writes.")
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({type(error).__name__}: {error}).") from error


def shown(value: Any) -> str:
    """Returns an untrusted value for an error message: short, and only printable characters."""
    brief = reprlib.Repr()
    brief.maxlevel = 2
    return brief.repr(value)


def is_text(value: Any) -> bool:
    """Whether an untrusted value is a printable line of text."""
    return isinstance(value, str) and len(value) <= LIMITS["text"] and value.isprintable()


def whole(low: int, high: int) -> Callable[[Any], bool]:
    """Returns whether an untrusted value is a whole number in a range, as a function of it."""
    return lambda value: type(value) is int and low <= value <= high


def number(low: float = 0.0) -> Callable[[Any], bool]:
    """Returns the same for a finite number."""
    return lambda value: type(value) in (int, float) and low <= value <= 1e300


def maybe(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns the same for a value that may be None."""
    return lambda value: value is None or valid(value)


def listed(valid: Callable[[Any], bool], most: float = math.inf) -> Callable[[Any], bool]:
    """Returns the same for a list or a tuple of at most so many values."""
    return lambda value: (
        isinstance(value, (list, tuple)) and len(value) <= most and all(map(valid, value))
    )


def _named(valid: Callable[[Any], bool], most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and len(value) <= most
        and all(is_text(k) and valid(v) for k, v in value.items())
    )


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _shape(value: Any) -> bool:
    sizes = listed(whole(1, LIMITS["elements"]), LIMITS["axes"])
    fits = isinstance(value, tuple) and value and sizes(value)
    return bool(fits) and math.prod(value) <= LIMITS["elements"]


def _source(value: Any) -> bool:
    texts = ("denoiser", "constraint", "method")
    return value == {} or (
        isinstance(value, Mapping)
        and set(value) == {*texts, "options"}
        and all(is_text(value[name]) for name in texts)
        and isinstance(value["options"], tuple)
        and all(map(is_text, value["options"]))
    )


def _plain(axis: Coordinate) -> Coordinate:
    """Returns an axis whose coordinates are Python's numbers."""
    if axis.values is None:
        return axis
    return replace(axis, values=tuple(float(v) for v in axis.values))


def _tuples(value: Any) -> Any:
    """JSON knows no tuples: lists become such, one level down in a mapping too."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    return value


PROBE = _named(listed(maybe(number(-1e300)), LIMITS["probe"]))

FIELDS: dict[str, Callable[[Any], bool]] = {
    "versions": _named(is_text),
    "commit": is_text,
    "created": is_text,
    "probe": lambda v: v == {} or (PROBE(v) and set(v) == set(PARTS)),
    "chunk": maybe(whole(1, LIMITS["members"])),
    "observations": _named(whole(1, LIMITS["elements"]), LIMITS["observations"]),
    "sizes": listed(whole(1, LIMITS["members"]), LIMITS["members"]),
}
"""What the fields of a manifest must be, besides `config` and `layout`."""

COUNT = (whole(1, LIMITS["members"]), f"a whole number from 1 to {LIMITS['members']}")

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (is_text, "a printable line"),
    "weights": (is_text, "a printable line"),
    "tolerance": (maybe(number()), "a number from 0, or none"),
    "seed": (whole(0, 2**32 - 1), "a whole number from 0 to 2^32 - 1"),
    "members": COUNT,
    "population": COUNT,
    "shape": (
        _shape,
        f"1 to {LIMITS['axes']} sizes in a tuple, such as (64, 32), of at most 2^40 elements",
    ),
    "dtype": (lambda v: v in ("float32", "float64"), "float32 or float64"),
    "infeasible": (lambda v: v in INFEASIBLE, f"one of {', '.join(INFEASIBLE)}"),
    "source": (_source, "empty, or denoiser, constraint, method and options"),
}
"""What the fields of a configuration must be, and that in words."""
