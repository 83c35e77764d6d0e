"""The trained priors of the package `feasibly-priors`: a safetensors file and a card for each."""

__all__ = ["available", "digest", "home", "load", "load_autoencoder", "save", "save_autoencoder"]

import hashlib
import importlib.util
import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from .denoisers import Correlated, Karras
from .errors import safe
from .files import load_tensors, save_tensors
from .nn import ModulatedMLP, SphereAutoencoder, SphereNet, UNet, ZonalCovariance
from .schedules import LogLogit

BACKBONES = {"ModulatedMLP": ModulatedMLP, "SphereNet": SphereNet, "UNet": UNet}
SCHEDULES = {"LogLogit": LogLogit}
M = TypeVar("M", bound=nn.Module)
AUTOENCODERS = {"SphereAutoencoder": SphereAutoencoder}

LARGEST = {"size": 4096, "list": 64}
"""The largest number that a file may give for a width or a number of layers, and the longest list
of them: a network is described before its weights are known."""


def home() -> Path:
    """Returns the folder of the shipped priors: that of the checkout that this module is part of,
    or of the package `feasibly-priors`; neither need be there.

    Example:
        >>> feasibly.priors.home().name
        'feasibly_priors'
    """
    checkout = Path(__file__).parents[2] / "priors" / "feasibly_priors"
    found = importlib.util.find_spec("feasibly_priors")
    if checkout.is_dir() or found is None or found.origin is None:
        return checkout
    return Path(found.origin).parent


def available() -> list[str]:
    """Returns the names of the shipped priors, without those of autoencoders.

    Example:
        >>> "banana" in feasibly.priors.available()
        True
    """
    names = (path.stem for path in home().glob("*.safetensors"))
    return sorted(name for name in names if not name.endswith("-autoencoder"))


def digest(name: str) -> str:
    """Returns what tells a shipped prior's weights from others: eight digits of their hash.

    Example:
        >>> len(feasibly.priors.digest("banana"))
        8
    """
    path = home() / f"{name}.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def load(name: str) -> Karras:
    """Loads a prior, ready to sample: in evaluation mode and without gradients for its weights.

    Arguments:
        name: The name of a shipped prior, or the path of a file written by :func:`save`.

    Raises:
        ValueError: If there is no such prior, or its file is damaged: its weights are not finite,
            say, or are not those of the network that it describes.

    Example:
        >>> banana = feasibly.priors.load("banana")
        >>> banana(torch.zeros(3, 2), torch.tensor(0.5)).mean.shape
        torch.Size([3, 2])
    """

    def make(spec: dict[str, Any]) -> Karras:
        if not 0 < spec["sigma_data"] < math.inf:
            raise ValueError(f"sigma_data is {spec['sigma_data']}")
        backbone = BACKBONES[spec["backbone"]](**spec["backbone_options"])
        schedule = SCHEDULES[spec["schedule"]](**spec["schedule_options"])
        if "covariance" in spec:
            return Correlated(backbone, schedule, ZonalCovariance(**spec["covariance"]))
        return Karras(backbone, schedule, spec["sigma_data"])

    return _read(name, make)


def load_autoencoder(name: str) -> SphereAutoencoder:
    """Loads the autoencoder of a latent prior, as :func:`load` does a prior.

    Example:
        >>> type(feasibly.priors.load_autoencoder("weather-autoencoder")).__name__
        'SphereAutoencoder'
    """
    return _read(name, lambda spec: AUTOENCODERS[spec["autoencoder"]](**spec["options"]))


def save(
    denoiser: Karras,
    path: Path,
    backbone_options: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    covariance_options: dict[str, Any] | None = None,
) -> None:
    """Writes a prior, by the arguments with which its backbone and its covariance were made.

    Arguments:
        path: The file to write, ending in `.safetensors`.
        dtype: The precision in which the weights are stored; they are loaded in single precision.

    Raises:
        ValueError: If its weights are not finite, or its sizes too large to be loaded again.

    Example:
        >>> backbone = feasibly.nn.ModulatedMLP(width=8, layers=1)
        >>> model = feasibly.Karras(backbone, feasibly.schedules.LogLogit(), sigma_data=0.5)
        >>> feasibly.priors.save(model, folder / "mine.safetensors", {"width": 8, "layers": 1})
        >>> feasibly.priors.load(folder / "mine.safetensors").sigma_data
        0.5
    """
    spec = {
        "backbone": type(denoiser.backbone).__name__,
        "backbone_options": backbone_options,
        "schedule": type(denoiser.schedule).__name__,
        "schedule_options": vars(denoiser.schedule),
        "sigma_data": denoiser.sigma_data,
    }
    if isinstance(denoiser, Correlated):
        spec["covariance"] = covariance_options
    _write(denoiser, path, spec, dtype)


def save_autoencoder(
    autoencoder: SphereAutoencoder,
    path: Path,
    options: dict[str, Any],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes an autoencoder that was made with `options`, as :func:`save` does a prior.

    Example:
        >>> options = {"fields": 1, "rows": 8, "latent": 2, "channels": [16, 32]}
        >>> model = feasibly.nn.SphereAutoencoder(**options)
        >>> feasibly.priors.save_autoencoder(model, folder / "mine.safetensors", options)
        >>> type(feasibly.priors.load_autoencoder(folder / "mine.safetensors")).__name__
        'SphereAutoencoder'
    """
    spec = {"autoencoder": type(autoencoder).__name__, "options": options}
    _write(autoencoder, path, spec, dtype)


def _read(name: str, make: Callable[[dict[str, Any]], M]) -> M:
    path = Path(name)
    if path.suffix != ".safetensors":
        path = home() / f"{name}.safetensors"
    if not path.is_file():
        names = available()
        if not names and path.parent == home():
            raise ValueError(
                f"The prior {name!r} is not installed: its weights come in a package of their "
                "own. Run `pip install feasibly-priors`."
            )
        raise ValueError(
            f"There is no prior {name!r}; choose one of {names}, or give the path of a "
            ".safetensors file written by `python -m experiments train`."
        )
    try:
        weights, spec = load_tensors(path)
        _check(spec, weights)
        with torch.device("meta"):  # where sizes take no memory
            described = {key: value.shape for key, value in make(spec).state_dict().items()}
        if described != {key: value.shape for key, value in weights.items()}:
            raise ValueError("its weights are not those of the network that it describes")
        model = make(spec)
        model.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        said = safe(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"The prior file {path} cannot be read ({said}); it is damaged or was "
            "not written by feasibly. Install or train it again."
        ) from error
    return model.eval().requires_grad_(False)


def _write(model: nn.Module, path: Path, spec: dict[str, Any], dtype: torch.dtype) -> None:
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    weights |= {k: v.to(dtype).contiguous() for k, v in model.named_parameters()}
    _check(spec, weights)
    save_tensors(weights, path, spec)


def _check(spec: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Refuses a description by which a network would be too large, and weights that are none."""
    for part in ("backbone_options", "covariance", "options"):
        options = spec.get(part, {}) if isinstance(spec, dict) else None
        if not isinstance(options, dict):
            raise ValueError(f"{part} are no options, but {reprlib.repr(options)}")
        for name, value in options.items():
            sizes = value if isinstance(value, list | tuple) else [value]
            if len(sizes) > LARGEST["list"] or any(
                type(size) is not int or not 1 <= size <= LARGEST["size"] for size in sizes
            ):
                raise ValueError(
                    f"{name} must be 1 to {LARGEST['size']}, got {reprlib.repr(value)}"
                )
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")
