"""One plain training loop for all priors: `python -m experiments train NAME`."""

__all__ = ["PRIORS", "TrainConfig", "train"]

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import Progress, TextColumn
from torch import Generator, Tensor, nn

from feasibly.denoisers import Karras
from feasibly.nn import ModulatedMLP
from feasibly.problems.distributions import Banana, Checkerboard, Distribution
from feasibly.schedules import LogLogit

PRIORS: dict[str, Callable[[], Distribution]] = {"checkerboard": Checkerboard, "banana": Banana}


@dataclass(frozen=True)
class TrainConfig:
    """What a training run does. The paper trains 500,000 steps; everything else is the paper's
    but the learning rates, which suit the shorter run."""

    steps: int = 50_000
    batch: int = 1024
    lr_muon: float = 5e-3
    """Peak learning rate of Muon, for the matrices of the hidden layers and their modulation."""
    lr_adam: float = 2e-3
    """Peak learning rate of Adam, for the input, the output and the biases."""
    lr_final: float = 1e-6
    ema: float = 0.999
    seed: int = 0
    threads: int = 1
    minutes: float = float("inf")
    """Stop after this long, with a checkpoint from which the same command resumes."""
    checkpoint_every: int = 1000


class Trainer:
    """The state of a run: everything that a checkpoint must hold for an exact resume."""

    def __init__(self, name: str, config: TrainConfig) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.distribution = PRIORS[name]()
        self.denoiser = Karras(ModulatedMLP(), LogLogit())
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.denoiser, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.ema)
        )
        self.generator = Generator().manual_seed(config.seed)
        self.optimizers = optimizers(self.denoiser, config)
        self.schedulers = [
            torch.optim.lr_scheduler.CosineAnnealingLR(o, config.steps, config.lr_final)
            for o in self.optimizers
        ]
        self.step = 0

    def _stateful(self) -> list:
        return [self.denoiser, self.ema, *self.optimizers, *self.schedulers]

    def save(self, path: Path) -> None:
        state = {
            "step": self.step,
            "generator": self.generator.get_state(),
            "objects": [thing.state_dict() for thing in self._stateful()],
            "config": asdict(self.config),
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)  # a kill while writing leaves the previous checkpoint whole

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        keep = ("minutes", "threads", "checkpoint_every")  # may differ between parts of a run
        before = {k: v for k, v in state["config"].items() if k not in keep}
        now = {k: v for k, v in asdict(self.config).items() if k not in keep}
        if before != now:
            raise ValueError(
                f"{path} was written with another configuration ({before}, now {now}). "
                "Resume with the same options, or choose another --out."
            )
        for thing, saved in zip(self._stateful(), state["objects"], strict=True):
            thing.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        self.step = state["step"]

    def train_step(self) -> Tensor:
        """Makes one step and returns the loss of each sample, ordered by noise level."""
        batch = self.config.batch
        x_0 = self.distribution.sample(batch, self.generator).float()
        # one time in each of `batch` equal parts of [0, 1]: every noise level, every step
        t = (torch.arange(batch) + torch.rand(batch, generator=self.generator)) / batch
        loss = self.denoiser.loss(x_0, t, torch.randn(x_0.shape, generator=self.generator))
        loss.mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for scheduler in self.schedulers:
            scheduler.step()
        self.ema.update_parameters(self.denoiser)
        self.step += 1
        return loss.detach()


def optimizers(denoiser: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the network, Adam for the rest; no weight decay."""
    matrices, rest = [], []
    for name, parameter in denoiser.named_parameters():
        inner = parameter.ndim == 2 and ("hidden" in name or "film" in name)
        (matrices if inner else rest).append(parameter)
    return [
        torch.optim.Muon(
            matrices, lr=config.lr_muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.Adam(rest, lr=config.lr_adam, betas=(0.9, 0.99)),
    ]


def train(name: str, out: Path, config: TrainConfig) -> Trainer:
    """Trains the prior `name`, resuming from `out` where a run was stopped.

    Writes `checkpoint.pt` and `log.jsonl` (the loss in 16 bands of noise, lowest first).
    """
    torch.set_num_threads(config.threads)
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(name, config)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)

    deadline = time.monotonic() + 60 * config.minutes
    text = TextColumn("loss {task.fields[loss]:.4f}")
    with Progress(*Progress.get_default_columns(), text) as progress:
        task = progress.add_task(name, total=config.steps, completed=trainer.step, loss=0.0)
        bands = torch.zeros(16)
        while trainer.step < config.steps and time.monotonic() < deadline:
            bands += trainer.train_step().reshape(16, -1).mean(dim=1) / config.checkpoint_every
            progress.update(task, advance=1)
            if trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps:
                record = {"step": trainer.step, "loss": bands.tolist()}
                with (out / "log.jsonl").open("a") as log:
                    log.write(json.dumps(record) + "\n")
                progress.update(task, loss=bands.mean().item())
                bands.zero_()
                trainer.save(checkpoint)
    trainer.save(checkpoint)
    return trainer
