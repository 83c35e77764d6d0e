"""One plain training loop for all priors: `python -m experiments train NAME`."""

__all__ = ["TrainConfig", "export", "train"]

import inspect
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import Progress, TextColumn
from torch import Generator, Tensor, nn

from feasibly import priors
from feasibly.denoisers import Karras
from feasibly.metrics import knn_cross_edge_rate, total_variation
from feasibly.nn import ModulatedMLP
from feasibly.problems.data2d import DISTRIBUTIONS, Data2D
from feasibly.schedules import LogLogit

from .versions import versions

BACKBONE = {"dim": 2, "width": 256, "layers": 3, "frequencies": 16}


@dataclass(frozen=True)
class TrainConfig:
    """What a training run does.

    The paper's batch, optimizer (Muon, no weight decay), cosine decay and final learning rate. It
    trains 500,000 steps with a peak of 1e-3; for the shorter run the peaks are higher, and the
    average of the weights, one noise level in each stratum of a batch and EDM's weight of the
    loss make up for some of the difference.
    """

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
        self.distribution = DISTRIBUTIONS[name]()
        self.denoiser = Karras(ModulatedMLP(**BACKBONE), LogLogit())
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
        self.bands = torch.zeros(16)  # the summed loss since the last record, by noise level
        self.logged = 0  # the step of the last record

    def _stateful(self) -> list:
        return [self.denoiser, self.ema, *self.optimizers, *self.schedulers]

    def save(self, path: Path) -> None:
        state = {
            "step": self.step,
            "bands": self.bands,
            "logged": self.logged,
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
        self.step, self.bands, self.logged = state["step"], state["bands"], state["logged"]

    def averaged(self) -> Karras:
        """Returns the denoiser with the averaged weights, ready to sample."""
        denoiser = Karras(ModulatedMLP(**BACKBONE), LogLogit())
        denoiser.load_state_dict(self.ema.module.state_dict())
        return denoiser.eval().requires_grad_(False)

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
        _forget(out / "log.jsonl", trainer.step)

    deadline = time.monotonic() + 60 * config.minutes
    text = TextColumn("loss {task.fields[loss]:.4f}")
    with Progress(*Progress.get_default_columns(), text) as progress:
        task = progress.add_task(name, total=config.steps, completed=trainer.step, loss=0.0)
        while trainer.step < config.steps and time.monotonic() < deadline:
            loss = trainer.train_step().reshape(16, -1).mean(dim=1)
            trainer.bands += loss
            progress.update(task, advance=1)
            if trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps:
                mean = trainer.bands / (trainer.step - trainer.logged)
                trainer.logged = trainer.step
                with (out / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": trainer.step, "loss": mean.tolist()}) + "\n")
                progress.update(task, loss=mean.mean().item())
                trainer.bands.zero_()
                trainer.save(checkpoint)
    trainer.save(checkpoint)
    return trainer


def _forget(log: Path, step: int) -> None:
    """Drops what was logged after the checkpoint at `step`, by a run that was then killed."""
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


CARD = """# Prior `{name}`

| | |
|---|---|
| data | `feasibly.problems.distributions.{title}`, drawn afresh for every step |
| network | modulated MLP, 3 x 256, EDM preconditioning, {parameters:,} parameters |
| schedule | {schedule} |
| training | {step:,} steps of {batch}: {samples:,} samples; Muon, Adam, cosine decay, EMA {ema} |
| final loss | {loss:.4f} (EDM weight, mean over noise levels; log below) |
| made by | `python -m experiments train {name}` |
| versions | {versions} |

## Unconditional quality

{n:,} samples (DDPM, 128 steps), and as many fresh data, against {n:,} fresh data.

| measure | prior | data |
|---|---|---|
| k-NN cross-edge rate, k = 5 (0.5 is a perfect match) | {knn:.4f} | {knn_data:.4f} |
| share on the support | {in_support:.4f} | {in_support_data:.4f} |
| total variation between mode masses | {tv:.4f} | {tv_data:.4f} |

## Data

```
{parameters_of_data}
```

## Loss by noise level, lowest first

{bands}
"""


def export(name: str, trainer: Trainer, run: Path, out: Path, n: int = 8192) -> None:
    """Writes the averaged weights and a model card with the prior's measured quality.

    Arguments:
        name: The prior.
        trainer: A finished run.
        run: The run's folder, with its log.
        out: The folder for `NAME.safetensors` and `NAME.md`.
        n: The number of samples on either side of the comparison.
    """
    denoiser = trainer.averaged()
    out.mkdir(parents=True, exist_ok=True)
    priors.save(denoiser, out / f"{name}.safetensors", BACKBONE)

    problem = Data2D(name, denoiser)
    law = problem.distribution
    generator = Generator().manual_seed(trainer.config.seed + 1)  # not the training stream
    data, other = (law.sample(n, generator) for _ in range(2))
    x = problem.prior_samples(n)
    bands = json.loads((run / "log.jsonl").read_text().splitlines()[-1])["loss"]
    card = CARD.format(
        name=name,
        title=type(law).__name__,
        parameters_of_data=inspect.getdoc(type(law)),
        parameters=sum(p.numel() for p in denoiser.parameters()),
        schedule=denoiser.schedule,
        step=trainer.step,
        batch=trainer.config.batch,
        samples=trainer.step * trainer.config.batch,
        ema=trainer.config.ema,
        loss=sum(bands) / len(bands),
        bands=", ".join(f"{band:.3f}" for band in bands),
        versions=", ".join(f"{k} {v}" for k, v in versions().items()),
        n=n,
        knn=knn_cross_edge_rate(data, x),
        knn_data=knn_cross_edge_rate(data, other),
        in_support=law.in_support(x).double().mean().item(),
        in_support_data=law.in_support(data).double().mean().item(),
        tv=total_variation(law.mode(data), law.mode(x), law.modes),
        tv_data=total_variation(law.mode(data), law.mode(other), law.modes),
    )
    (out / f"{name}.md").write_text(card)
