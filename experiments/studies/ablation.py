"""Is every part of PPR needed?"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from feasibly.minimizers import Minimum
from feasibly.samplers import PPR
from feasibly.samplers.base import Randn, Step

from ..figures import strips
from ..samplers import Make, paper, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS


@dataclass(frozen=True)
class CleanSpace(PPR):
    r"""The paper's variant :math:`x_0^M`: projects the estimate itself,
    :math:`\arg\min_x c(x)` from :math:`x_0 = d_\theta(x_t)`, without the denoiser. There is no
    other last projection, nor an early stop."""

    def project(self, x_t: Tensor, t: Tensor, radius: float, memory: Any = None) -> Minimum:
        """Returns the best clean estimate in the place of a state, too."""
        x_0 = self.denoiser(x_t, t)
        unit = radius * math.sqrt(x_t[0].numel())

        def residual(x: Tensor) -> tuple[Tensor, Tensor]:
            return self.constraint.residual(x), x

        return self.minimize(residual, x_0, self.stop, unit, state=memory)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        levels = sum(self.noise_level(s) <= self.sigma_max for s in self.times()[1:])
        return self.steps + levels * self.repeats + (self.output == "denoised"), 0


@dataclass(frozen=True)
class NoRenoise(PPR):
    r"""The paper's :math:`M = 0`: projects once a step, and keeps :math:`x_t^*`."""

    def kernel(
        self, x_t: Tensor, t: Tensor, radius: float, randn: Randn, memory: Any = None
    ) -> Step:
        found = self.project(x_t, t, radius, memory)
        start, scale = x_t / self.scale(t), self.scale(t)
        x = torch.where(found.x == start, x_t, scale * found.x)
        return Step(x, found.x_0, found.state)


@dataclass(frozen=True)
class CleanSpaceNoRenoise(CleanSpace):
    r"""The paper's :math:`x_0^0`: predicts with the projected estimate, and does not renoise."""

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        found = self.project(x_t, t, self.noise_level(t), memory)
        return Step(self.predict(x_t, found.x_0, t, s, randn), found.x_0, found.state)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        return self.steps + (self.output == "denoised"), 0


_samplers: dict[str, Make] = {
    "PPR": ppr,
    **{f"x_t^{M}": partial(paper, repeats=M) for M in (1, 2, 4)},
    **{f"x_0^{M}": partial(paper, kind=CleanSpace, repeats=M) for M in (1, 2, 4)},
    "x_t^0": partial(paper, kind=NoRenoise, repeats=1),
    "x_0^0": partial(paper, kind=CleanSpaceNoRenoise, repeats=1),
    **{f"PPR, M = {M}": partial(ppr, repeats=M) for M in (2, 4)},
    **{f"PPR, in x_0-space, M = {M}": partial(ppr, kind=CleanSpace, repeats=M) for M in (1, 2, 4)},
    "PPR, M = 0": partial(ppr, kind=NoRenoise),
    "PPR, in x_0-space, M = 0": partial(ppr, kind=CleanSpaceNoRenoise),
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
                if label not in ("PPR, in x_0-space, M = 4", "PPR, M = 4")
            },
            COLUMNS["ks"],
            protocol=dict.fromkeys(("x_t^4", "PPR, M = 2"), (8, 4)),
        ),
    },
)
