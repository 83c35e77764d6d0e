"""Data2D: two distributions on the plane, each under twelve random constraints (paper, Section 5
and Appendix B.1)."""

__all__ = ["CONSTRAINTS", "DISTRIBUTIONS", "Data2D", "Lines"]

import math
from functools import lru_cache

import torch
from torch import Tensor

from .. import priors
from ..constraints import Constraint, GaussianRandomField, LevelSet, Linear
from ..denoisers import Denoiser
from ..metrics import knn_cross_edge_rate, weight_error
from ..minimizers import GaussNewton
from ..problem import Problem
from ..run import run
from ..samplers.ancestral import Ancestral
from .distributions import Banana, Checkerboard, Distribution

CONSTRAINTS = 12
"""The number of constraints; constraint k is the random field of seed k."""

DISTRIBUTIONS: dict[str, type[Distribution]] = {"checkerboard": Checkerboard, "banana": Banana}


class Data2D:
    r"""One of the two problems: a learned prior, its constraints, their ground truth and scores.

    Arguments:
        name: `checkerboard` or `banana`.
        denoiser: The prior; None for the shipped prior.
    """

    shape = (2,)

    def __init__(self, name: str, denoiser: Denoiser | None = None) -> None:
        if name not in DISTRIBUTIONS:
            raise ValueError(
                f"Data2D has no distribution {name!r}; choose one of {sorted(DISTRIBUTIONS)}."
            )
        self.name = name
        self.distribution = DISTRIBUTIONS[name]()
        self.denoiser = denoiser or priors.load(name)

    def constraint(self, k: int) -> Constraint:
        """Returns constraint `k`."""
        return LevelSet(GaussianRandomField(seed=k))

    @lru_cache(maxsize=1)  # noqa: B019 (one pool a problem, which lives as long as it)
    def prior_samples(self, n: int) -> Tensor:
        """Returns `n` samples of the learned prior, by 128 steps of DDPM, with shape (n, 2)."""
        problem = Problem(self.denoiser, None, self.shape, batch_size=4096)
        return run([Ancestral(steps=128).bind(problem)], n, seed=2**20).samples

    def ground_truth(self, constraint: Constraint, pool: Tensor, epsilon: float = 1e-2) -> Tensor:
        r"""Returns samples of the constrained prior, by rejection and refinement of a pool.

        Samples with :math:`c(x) \leq \epsilon` are kept, in the order of the pool, and moved onto
        :math:`f = 0` by Newton steps, if that takes a distance of at most 0.1. Their density on
        the curve is :math:`p / |\nabla f|`, see :func:`feasibly.constraints.log_volume`.

        Arguments:
            constraint: The constraint.
            pool: Samples of the prior, with shape :math:`(n, 2)`.
            epsilon: The half width :math:`\epsilon` of the tube, as a violation.
        """
        kept = pool[constraint.violation(pool) <= epsilon].double()
        newton = GaussNewton(steps=20, max_distance=None, damping=0.0)
        refined = newton(lambda x: (constraint.residual(x), x), kept, threshold=1e-20)
        near = (refined.x - kept).norm(dim=1) <= 0.1
        return refined.x[near & (refined.value <= 1e-16)]

    def scores(self, x: Tensor, feasible: Tensor, truth: Tensor) -> dict[str, float]:
        r"""Scores an ensemble against the ground truth.

        Arguments:
            x: The ensemble, with shape :math:`(N, 2)`.
            feasible: Which members are feasible, with shape :math:`(N)`.
            truth: The ground truth, with shape :math:`(N, 2)`.

        Returns:
            The shares of members that are feasible (`feasible`), on the data's support
            (`on_manifold`) and both (`joint`); the k-NN cross-edge rate for several k (`knn` is
            that of 5); the `weight_error` of the modes.
        """
        good = x.isfinite().all(dim=1)
        inside = good & self.distribution.in_support(x)
        mode = self.distribution.mode
        return {
            "feasible": feasible.double().mean().item(),
            "on_manifold": inside.double().mean().item(),
            "joint": (feasible & inside).double().mean().item(),
            "knn": knn_cross_edge_rate(truth, x, k=5),
            **{f"knn_{k}": knn_cross_edge_rate(truth, x, k=k) for k in (1, 3, 10, 20)},
            "weight_error": weight_error(mode(truth), mode(x[good]), self.distribution.modes),
        }


class Lines(Data2D):
    r"""The same two priors under linear constraints: samples lie on a line.

    Line k has a random direction and passes through a random point of the data, both of seed k.
    It is for methods that need a linear constraint or a closed form.
    """

    def constraint(self, k: int) -> Constraint:
        generator = torch.Generator().manual_seed(k)
        angle = math.pi * torch.rand((), generator=generator, dtype=torch.float64)
        A = torch.stack([angle.cos(), angle.sin()])[None]
        (point,) = self.distribution.sample(1, generator).double()
        return Linear(A, A @ point, tolerance=4e-6)
