"""One plain training loop for all priors: `python -m experiments train NAME`."""

import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import torch
from rich.progress import Progress, TextColumn
from torch import Generator, Tensor, nn

from .figures import losses
from .recipes import RECIPES, Recipe, TrainConfig
from .records import versions

FREE = ("minutes", "threads", "checkpoint_every", "compile", "device")
"""What may differ between the parts of a run."""


class Flattened(torch.optim.Muon):
    """Muon for weights of any number of axes: convolutions are matrices of shape
    (first axis, all others)."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.weights = weights
        self.matrices = [nn.Parameter(w.detach().flatten(1)) for w in weights]  # the same memory
        super().__init__(self.matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")

    def step(self) -> None:  # ty: ignore[incompatible-method-override]
        for matrix, weight in zip(self.matrices, self.weights, strict=True):
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        super().step()

    def zero_grad(self) -> None:  # ty: ignore[incompatible-method-override]
        for weight in self.weights:
            weight.grad = None


class Trainer:
    """The state of a run: everything that a checkpoint must hold for an exact resume."""

    def __init__(self, recipe: Recipe, config: TrainConfig) -> None:
        if not 0 < config.cooldown <= 1:
            raise ValueError(f"--cooldown must lie in (0, 1], got {config.cooldown}.")
        torch.manual_seed(config.seed)
        self.recipe, self.config = recipe, config
        self.model = recipe.model().to(config.device)
        if config.init:
            self.model.load_state_dict(recipe.load(config.init).state_dict())
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.ema)
        )
        if config.compile:
            recipe.compile(self.model)
        self.generator = Generator().manual_seed(config.seed)
        self.optimizers = optimizers(recipe, self.model, config)
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(o, lambda step, o=o: self._rate(step, o))
            for o in self.optimizers
        ]
        self.step = 0
        self.bands = torch.zeros(recipe.bands)  # the summed loss since the last record
        self.logged = 0  # the step of the last record

    @property
    def fall(self) -> int:
        """The step at which the learning rates begin to fall."""
        return round((1 - self.config.cooldown) * self.config.steps)

    def _rate(self, step: int, optimizer: torch.optim.Optimizer) -> float:
        """The learning rate at `step`, relative to the optimizer's peak."""
        final = self.config.lr_final / optimizer.defaults["lr"]
        warm = min(1.0, (step + 1) / (self.config.warmup + 1))
        progress = min(1.0, max(0, step - self.fall) / (self.config.steps - self.fall))
        return warm * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)

    def _stateful(self) -> list:
        return [self.model, self.ema, *self.optimizers, *self.schedulers]

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
        state = torch.load(path, weights_only=True, map_location=self.config.device)
        before, now = (
            {k: v for k, v in config.items() if k not in FREE}
            for config in (state["config"], asdict(self.config))
        )
        if before != now:
            raise ValueError(
                f"{path} was written with another configuration ({before}, now {now}). "
                "Resume with the same options, or choose another --out."
            )
        for thing, saved in zip(self._stateful(), state["objects"], strict=True):
            thing.load_state_dict(saved)
        self.generator.set_state(state["generator"].cpu())
        self.step, self.bands, self.logged = state["step"], state["bands"].cpu(), state["logged"]

    def averaged(self) -> nn.Module:
        """Returns the model with the averaged weights, ready to use."""
        model = self.recipe.model()
        model.load_state_dict(self.ema.module.state_dict())
        return model.eval().requires_grad_(False)

    def train_step(self) -> Tensor:
        """Makes one step and returns the loss on each sample, in the recipe's order."""
        config = self.config
        x_0 = self.recipe.batch(config.batch, self.generator, config.symmetries)
        half = torch.autocast(torch.device(config.device).type, torch.bfloat16, config.bf16)
        with half:
            loss = self.recipe.loss(self.model, x_0, self.generator)
        loss.mean().backward()
        if config.clip < float("inf"):
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for scheduler in self.schedulers:
            scheduler.step()
        self.ema.update_parameters(self.model)
        self.step += 1
        return loss.detach().float().cpu()


def optimizers(
    recipe: Recipe, model: nn.Module, config: TrainConfig
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the network, Adam for the rest; no weight decay."""
    matrices, rest = recipe.parameters(model)
    return [
        *([Flattened(matrices, lr=config.lr_muon)] if matrices else []),
        torch.optim.Adam(rest, lr=config.lr_adam, betas=(0.9, 0.99)),
    ]


def train(out: Path, config: TrainConfig, data: Path = Path("runs/data")) -> Trainer:
    """Trains a prior, resuming from `out` where a run was stopped.

    Writes `checkpoint.pt`, `log.jsonl` (the loss; a denoiser's in 16 bands of noise, lowest first)
    and, in the end, `loss.png`.
    """
    torch.set_num_threads(config.threads)
    out.mkdir(parents=True, exist_ok=True)
    recipe = RECIPES[config.prior]()
    recipe.data(data)
    trainer = Trainer(recipe, config)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
        _forget(out / "log.jsonl", trainer.step)

    deadline = time.monotonic() + 60 * config.minutes
    text = TextColumn("loss {task.fields[loss]:.4f}")
    with Progress(*Progress.get_default_columns(), text) as progress:
        task = progress.add_task(
            config.prior, total=config.steps, completed=trainer.step, loss=0.0
        )
        while trainer.step < config.steps and time.monotonic() < deadline:
            loss = trainer.train_step().reshape(recipe.bands, -1).mean(dim=1)
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
    _plot(out)
    return trainer


def _plot(out: Path) -> None:
    """Draws the loss by noise level, `loss.png`, if there is a log."""
    path = out / "log.jsonl"
    if path.exists():
        losses([json.loads(line) for line in path.read_text().splitlines()]).savefig(
            out / "loss.png", dpi=120
        )


def _forget(log: Path, step: int) -> None:
    """Drops what was logged after the checkpoint at `step`, by a run that was then killed."""
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


CARD = """# Prior `{name}`

| | |
|---|---|
{about}| training | {step:,} steps of {batch}: {samples:,} samples; {optimizers}, cosine decay, \
EMA {ema} |
| final loss | {loss:.4f} (mean; log below) |
| made by | `{command}` |
| licence | {licence} |
| versions | {versions} |
{card}
## Loss{order}

{bands}
"""


def export(trainer: Trainer, run: Path, out: Path, n: int = 8192) -> None:
    """Writes the averaged weights and a model card with the prior's measured quality."""
    model, name = trainer.averaged(), trainer.config.prior
    out.mkdir(parents=True, exist_ok=True)
    trainer.recipe.save(model, out / f"{name}.safetensors")
    bands = json.loads((run / "log.jsonl").read_text().splitlines()[-1])["loss"]
    card = CARD.format(
        name=name,
        about=trainer.recipe.about(model),
        order=trainer.recipe.order,
        licence=trainer.recipe.licence,
        command=_command(trainer.config, trainer.recipe.config),
        step=trainer.step,
        batch=trainer.config.batch,
        samples=trainer.step * trainer.config.batch,
        ema=trainer.config.ema,
        optimizers=" and ".join(["Muon", "Adam"][-len(trainer.optimizers) :]),
        loss=sum(bands) / len(bands),
        bands=", ".join(f"{band:.3f}" for band in bands),
        versions=", ".join(f"{k} {v}" for k, v in versions().items()),
        card=trainer.recipe.card(model, n),
    )
    (out / f"{name}.md").write_text(card)


def _command(config: TrainConfig, default: TrainConfig) -> str:
    """The command of a run, without what says only where and how fast it ran."""
    usual, words = asdict(default), []
    for key, value in asdict(config).items():
        name = key.replace("_", "-")
        if value == usual[key] or key in FREE:
            continue
        if isinstance(value, bool):
            words.append(f" --{'' if value else 'no-'}{name}")
        else:
            shown = f"{value:g}" if isinstance(value, float) else value
            words.append(f" --{name} {shown}")
    return f"python -m experiments train {config.prior}{''.join(words)}"
