"""Activations that are computed again instead of kept."""

__all__ = ["recompute"]

from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Net = TypeVar("Net", bound=nn.Module)


def recompute(network: Net, *kinds: type[nn.Module]) -> Net:
    """Has the blocks of a network compute their activations again when a gradient is taken.

    The values are the same; a gradient takes one forward more. The network is changed in place and
    returned; its parameters, and their names, stay as they are.

    Arguments:
        network: The network.
        kinds: The classes of its blocks. A block within a block stays as it is.

    Raises:
        ValueError: If it has no such block.
    """
    blocks = [m for m in network.modules() if isinstance(m, kinds)]
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    outer = [block for block in blocks if id(block) not in inner]
    if not outer:
        raise ValueError(
            f"{type(network).__name__} has no block of {[kind.__name__ for kind in kinds]}; its "
            f"parts are {sorted({type(m).__name__ for m in network.modules()})}."
        )
    for block in outer:
        block.__class__ = _recomputing(type(block))
    return network


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    # a class and no function on the block, which a copy of the network would share with it
    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        given = [v for v in (*args, *options.values()) if isinstance(v, Tensor)]
        run = partial(kind.forward, self)
        if torch.is_grad_enabled() and any(v.requires_grad for v in given):
            return checkpoint(run, *args, use_reentrant=False, **options)
        return run(*args, **options)

    return type(kind.__name__, (kind,), {"forward": forward})
