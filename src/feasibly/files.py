"""Files that anybody may have written: read without a hang, and without more memory than they are
long."""

__all__ = ["check_file", "load_tensors", "load_torch", "remedy", "save_tensors"]

import errno
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .machine import size


def remedy(error: OSError) -> str:
    """Says what helps if a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room"
    if error.errno == errno.ENOENT:
        return "its folder is gone, so restore it or choose another place"
    return "choose a place where this user may write"


def check_file(path: Path | str) -> Path:
    """Returns the path of a regular file; raises a ValueError of a pipe or device, or if there is
    none."""
    path = Path(path)
    if not path.is_file():  # of what a link leads to
        there = "is not a regular file" if os.path.lexists(path) else "does not exist"
        raise ValueError(f"{path} {there}.")
    return path


def load_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns what :func:`save_tensors` has written; raises a ValueError of other files."""
    try:
        with safe_open(check_file(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["feasibly"])
            if not isinstance(about, dict):
                raise ValueError("its metadata are no JSON object")
            return {key: file.get_tensor(key) for key in file.keys()}, about  # noqa: SIM118
    except KeyError as error:
        raise ValueError(f"it has no metadata of {error}") from error
    except (SafetensorError, RecursionError, OSError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def load_torch(path: Path | str) -> Any:
    """Returns tensors, alone or by name, that `torch.save` has written.

    Raises:
        ValueError: If the file would take more memory than it is long.
        Exception: Whatever torch makes of a file that is none.
    """
    path = check_file(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > path.stat().st_size:  # torch does not compress
            raise ValueError(f"it unpacks to {size(unpacked)}")
    found = torch.load(path, map_location="cpu", weights_only=True)
    for one in found.values() if isinstance(found, dict) else [found]:
        if isinstance(one, Tensor) and one.nbytes > one.untyped_storage().nbytes():
            raise ValueError(
                f"a tensor of shape {tuple(one.shape)} is stored as few numbers that repeat"
            )
    return found


def save_tensors(tensors: dict[str, Tensor], path: Path | str, about: Mapping[str, Any]) -> None:
    """Writes tensors and what is known of them, readable for whom the user's umask says."""
    save_file(tensors, path, metadata={"feasibly": json.dumps(about)})
    mask = os.umask(0o077)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)  # which is for the owner alone otherwise
