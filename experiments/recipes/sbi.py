"""The priors of the tasks of simulation-based inference."""

from pathlib import Path

import torch
from torch import Generator, Tensor

from ..tasks.sbi import POOL, TASKS, Task
from .base import TrainConfig
from .vectors import Vectors

LONGER = {"two_moons": (20_000, 3), "slcp": (40_000, 6)}
"""Steps and layers of the tasks whose posteriors are thin."""


class _Simulated(Vectors):
    task: Task

    def data(self, folder: Path) -> None:
        self.pool = self.task.pool()

    def sample(self, n: int, generator: Generator) -> Tensor:
        return self.pool[torch.randint(POOL, (n,), generator=generator)]


def _recipe(task: Task) -> type[_Simulated]:
    steps, layers = LONGER.get(task.name, (10_000, 3))

    class Simulated(_Simulated):
        config = TrainConfig(f"sbi-{task.name}", steps=steps, batch=512, lr_adam=1e-3)
        backbone = {"dim": task.dim, "width": 256, "layers": layers, "frequencies": 8}  # noqa: RUF012
        what = (
            f"parameters and data of sbibm's task {task.name}: {POOL:,} simulations, standardized"
        )

    Simulated.task = task
    return Simulated


SIMULATED = [_recipe(task) for task in TASKS.values()]
