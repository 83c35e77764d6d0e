"""How should PPR project?"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from feasibly.minimizers import LBFGS, GaussNewton, Minimizer, Polyak
from feasibly.minimizers.base import Search

from ..figures import frontier
from ..samplers import paper, post_hoc, ppr
from ..study import Comparison, Study
from ..tables import pick
from .ablation import CleanSpace


@dataclass(frozen=True)
class BatchLBFGS(Minimizer):
    """`torch.optim.LBFGS` on the sum over the batch, with its defaults: what one would write
    first. Its steps couple the members, so that no member stops, and none is a sample of its own.
    """

    def search(self, search: Search, cap: float | None, state: Any) -> None:
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


_paper = partial(paper, repeats=1)
_free = partial(GaussNewton, max_distance=None)

STUDY = Study(
    name="minimizers",
    question="How should PPR project?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                "PPR, no retries": partial(ppr, attempts=1),
                "PPR, T = 64, no retries": partial(ppr, steps=64, attempts=1),
                "PPR, every level, no retries": partial(ppr, sigma_max=math.inf, attempts=1),
                "PPR, no bound, no retries": partial(ppr, minimize=_free(), attempts=1),
                "PPR, no bound": partial(ppr, minimize=_free()),
                "paper: L-BFGS 8, M = 2": paper,
                "L-BFGS 8, step cap 0.5, M = 2": partial(paper, minimize=LBFGS(steps=8)),
                "L-BFGS 8, no line search, M = 2": partial(
                    paper, minimize=LBFGS(steps=8, max_step=None, line_search=False)
                ),
                "torch.optim.LBFGS 8 on the batch, M = 2": partial(
                    paper, minimize=BatchLBFGS(steps=8)
                ),
                "Gauss-Newton 4": partial(_paper, minimize=_free(steps=4)),
                "Gauss-Newton 1": partial(_paper, minimize=_free(steps=1)),
                "Gauss-Newton 8": partial(_paper, minimize=_free(steps=8)),
                "Gauss-Newton 2, M = 2": partial(paper, minimize=_free(steps=2)),
                "Gauss-Newton 4, T = 32": partial(_paper, minimize=_free(steps=4), steps=32),
                "Polyak 4": partial(_paper, minimize=Polyak(steps=4)),
                "Polyak 4, bounded": partial(
                    _paper, minimize=Polyak(steps=4, max_distance=3 / math.sqrt(2))
                ),
                "clean space, Gauss-Newton 4": partial(
                    _paper, kind=CleanSpace, minimize=_free(steps=4)
                ),
                "post-hoc projection": post_hoc,
                "post-hoc projection, 3 retries": partial(post_hoc, attempts=4),
            },
            pick("settings", "feasible", "on_manifold", "joint", "knn", "evaluations"),
            {"": frontier},
        )
    },
)
