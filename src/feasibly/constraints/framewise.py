r"""Violations that are a sum over frames, differentiated one frame at a time."""

__all__ = ["Framewise"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .equality import Scalar


class Framewise(Scalar):
    r"""The violation :math:`c(x) = \sum_f c_f(x^f)`, where the terms are costly: each decodes its
    frame through a large network, for instance.

    Back-propagation is in two stages. With every term its gradient is taken at once, on a copy of
    its frame that is cut off from whatever :math:`x` depends on; the sum of these gradients is
    then pulled back through that (a denoiser) in one go. This is the chain rule, and exact. Memory
    holds the activations of one frame of one member, however many frames and members there are,
    and no term is evaluated twice. There are no second derivatives.

    To a sampler this is one residual, :math:`\sqrt{c}`, however much is observed. What PPR chooses
    by the number of residuals is then too late and too little: set `sigma_max` to 10 and
    `minimize` to `LBFGS` where a term is a sum over many values.

    Arguments:
        term: The violation :math:`c_f \geq 0` of a frame, a function `(x_f, f)` of frames of one
            time, with shape :math:`(B, *)`, and its index, which returns a tensor of shape
            :math:`(B)`. It is handed one member at a time.
        frames: The indices of the frames that are summed over, along the first axis of a sample.
        tolerance: The largest :math:`c` of a feasible sample.
    """

    def __init__(
        self, term: Callable[[Tensor, int], Tensor], frames: Sequence[int], tolerance: float
    ) -> None:
        super().__init__(self._sum, tolerance)
        if not frames:
            raise ValueError("Framewise(frames=...) must name at least one frame, got none.")
        self.term, self.frames = term, tuple(frames)

    def _sum(self, x: Tensor) -> Tensor:
        tangent = forward_ad.unpack_dual(x).tangent
        wanted = (x.requires_grad and torch.is_grad_enabled()) or tangent is not None
        return _TwoStages.apply(x, self.term, self.frames, wanted)[0]


class _TwoStages(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, term: Callable[[Tensor, int], Tensor], frames: tuple[int, ...], wanted: bool
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.zeros_like(x)
        c = x.new_zeros(len(x))
        for i in range(len(x)):
            for f in frames:
                with torch.set_grad_enabled(wanted):
                    x_f = x[i : i + 1, f].detach().requires_grad_(wanted)
                    c_f = term(x_f, f).sum()
                if wanted:
                    gradient[i, f] += torch.autograd.grad(c_f, x_f)[0][0]
                c[i] += c_f.detach()
        return c, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        scale = upstream[0].reshape(-1, *(1,) * (gradient.ndim - 1))
        return scale * gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * tangents[0]).flatten(start_dim=1).sum(dim=1), None
