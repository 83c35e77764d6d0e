import json
import re
from dataclasses import replace
from itertools import chain, count, pairwise
from types import SimpleNamespace

import pytest
import torch

from experiments import train as training
from experiments.recipes import RECIPES, TrainConfig
from experiments.train import Flattened, Trainer, export, optimizers, train
from feasibly import priors
from feasibly.denoisers import Karras
from feasibly.nn import ModulatedMLP
from feasibly.schedules import LogLogit

GAP = re.compile(r"\{[a-z_]+(:[^}]*)?\}")  # of str.format; LaTeX has braces of its own
CONFIG = TrainConfig("checkerboard", steps=6, batch=32, checkpoint_every=2)
BANANA = replace(CONFIG, prior="banana")


def stop_after(monkeypatch, steps):
    """Replaces the clock by one on which every step takes a minute, and the first half of one."""
    minutes = chain([0.0], count(0.5))
    clock = SimpleNamespace(monotonic=lambda: 60 * next(minutes))
    monkeypatch.setattr(training, "time", clock)
    return replace(CONFIG, minutes=float(steps))


def trainer_of(config):
    return Trainer(RECIPES[config.prior](), config)


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def state(trainer):
    """All that training has made: weights, averages and what the optimizers remember."""
    found = {"step": torch.tensor(trainer.step), "generator": trainer.generator.get_state()}
    for part in ("model", "ema"):
        weights = getattr(trainer, part).state_dict()
        found |= {f"{part}.{key}": value.clone() for key, value in weights.items()}
    for i, optimizer in enumerate(trainer.optimizers):
        for j, memory in optimizer.state_dict()["state"].items():
            found |= {f"{i}.{j}.{k}": torch.as_tensor(v) for k, v in memory.items()}
    return found


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert [key for key in a if not torch.equal(a[key], b[key])] == []


@pytest.fixture(scope="module", autouse=True)
def narrow():
    """The checkerboard's network is narrow here: Muon takes seconds for a step of the real one."""
    recipe = RECIPES["checkerboard"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "backbone", recipe.backbone | {"width": 16})
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(folder, CONFIG), folder


@pytest.mark.parametrize("steps", [1, 4])
def test_a_run_that_is_stopped_and_resumed_is_the_undisturbed_run(
    undisturbed, tmp_path, monkeypatch, steps
):
    first = train(tmp_path, stop_after(monkeypatch, steps))
    assert first.step == steps
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == steps
    monkeypatch.undo()
    trainer, folder = undisturbed
    assert_equal(state(train(tmp_path, CONFIG)), state(trainer))
    assert (tmp_path / "log.jsonl").read_bytes() == (folder / "log.jsonl").read_bytes()


def test_a_run_that_is_killed_while_it_saves_resumes_exactly(undisturbed, tmp_path, monkeypatch):
    whole = Trainer.save

    def save(self, path):
        if self.step == 4:
            raise KeyboardInterrupt
        whole(self, path)

    monkeypatch.setattr(Trainer, "save", save)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, CONFIG)
    monkeypatch.undo()
    trainer, folder = undisturbed
    assert_equal(state(train(tmp_path, CONFIG)), state(trainer))
    assert log(tmp_path) == log(folder)


@pytest.mark.parametrize("every", [4, 10])
def test_the_whole_run_is_logged_whatever_the_interval(tmp_path, monkeypatch, every):
    def train_step(self):
        self.step += 1
        return torch.full((self.config.batch,), float(self.step))

    monkeypatch.setattr(Trainer, "train_step", train_step)
    train(tmp_path, replace(CONFIG, checkpoint_every=every))
    # the loss of step k is k, the mean of its steps the middle of an interval
    ends = [0, *range(every, 6, every), 6]
    assert [record["step"] for record in log(tmp_path)] == ends[1:]
    for (low, high), record in zip(pairwise(ends), log(tmp_path), strict=True):
        assert record["loss"] == pytest.approx([(low + 1 + high) / 2] * 16)


def test_every_step_trains_at_every_noise_level(monkeypatch):
    seen = []

    def loss(self, x_0, t, noise):
        seen.append(t)
        return (self(x_0, t).mean - x_0).square().mean(dim=1)

    monkeypatch.setattr(Karras, "loss", loss)
    trainer = trainer_of(CONFIG)
    trainer.train_step()
    trainer.train_step()
    for t in seen:
        assert torch.equal((t * CONFIG.batch).floor(), torch.arange(CONFIG.batch).float())
    assert not torch.equal(*seen)


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 8}])
def test_resuming_with_another_configuration_is_refused(undisturbed, change):
    _, folder = undisturbed
    before = (folder / "checkpoint.pt").read_bytes()
    with pytest.raises(ValueError, match=r"another configuration.*--out"):
        train(folder, replace(CONFIG, **change))
    assert (folder / "checkpoint.pt").read_bytes() == before


def test_every_weight_has_one_optimizer_and_muon_has_matrices_alone():
    denoiser = Karras(ModulatedMLP(width=8), LogLogit())
    recipe = RECIPES["checkerboard"]()
    muon, adam = optimizers(recipe, denoiser, CONFIG)
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adam, torch.optim.Adam)
    assert all(p.ndim == 2 for g in muon.param_groups for p in g["params"])
    groups = [muon.weights, [p for g in adam.param_groups for p in g["params"]]]
    ids = [id(p) for group in groups for p in group]
    assert sorted(ids) == sorted(id(p) for p in denoiser.parameters())
    names = {id(p): name for name, p in denoiser.named_parameters()}
    assert {names[id(p)] for p in groups[0]} == {
        f"backbone.{part}.{i}.{weight}"
        for i in range(3)
        for part, weight in (("hidden", "weight"), ("film", "linear.weight"))
    }
    assert all(g["weight_decay"] == 0 for o in (muon, adam) for g in o.param_groups)


def test_export_writes_the_prior_and_a_card_without_gaps(undisturbed, tmp_path):
    trainer, folder = undisturbed
    export(trainer, folder, tmp_path / "new", n=64)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "checkerboard.safetensors",
        "checkerboard.md",
    }
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    loaded = priors.load(str(tmp_path / "new" / "checkerboard.safetensors"))
    for t in torch.linspace(0, 1, 5):
        assert torch.equal(loaded(x, t).mean, trainer.averaged()(x, t).mean)

    card = (tmp_path / "new" / "checkerboard.md").read_text()
    assert not GAP.search(card)
    bands = log(folder)[-1]["loss"]
    for words in (
        "# Prior `checkerboard`",
        "distributions.Checkerboard",
        "LogLogit(",
        "6 steps of 32: 192 samples",
        "EMA 0.999",
        f"{sum(p.numel() for p in loaded.parameters()):,} parameters",
        f"{sum(bands) / 16:.4f}",
        ", ".join(f"{band:.3f}" for band in bands),
        "64 samples",
        "`python -m experiments train checkerboard --steps 6 --batch 32`",
        f"torch {torch.__version__}",
    ):
        assert words in card


def test_a_run_may_start_from_the_weights_of_a_prior():
    trainer = trainer_of(replace(BANANA, init="banana"))
    shipped = priors.load("banana").state_dict()
    for start in (trainer.model.state_dict(), trainer.averaged().state_dict()):
        assert_equal(start, shipped)
    with pytest.raises(ValueError, match="no prior 'none'"):
        trainer_of(replace(BANANA, init="none"))


def test_the_rates_rise_stay_and_fall():
    config = replace(CONFIG, steps=20, warmup=3, cooldown=0.5, lr_muon=0.1, lr_final=1e-3)
    trainer = trainer_of(config)
    rates = [trainer._rate(step, trainer.optimizers[0]) for step in range(21)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1])
    assert rates[4:11] == [1] * 7
    assert rates[15] == pytest.approx((1 + 0.01) / 2)  # halfway down a cosine
    assert rates[20] == pytest.approx(0.01)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_muon_takes_a_convolution_as_a_matrix():
    torch.manual_seed(0)
    kernel, gradient = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    convolution = torch.nn.Parameter(kernel.clone())
    convolution.grad = gradient.clone()
    optimizer = Flattened([convolution], lr=0.1)
    optimizer.step()
    optimizer.zero_grad()
    assert convolution.grad is None
    matrix = torch.nn.Parameter(kernel.flatten(1).clone())
    matrix.grad = gradient.flatten(1)
    oracle = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    oracle.step()
    assert torch.equal(convolution.detach().flatten(1), matrix.detach())
    assert not torch.equal(convolution, kernel)
