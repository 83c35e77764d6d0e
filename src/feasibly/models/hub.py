"""Snapshots of models from the Hugging Face hub, or from its cache on this machine."""

__all__ = ["PREFIX", "is_on_hub", "snapshot"]

from pathlib import Path
from typing import Any

from ..errors import DenoiserError

PREFIX = "hub:"
WEIGHTS = "diffusion_pytorch_model"
FILES = (
    *(
        folder + name
        for folder in ("", "unet/", "transformer/")
        for name in (
            "config.json",
            f"{WEIGHTS}.safetensors",
            f"{WEIGHTS}-*-of-*.safetensors",
            f"{WEIGHTS}.safetensors.index.json",
        )
    ),
    "scheduler_config.json",
    "scheduler/scheduler_config.json",
)
"""What is loaded: configurations and weights of the network, and no pickles, which could run
code."""


def is_on_hub(net: Any) -> bool:
    """Whether this is the name of a model on the hub: "hub:organisation/name"."""
    return isinstance(net, str) and net.startswith(PREFIX)


def snapshot(name: str) -> Path:
    """Returns the folder of a model of the hub, which is loaded if it is not in the cache yet.

    The main revision is looked up each time; give a revision to repeat a run. Where the hub cannot
    be reached, the snapshot of the cache is taken.

    Arguments:
        name: "hub:organisation/name", with "@revision" behind it for another than the main one.

    Raises:
        DenoiserError: If huggingface_hub is missing, or there is no such model here or there.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise DenoiserError(
            f"{name!r} needs huggingface_hub, which cannot be imported ({error}). Install it by "
            "`pip install huggingface_hub`; diffusers brings it too."
        ) from error
    model, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        folder = snapshot_download(model, revision=revision or None, allow_patterns=list(FILES))
    except LocalEntryNotFoundError as error:
        raise DenoiserError(
            f"The hub cannot be reached, and the cache of this machine does not contain {name!r}. "
            "Load it where there is a network, or pass the folder of the model to wrap()."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise DenoiserError(
            f"The hub does not provide {name!r}: {said} The name is 'hub:organisation/name', "
            "followed by '@revision' if you need one."
        ) from error
    return Path(folder)
