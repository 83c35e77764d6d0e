"""What Appa is loaded from: a folder in its layout, and the code in the user's own checkout."""

__all__ = ["Files", "code", "find", "read"]

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..errors import DenoiserError
from ..files import load_torch

LAYOUT = "autoencoders/*/*/latents/*/denoisers/*/*"
CODE = "https://github.com/montefiore-sail/appa"


@dataclass(frozen=True)
class Files:
    """What is read from a folder: the configurations of the denoiser's and of the autoencoder's
    training, their weights, the latents' moments, with shape (C), and the folder of the fields'
    statistics and masks, which need not exist."""

    denoiser: dict[str, Any]
    backbone: dict[str, Tensor]
    autoencoder: dict[str, Any]
    weights: dict[str, Tensor]
    mean: Tensor
    std: Tensor
    data: Path


def find(folder: Path) -> Path:
    """Returns the folder of the denoiser in a folder in Appa's layout, or that folder itself.

    Raises:
        DenoiserError: If there is none, or more than one.
    """
    folder = folder.expanduser().absolute()  # the layout is told from a folder's parents
    if len(folder.parents) > 2 and folder.parents[1].name == "denoisers":
        return folder
    found = sorted(path for path in folder.glob(LAYOUT) if path.is_dir())
    if len(found) == 1:
        return found[0]
    raise DenoiserError(
        f"{folder} has {len(found) or 'no'} denoisers at {LAYOUT}; give the folder of one"
        + (": " + ", ".join(map(str, found)) if found else ", or the folder above autoencoders/")
        + "."
    )


def read(folder: Path) -> Files:
    """Reads the files of a denoiser and of its autoencoder; of weights only tensors are read.

    Raises:
        DenoiserError: If files are missing or cannot be read, which are all named.
    """
    latents = folder.parents[2]
    faults: list[str] = []

    def take(load: Any, where: Path, *names: str) -> Any:
        path = next((where / n for n in names if (where / n).is_file()), None)
        if path is None:
            faults.append(f"{where / names[0]} is missing" + _or(names[1:]))
            return {}
        try:
            return load(path)
        except Exception as error:  # whatever a damaged file makes of a parser
            earlier = path.with_suffix(".prev.pth")
            also = f"; the save before it is {earlier.name}" if earlier.is_file() else ""
            faults.append(f"{path} cannot be read ({_first(error)}){also}")
            return {}

    own = ("model_best.pth", "model.pth", "model_last.pth")
    config = take(_config, folder, "config.yaml")
    backbone = take(_tensors, folder, *own)
    ae_config = take(_config, latents / "ae", "config.yaml")
    weights = take(_tensors, latents / "ae", "model.pth", *own)
    stats = take(_tensors, latents, "stats.pth")
    if not faults:
        faults += [
            f"{path} lacks {', '.join(lacking)}"
            for path, held, needed in (
                (folder / "config.yaml", config, ("backbone", "train")),
                (latents / "ae" / "config.yaml", ae_config, ("ae",)),
                (latents / "stats.pth", stats, ("mean", "std")),
            )
            if (lacking := [key for key in needed if key not in held])
        ]
    if faults:
        raise DenoiserError(
            f"Appa cannot be loaded from {folder}:\n  "
            + "\n  ".join(faults)
            + "\nGive a complete copy of the released folders; era5.h5 and the like are not read."
        )
    mean, std = (torch.as_tensor(stats[key]).double().flatten() for key in ("mean", "std"))
    data = folder.parents[min(7, len(folder.parents) - 1)] / "data"
    return Files(config, backbone, ae_config, weights, mean, std, data)


def code(checkout: str | Path | None, name: str) -> Any:
    """Imports a module of Appa, from the user's checkout or from where Python finds it.

    Appa imports parts of xformers at once, which it needs for sparse attention only. Where they
    cannot be imported, empty stand-ins take their place during the import and no longer.

    Raises:
        DenoiserError: If it cannot be imported, or another copy was imported before.
    """
    path = None if checkout is None else Path(checkout).expanduser().resolve()
    try:
        with _on_path(path), _without_xformers():
            module = importlib.import_module(name)
    except ImportError as error:
        raise DenoiserError(
            f"Appa's code cannot be imported ({error}). Clone {CODE} and give its folder as "
            "checkout=...; `pip install feasibly[appa]` brings what that code imports. Its own "
            "requirements pin an old torch, so do not install it."
        ) from error
    origin = Path(str(module.__file__)).resolve()
    if path is not None and path not in origin.parents:
        raise DenoiserError(
            f"{name} was imported from {origin} before, not from {path}; use one copy of Appa's "
            "code in a process."
        )
    return module


@contextmanager
def _on_path(path: Path | None) -> Generator[None]:
    before = list(sys.path)
    if path is not None:
        sys.path.insert(0, str(path))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _without_xformers() -> Generator[None]:
    core, sparse = "xformers.components.attention.core", "xformers.sparse"
    stubs: dict[str, ModuleType] = {}
    try:
        importlib.import_module(core)
        importlib.import_module(sparse)
    except ImportError:
        for name in (sparse, *(core.rsplit(".", k)[0] for k in range(4))):
            stubs[name] = ModuleType(name)
            stubs[name].__path__ = []
        # what is touched at import: attributes that are set, a class, and a flag
        vars(stubs[core])["_has_cpp_library"] = False
        vars(stubs[sparse]).update(utils=SimpleNamespace(), SparseCSRTensor=type("Stub", (), {}))
    before = {name: sys.modules.get(name) for name in stubs}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _config(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ImportError("pip install pyyaml, or feasibly[appa]") from error
    found = yaml.safe_load(path.read_text())
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    return found


def _tensors(path: Path) -> dict[str, Tensor]:
    found = load_torch(path)
    if not isinstance(found, dict):
        raise ValueError(f"no dictionary of tensors but {type(found).__name__}")
    return found


def _or(names: tuple[str, ...]) -> str:
    return f" (or {' or '.join(names)})" if names else ""


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
