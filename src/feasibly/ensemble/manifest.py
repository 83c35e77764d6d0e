"""What a store says of its run, and the test that it says nothing else."""

__all__ = ["INFEASIBLE", "LIMITS", "Config", "Manifest", "fingerprint", "versions"]

import json
import math
import platform
import subprocess
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..checks.probe import Probe, is_probe
from ..errors import StoreError
from .files import read_json, shown, write

FORMAT = 2
INFEASIBLE = ("keep", "retry", "drop")
LIMITS = {"members": 10**6, "axes": 16, "elements": 2**40, "text": 10_000}
"""The largest run that a store may claim to be, so that a forged one takes no memory."""


@dataclass(frozen=True)
class Config:
    """What determines the members of a run, besides what its
    :func:`probe <feasibly.checks.probe.probe>` tells apart.

    Attributes:
        method: The sampler, in words: its `repr`.
        weights: The :func:`fingerprint` of the denoiser's weights.
        tolerance: The constraint's tolerance; None without a constraint.
        seed: The seed of the ensemble.
        members: The number of members; their indices start at 0.
        shape: The shape of one sample.
        dtype: The type of the samples, `float32` or `float64`.
        infeasible: What happens to members that end infeasible: `keep` counts them; `retry` does
            not, and that is all that it changes; `drop` leaves them out of the store. Whichever
            it is, the sampler has drawn them again `retries` times before, as `method` says.
        source: The arguments of the command that started the run, to start it again; empty for a
            run of the library.
    """

    method: str
    weights: str
    tolerance: float | None
    seed: int
    members: int
    shape: tuple[int, ...]
    dtype: str
    infeasible: str = "keep"
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
        return [f"{name}: {a!r}, here {b!r}" for name, a, b in pairs if a != b]


@dataclass(frozen=True)
class Manifest:
    """The first thing that a run writes.

    Attributes:
        config: What determines the members.
        versions: The versions of what ran.
        commit: The commit of the folder it was started in; empty outside of a repository.
        created: When, in UTC.
        variable: The name of the variable that holds the samples.
        probe: What the schedule, the denoiser and the constraint return for fixed states; empty
            if nobody asked them.
    """

    config: Config
    versions: Mapping[str, str]
    commit: str
    created: str
    variable: str = "samples"
    probe: Probe = field(default_factory=dict)

    @classmethod
    def new(
        cls, config: Config, variable: str = "samples", probe: Probe | None = None
    ) -> "Manifest":
        """Describes a run that starts now and here."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(config, versions(), commit(), created, variable, probe or {})

    def save(self, path: Path) -> None:
        """Writes the manifest."""
        write(path, json.dumps(asdict(self) | {"format": FORMAT}, indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Reads a manifest, which may be anybody's.

        Raises:
            StoreError: If it is none, or not one that this version writes.
        """
        try:
            found = read_json(path)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read ({error.strerror}); is it a store?"
            ) from error
        names = {f.name for f in fields(cls)} | {"format"}
        if not isinstance(found, dict) or found.get("format") != FORMAT or set(found) != names:
            raise StoreError(
                f"{path} is no manifest of format {FORMAT}; the store is damaged, or of another "
                "version of feasibly."
            )
        config = found["config"]
        known = {f.name for f in fields(Config)}
        if not isinstance(config, dict) or set(config) != known:
            raise StoreError(f"{path}: the configuration must have exactly {sorted(known)}.")
        for name in ("versions", "commit", "created", "variable"):
            if not (_texts(found[name]) if name == "versions" else _text(found[name])):
                raise StoreError(f"{path}: {name} is not text but {shown(found[name])}.")
        if not found["variable"].isidentifier():
            raise StoreError(f"{path}: the variable is called {shown(found['variable'])}.")
        try:
            made = Config(**{k: _tuples(v) for k, v in config.items()})
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error
        if found["probe"] != {} and not is_probe(found["probe"]):
            raise StoreError(f"{path}: the probe is {shown(found['probe'])}.")
        probe = {name: tuple(numbers) for name, numbers in found["probe"].items()}
        texts = (found[name] for name in ("versions", "commit", "created", "variable"))
        return cls(made, *texts, probe)


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


def _whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _text(value: Any) -> bool:
    # nothing that a terminal obeys
    return isinstance(value, str) and len(value) <= LIMITS["text"] and value.isprintable()


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_text(k) and _text(v) for k, v in value.items())


def _shape(value: Any) -> bool:
    if not isinstance(value, tuple) or not 1 <= len(value) <= LIMITS["axes"]:
        return False
    return all(_whole(v, 1, LIMITS["elements"]) for v in value) and (
        math.prod(value) <= LIMITS["elements"]
    )


def _source(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    if not value:
        return True
    names = {"denoiser", "constraint", "method", "options"}
    options = value.get("options")
    return (
        set(value) == names
        and isinstance(options, tuple)
        and all(map(_text, options))
        and all(_text(value[name]) for name in names - {"options"})
    )


def _tolerance(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def _tuples(value: Any) -> Any:
    """JSON knows no tuples: lists become such, one level down in a mapping too."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    return value


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (_text, "a printable line"),
    "weights": (_text, "a printable line"),
    "tolerance": (_tolerance, "a number from 0, or none"),
    "seed": (lambda v: _whole(v, 0, 2**32 - 1), "a whole number from 0 to 2^32 - 1"),
    "members": (lambda v: _whole(v, 1, LIMITS["members"]), f"1 to {LIMITS['members']}"),
    "shape": (_shape, f"1 to {LIMITS['axes']} sizes, of at most 2^40 elements in all"),
    "dtype": (lambda v: v in ("float32", "float64"), "float32 or float64"),
    "infeasible": (lambda v: v in INFEASIBLE, f"one of {', '.join(INFEASIBLE)}"),
    "source": (_source, "empty, or denoiser, constraint, method and options"),
}
