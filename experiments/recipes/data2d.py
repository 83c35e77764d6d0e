"""The priors of Data2D."""

import inspect

from torch import Generator, Tensor

from feasibly.cli.methods import plain
from feasibly.denoisers import Karras
from feasibly.metrics import knn_cross_edge_rate, weight_error
from feasibly.nn import ModulatedMLP
from feasibly.problems.data2d import DISTRIBUTIONS, Data2D
from feasibly.schedules import LogLogit

from .base import Denoising, TrainConfig, size, table

CARD = """| data | `feasibly.problems.distributions.{title}`, sampled afresh for every step |
| network | modulated MLP, 3 x 256, EDM preconditioning, {parameters:,} parameters |

## Unconditional quality

{n:,} samples (second order, 128 steps), and as many fresh data, against {n:,} fresh data.

| measure | prior | data |
|---|---|---|
{rows}

## Data

```
{parameters_of_data}
```
"""


class _Data2D(Denoising):
    backbone = {"dim": 2, "width": 256, "layers": 3, "frequencies": 16}  # noqa: RUF012
    ends = ("input", "output")

    def __init__(self) -> None:
        self.distribution = DISTRIBUTIONS[self.config.prior]()

    def model(self) -> Karras:
        return Karras(ModulatedMLP(**self.backbone), LogLogit())

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        return self.distribution.sample(n, generator).float()

    def card(self, model: Karras, n: int) -> str:
        problem = Data2D(self.config.prior, model)
        distribution = problem.distribution
        generator = Generator().manual_seed(self.config.seed + 1)  # not the training stream
        data, other = (distribution.sample(n, generator) for _ in range(2))
        x = problem.prior_samples(n)
        near = "k-NN cross-edge rate, k = 5 (0.5 is a perfect match)"
        quality = [
            {
                near: knn_cross_edge_rate(data, u),
                "share on the support": distribution.in_support(v).double().mean().item(),
                "weight error of the modes (total variation)": weight_error(
                    distribution.mode(data), distribution.mode(u), distribution.modes
                ),
            }
            for u, v in ((x, x), (other, data))
        ]
        return CARD.format(
            title=type(distribution).__name__,
            parameters_of_data=plain(inspect.getdoc(type(distribution)) or ""),
            parameters=size(model),
            n=n,
            rows=table(*quality),
        )


class Checkerboard(_Data2D):
    config = TrainConfig("checkerboard")


class Banana(_Data2D):
    config = TrainConfig("banana")
