"""The control: an unconditional sample, projected once at the end."""

__all__ = ["PostHoc"]

from typing import Any

from torch import Tensor

from ..minimizers import GaussNewton, Minimizer
from .ancestral import Ancestral


class PostHoc(Ancestral):
    r"""Samples without the constraint, then projects the sample itself once.

    The projection is in clean space, :math:`\arg\min_x c(x)` from the sample, and asks nothing of
    the network. It is the control of every comparison: nearly all of its samples are feasible,
    but they need not look like data any more.

    Arguments:
        args: The denoiser and the constraint.
        minimize: The minimizer of the projection.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    def __init__(
        self,
        *args: Any,
        minimize: Minimizer = GaussNewton(steps=32, max_distance=None),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.constraint is None:
            raise ValueError("PostHoc needs a constraint; without one use Ancestral(denoiser).")
        self.minimize = minimize

    def finish(self, x_0: Tensor) -> Tensor:
        return self.minimize(lambda x: (self.constraint.residual(x), x), x_0, self.stop).x_0
