"""Is every part of PPR needed?"""

__all__ = ["STUDY", "CleanSpace", "CleanSpaceNoRenoise", "NoRenoise"]

import math
from copy import copy
from functools import partial

import torch
from torch import Tensor

from feasibly.minimizers import Minimum
from feasibly.samplers import PPR
from feasibly.samplers.base import Randn

from ..figures import strips
from ..samplers import Make, default, paper
from ..tables import COLUMNS
from .base import Comparison, Study


class CleanSpace(PPR):
    r"""The paper's variant :math:`x_0^M`: projects the estimate itself,
    :math:`\arg\min_x c(x)` from :math:`x_0 = d_\theta(x_t)`, without the denoiser."""

    def search(self, x_t: Tensor, t: Tensor, reach: float | None = None) -> Minimum:
        """Returns the best clean estimate in the place of a state, too."""
        x_0 = self.denoiser(x_t, t)
        reach = self.noise_level(t) if reach is None else reach
        unit = reach * math.sqrt(x_t[0].numel())
        return self.minimum(lambda x: (self.constraint.residual(x), x), x_0, unit)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        chosen = copy(self)
        chosen.choose(residuals)
        last = 1 if self.readout == "denoise" else 0
        forward = chosen.steps + chosen.levels() * chosen.repeats + last
        return (self.retries + 1) * forward, 0


class NoRenoise(PPR):
    r"""The paper's :math:`M = 0`: projects once a step, and keeps :math:`x_t^*`."""

    def kernel(
        self, x_t: Tensor, t: Tensor, randn: Randn = torch.randn_like, reach: float | None = None
    ) -> tuple[Tensor, Tensor]:
        best = self.search(x_t, t, reach)
        return best.x, best.x_0


class CleanSpaceNoRenoise(CleanSpace):
    r"""The paper's :math:`x_0^0`: predicts with the projected estimate, and does not renoise."""

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        x_0 = self.project(x_t, t)
        return self.predict(x_t, x_0, t, s, randn), x_0

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        chosen = copy(self)
        chosen.choose(residuals)
        last = 1 if self.readout == "denoise" else 0
        return (self.retries + 1) * (chosen.steps + last), 0


_samplers: dict[str, Make] = {
    "default": default,
    **{f"x_t^{M}": partial(paper, repeats=M) for M in (1, 2, 4)},
    **{f"x_0^{M}": partial(paper, kind=CleanSpace, repeats=M) for M in (1, 2, 4)},
    "x_t^0": partial(paper, kind=NoRenoise, repeats=1),
    "x_0^0": partial(paper, kind=CleanSpaceNoRenoise, repeats=1),
    **{f"default, M = {M}": partial(default, repeats=M) for M in (2, 4)},
    **{
        f"default, in x_0-space, M = {M}": partial(default, kind=CleanSpace, repeats=M)
        for M in (1, 2, 4)
    },
    "default, M = 0": partial(default, kind=NoRenoise),
    "default, in x_0-space, M = 0": partial(default, kind=CleanSpaceNoRenoise),
}

STUDY = Study(
    name="ablation",
    question="Is every part of PPR needed?",
    on={
        "data2d": Comparison(_samplers, COLUMNS["data2d"], {"": strips}),
        "ks": Comparison(
            {
                label: make
                for label, make in _samplers.items()
                if label not in ("default, in x_0-space, M = 4", "default, M = 4")
            },
            COLUMNS["ks"],
            protocol=dict.fromkeys(("x_t^4", "default, M = 2"), (4, 4)),
        ),
    },
)
