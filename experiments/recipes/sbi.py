"""The priors of the tasks of simulation-based inference."""

from pathlib import Path

import torch
from torch import Generator, Tensor

from ..tasks.sbi import POOL, TASKS, Task
from .base import TrainConfig
from .vectors import Vectors


class _Simulated(Vectors):
    task: Task

    def data(self, folder: Path) -> None:
        self.pool = self.task.pool()

    def sample(self, n: int, generator: Generator) -> Tensor:
        return self.pool[torch.randint(POOL, (n,), generator=generator)]


def _recipe(task: Task) -> type[_Simulated]:
    class Simulated(_Simulated):
        steps = 20_000 if task.name == "two_moons" else 10_000
        config = TrainConfig(f"sbi-{task.name}", steps=steps, batch=512, lr_adam=1e-3)
        backbone = {"dim": task.dim, "width": 256, "layers": 3, "frequencies": 8}  # noqa: RUF012
        what = (
            f"parameters and data of sbibm's task {task.name}: {POOL:,} simulations, standardized"
        )

    Simulated.task = task
    return Simulated


SIMULATED = [_recipe(task) for task in TASKS.values()]
