"""Post-hoc projection: an unconditional sample, projected once at the end."""

from dataclasses import dataclass

from torch import Tensor

from ..minimizers import GaussNewton, Minimizer
from .ancestral import Ancestral


@dataclass(frozen=True, kw_only=True)
class PostHoc(Ancestral):
    r"""Samples without the constraint, then projects the sample itself once.

    The projection is :math:`\arg\min_x c(x)` from the sample, without the network. Nearly all
    samples are feasible, but they need not look like data any more.

    Arguments:
        minimize: The minimizer of the projection.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=16)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    enforces = True
    space = "x_0"

    minimize: Minimizer = GaussNewton(steps=32, max_distance=None)

    def finish(self, x_0: Tensor) -> Tensor:
        return self.minimize(lambda x: (self.constraint.residual(x), x), x_0, self.stop).x_0
