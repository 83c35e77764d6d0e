"""A network in evaluation mode whose weights take no gradient."""

__all__ = ["frozen"]

import copy
from typing import Any

from torch import nn


def frozen(module: nn.Module) -> Any:
    """Returns a module in evaluation mode whose parameters take no gradient.

    A module that is so already is returned itself. Any other is left as it is, and a copy of it is
    returned, which shares its weights and buffers.

    Raises:
        ValueError: If a copy is needed and the module cannot be copied.
    """
    training = any(part.training for part in module.modules())
    if not training and not any(p.requires_grad for p in module.parameters()):
        return module
    shared: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
    for p in module.parameters():
        if type(p) is nn.Parameter:  # others, quantised ones, say, know how to copy themselves
            shared[id(p)] = nn.Parameter(p.detach(), requires_grad=False)
    try:
        found = copy.deepcopy(module, shared)
    except Exception as error:  # whatever a module of the user's makes of it
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}). Call "
            ".eval().requires_grad_(False) on it first; then it is used as it is."
        ) from error
    return found.eval().requires_grad_(False)
