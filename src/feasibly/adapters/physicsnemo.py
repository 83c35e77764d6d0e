r"""A solver for PhysicsNeMo's `sample`, whose interface is spoken by duck typing.

References:
    | https://github.com/NVIDIA/physicsnemo, physicsnemo.diffusion.samplers
"""

__all__ = ["PPRSolver"]

from dataclasses import replace

import torch
from torch import Tensor

from ..constraints import Constraint
from ..denoisers.adapter import Adapter
from ..errors import DenoiserError, InfeasibleWarning, advise
from ..members import calling
from ..models.tables import TimeTable
from ..network import own_mode
from ..problem import Problem
from ..samplers import PPR
from ..samplers.base import bisected

ROUNDING = 1e-5
"""How far a time may be outside of the scheduler's range, relative to it: times are rounded."""


class PPRSolver:
    r"""PPR as the solver of PhysicsNeMo's own `sample`, which then returns feasible samples.

    .. code-block:: python

        denoiser = feasibly.wrap(net, "physicsnemo", scheduler)
        solver = PPRSolver(denoiser, constraint)
        x_0 = sample(rhs, x_N, scheduler, num_steps=64, solver=solver)

    The first argument of `sample` is not used. Between two positive times :math:`t > s` a step
    predicts, projects and renoises; see :class:`feasibly.PPR`. The last step, to time zero,
    projects at the last positive time, and returns the clean estimate. What is not feasible then
    is warned of, and not sampled again. Noise is torch's global one, as in PhysicsNeMo's
    stochastic solvers. Row i of a batch has the condition of row i.

    Samples of PPR meet the constraint, and their spread can be too small: of a Gaussian given one
    linear equation they have about half the exact variance. Where samples need not come from
    PhysicsNeMo's `sample`, take `feasibly.sample(denoiser, constraint, n, shape)`, which weighs
    samples and has the exact one there.

    Arguments:
        denoiser: What `feasibly.wrap(net, "physicsnemo", scheduler)` returned, for the scheduler
            that `sample` gets.
        constraint: The constraint, without noise.
        method: The options of PPR; None for its defaults. The steps are those of `sample`, and
            `steps`, `spacing` and `output` have no effect.

    Raises:
        DenoiserError: If the denoiser was not wrapped so.
        ValueError: If the method is another one.
    """

    def __init__(
        self, denoiser: Adapter, constraint: Constraint, method: PPR | None = None
    ) -> None:
        path = getattr(denoiser, "schedule", None)
        if not isinstance(path, TimeTable):
            raise DenoiserError(
                "PPRSolver takes what feasibly.wrap(net, 'physicsnemo', scheduler) returns, whose "
                f"clock is the scheduler's; got {type(denoiser).__name__}."
            )
        method = PPR() if method is None else method
        if not isinstance(method, PPR) or method.chooses:
            raise ValueError(
                "PPRSolver(method=...) takes PPR(...) or, for inequalities, TruncatedPPR(...), "
                f"got {method!r}; sample by others with feasibly.sample."
            )
        self.denoiser, self.constraint, self.method, self.path = denoiser, constraint, method, path

    @own_mode()
    def step(self, x: Tensor, t_cur: Tensor, t_next: Tensor) -> Tensor:
        """Goes from time `t_cur` to `t_next`, both with shape (B) and equal in all rows.

        Arguments:
            x: The states, with shape (B, *), float32 or float64.
            t_cur: The scheduler's time of the states.
            t_next: The scheduler's time to go to; zero for data.

        Raises:
            ValueError: If times differ between rows, or are outside of the scheduler's range, or
                the constraint has noise.
        """
        problem = Problem(
            self.denoiser, self.constraint, x.shape[1:], dtype=x.dtype, device=x.device
        )
        kernel = replace(self.method, problem=problem)
        t = self._time(t_cur)
        with calling(range(len(x)), x.device):
            if t_next[0] > 0:
                return kernel.step(x, t, self._time(t_next)).x
            kernel = replace(kernel, minimize=kernel.last or kernel.minimize)
            x_0 = kernel.project(x, t, kernel.noise_level(t)).x_0
            missed = int((~self.constraint.is_feasible(x_0)).sum())
        if missed:
            advise(
                f"{missed} of {len(x)} samples of PPRSolver are not feasible. Allow more steps, "
                "or a longer last projection, as in PPR(last=feasibly.LBFGS(steps=64)).",
                InfeasibleWarning,
            )
        return x_0

    def _time(self, s: Tensor) -> Tensor:
        """Returns the time in [0, 1] of a time of the scheduler, with shape ()."""
        low, high = self.path.log_times[[0, -1]].exp().tolist()
        one = s.double()[0]
        if not (s == s[0]).all() or not low * (1 - ROUNDING) <= one <= high * (1 + ROUNDING):
            raise ValueError(
                f"PPRSolver steps between times from {low:.6g} to {high:.6g}, those of the "
                f"scheduler that the denoiser was wrapped with, the same for all states; got "
                f"{s.min():.6g} to {s.max():.6g}. Wrap with the scheduler that sample gets."
            )
        return bisected(self.path.time, one, torch.zeros_like(one), torch.ones_like(one))
