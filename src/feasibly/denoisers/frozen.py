"""A network in evaluation mode whose weights take no gradient."""

__all__ = ["frozen"]

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


@torch.inference_mode(False)
@torch.no_grad()  # in which TorchScript copies weights as weights
def frozen(module: nn.Module, kind: type[Exception] = ValueError) -> Any:
    """Returns a module in evaluation mode whose parameters take no gradient.

    A module that is so already is returned itself. Any other is left as it is, and a copy of it is
    returned, which shares its weights and buffers, but for a TorchScript module's.

    Raises:
        kind: If a copy is needed and the module cannot be copied, or its weights are not
            there yet or were made in inference mode.
    """
    name, weights = type(module).__name__, [*module.parameters(), *module.buffers()]
    if any(map(is_lazy, weights)):
        raise kind(
            f"{name} has lazy layers whose weights do not exist yet. Call it once, as net(x, "
            "time), and load its weights."
        )
    if any(weight.is_inference() for weight in weights):
        raise kind(
            f"The weights of {name} were created under torch.inference_mode(), so that nothing "
            "can be differentiated through them. Create and load the network outside of that mode."
        )
    training = any(getattr(part, "training", False) for part in module.modules())
    if not training and not any(p.requires_grad for p in module.parameters()):
        return module
    shared: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
    for p in module.parameters():
        if type(p) is nn.Parameter:  # others, quantised ones, say, know how to copy themselves
            shared[id(p)] = nn.Parameter(p.detach(), requires_grad=False)
    for part in module.modules():
        for kept in _kept(vars(part)):  # between calls, with its graph, which has no copy
            shared.setdefault(id(kept), kept.detach())
    try:
        found = copy.deepcopy(module, shared)
    except Exception as error:  # whatever a module of the user's makes of it
        raise kind(
            f"{name} cannot be copied ({type(error).__name__}: {error}). Call "
            ".eval().requires_grad_(False) on it first; then it is used as it is."
        ) from error
    with suppress(NotImplementedError):  # an exported one has the mode that it was exported in
        found.eval()
    for p in found.parameters():  # TorchScript has no requires_grad_ of modules
        p.requires_grad_(False)
    return found


def _kept(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in an attribute that are results of others."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _kept(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _kept(one)
