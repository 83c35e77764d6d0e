"""`python -m feasibly check`: a denoiser and a constraint, before use."""

__all__ = ["check"]

from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from torch import Tensor

from .. import fitness
from ..denoisers import Adapter
from ..files import check_file, load_torch
from .compare import listed
from .load import load_constraint, load_denoiser
from .words import Screen, Shape


def check(
    denoiser: str,
    constraint: str | None = None,
    shape: Shape = (2,),
    data: Path | None = None,
    seed: int = 0,
) -> int:
    """Test a denoiser and a constraint before use.

    Prints what the denoiser assumes, its error at several noise levels relative to the variance
    of the data, and which method `sample` would choose. With data, it also says which assumption
    is wrong, if any. Exits with 1 if something is wrong.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), the file of a prior, the folder of a
            diffusers model, hub:organisation/name for a model on the Hugging Face hub, or
            module:function for a function of yours that returns a denoiser, for example by
            feasibly.wrap.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function.
        shape: The shape of one sample.
        data: Clean data to test the denoiser on, an .npy or .pt file of shape (N, *). Without data
            the denoiser is tested on its own samples, which finds fewer mistakes.
        seed: The seed.
    """
    console = Screen()
    clean = None if data is None else load_data(data, shape)
    wanted = None if constraint is None else load_constraint(constraint)
    model = load_denoiser(denoiser)
    if isinstance(model, Adapter):  # before the work, which may fail for what it assumes
        console.say(repr(model))
    found = fitness.check(model, wanted, shape, data=clean, seed=seed)
    listed(found.table(), None, console)
    for sentence in found.sentences:
        console.say(sentence)
    return 0 if found.ok else 1


def load_data(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Clean data from an array of NumPy (.npy) or a tensor of torch (.pt)."""
    try:
        if path.suffix in (".pt", ".pth"):
            found = torch.as_tensor(load_torch(path)).float()
        else:  # mapped, since its header may tell of more numbers than there are
            found = torch.from_numpy(np.load(check_file(path), mmap_mode="c")).float()
    except (OSError, EOFError, TypeError, ValueError, RuntimeError, UnpicklingError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); give an array written by numpy.save (.npy), or a "
            "tensor written by torch.save (.pt)."
        ) from error
    if tuple(found.shape[1:]) != tuple(shape):
        raise ValueError(
            f"{path} has samples of shape {tuple(found.shape[1:])}, but --shape is {shape}; give "
            "the shape of one sample."
        )
    return found
