"""How should PPR project?"""

__all__ = ["BatchLBFGS", "study"]

import math
from dataclasses import dataclass
from functools import partial

import torch

from feasibly.minimizers import LBFGS, GaussNewton, Minimizer, Polyak
from feasibly.minimizers.base import Search
from feasibly.samplers import PPR, PostHoc

from .ablation import CleanSpace
from .base import Study


@dataclass(frozen=True)
class BatchLBFGS(Minimizer):
    """`torch.optim.LBFGS` on the sum over the batch, with its defaults: what one would write
    first. Its steps couple the members, so that no member stops, and none is a sample of its own.
    """

    def search(self, search: Search, cap: float | None) -> None:
        x = search.x.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([x], max_iter=self.steps, max_eval=self.steps)

        def closure() -> torch.Tensor:
            search.x = x.detach()
            _, value, _ = search.evaluate()
            x.grad = search.gradient(value)
            return value.detach().sum()

        optimizer.step(closure)
        search.x = x.detach()
        search.finish()


_paper = {"steps": 64, "sigma_max": math.inf, "retries": 0}
"""The paper's schedule of projections: at every level of 64, and no member drawn again."""

_lbfgs = partial(PPR, repeats=2, **_paper)
_free = partial(GaussNewton, max_distance=None)

study = Study(
    name="minimizers",
    question="How should PPR project?",
    paper="the optimizer of Algorithm 2, which the paper leaves open (Table 2, row PPR)",
    samplers={
        "default": PPR,
        "default, no retries": partial(PPR, retries=0),
        "default, T = 64, no retries": partial(PPR, steps=64, retries=0),
        "default, every level, no retries": partial(PPR, sigma_max=math.inf, retries=0),
        "default, no bound, no retries": partial(PPR, minimize=_free(), retries=0),
        "default, no bound": partial(PPR, minimize=_free()),
        "paper: L-BFGS 8, M = 2": partial(_lbfgs, minimize=LBFGS(steps=8, max_step=None)),
        "L-BFGS 8, step cap 0.5, M = 2": partial(_lbfgs, minimize=LBFGS(steps=8)),
        "L-BFGS 8, no line search, M = 2": partial(
            _lbfgs, minimize=LBFGS(steps=8, max_step=None, line_search=False)
        ),
        "torch.optim.LBFGS 8 on the batch, M = 2": partial(_lbfgs, minimize=BatchLBFGS(steps=8)),
        "Gauss-Newton 4": partial(PPR, minimize=_free(steps=4), **_paper),
        "Gauss-Newton 1": partial(PPR, minimize=_free(steps=1), **_paper),
        "Gauss-Newton 8": partial(PPR, minimize=_free(steps=8), **_paper),
        "Gauss-Newton 2, M = 2": partial(PPR, minimize=_free(steps=2), repeats=2, **_paper),
        "Gauss-Newton 4, T = 32": partial(PPR, minimize=_free(steps=4), **{**_paper, "steps": 32}),
        "Polyak 4": partial(PPR, minimize=Polyak(steps=4), **_paper),
        "Polyak 4, bounded": partial(
            PPR, minimize=Polyak(steps=4, max_distance=3 / math.sqrt(2)), **_paper
        ),
        "clean space, Gauss-Newton 4": partial(CleanSpace, minimize=_free(steps=4), **_paper),
        "control: project once at the end": PostHoc,
        "control, 3 retries": partial(PostHoc, retries=3),
    },
    default="default",
)
