"""The priors of Data2D."""

import inspect

from torch import Generator, Tensor

from feasibly.cli.methods import plain
from feasibly.denoisers import Karras
from feasibly.metrics import knn_cross_edge_rate, weight_error
from feasibly.nn import ModulatedMLP
from feasibly.problems.data2d import DISTRIBUTIONS, Data2D
from feasibly.schedules import LogLogit

from .base import Denoising, TrainConfig

CARD = """| data | `feasibly.problems.distributions.{title}`, sampled afresh for every step |
| network | modulated MLP, 3 x 256, EDM preconditioning, {parameters:,} parameters |

## Unconditional quality

{n:,} samples (second order, 128 steps), and as many fresh data, against {n:,} fresh data.

| measure | prior | data |
|---|---|---|
| k-NN cross-edge rate, k = 5 (0.5 is a perfect match) | {knn:.4f} | {knn_data:.4f} |
| share on the support | {in_support:.4f} | {in_support_data:.4f} |
| weight error of the modes (total variation) | {weight_error:.4f} | {weight_error_data:.4f} |

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
        return CARD.format(
            title=type(distribution).__name__,
            parameters_of_data=plain(inspect.getdoc(type(distribution)) or ""),
            parameters=sum(p.numel() for p in model.parameters()),
            n=n,
            knn=knn_cross_edge_rate(data, x),
            knn_data=knn_cross_edge_rate(data, other),
            in_support=distribution.in_support(x).double().mean().item(),
            in_support_data=distribution.in_support(data).double().mean().item(),
            weight_error=weight_error(
                distribution.mode(data), distribution.mode(x), distribution.modes
            ),
            weight_error_data=weight_error(
                distribution.mode(data), distribution.mode(other), distribution.modes
            ),
        )


class Checkerboard(_Data2D):
    config = TrainConfig("checkerboard")


class Banana(_Data2D):
    config = TrainConfig("banana")
