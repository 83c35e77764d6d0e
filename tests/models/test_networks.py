"""Networks of kinds that are wrapped in a way of their own, and what is said of the others."""

import pytest
import torch
from torch import nn

import feasibly
from feasibly.errors import DenoiserError
from feasibly.schedules import VP, Schedule, rates

HALF = torch.tensor(0.5)


class Embedded(nn.Module):
    """A network with an embedding of the time that a test sets."""

    def __init__(self, embed):
        super().__init__()
        self.layer, self.table, self.embed = nn.Linear(4, 4), nn.Embedding(1000, 4), embed
        self.seen = None

    def forward(self, x, t):
        self.seen = t
        return self.layer(x) + self.embed(self, t)


def test_whole_steps_reach_the_network_as_such():
    net = Embedded(lambda net, k: net.table(k)).eval().requires_grad_(False)
    time = lambda t: (999 * t).round().long()  # noqa: E731
    denoiser = feasibly.wrap(net, "eps", VP(), time=time)
    denoiser(torch.ones(3, 4), torch.tensor(0.25))
    assert torch.equal(net.seen, torch.full((3,), 250))
    with pytest.raises(DenoiserError, match=r"times in torch.float32.*time=lambda t: \(999"):
        feasibly.wrap(net, "eps", VP())(torch.ones(3, 4), HALF)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_embedding_that_breaks_on_half_precision_weights_is_said_to(dtype):
    net = Embedded(lambda net, t: net.layer(t[:, None].expand(-1, 4))).to(dtype)
    with pytest.raises(
        DenoiserError, match=rf"states in {dtype} and times in torch.float32.*cast"
    ):
        feasibly.wrap(net, "eps", VP())(torch.ones(3, 4), HALF)
    found = feasibly.wrap(net, "eps", VP(), time=lambda t: t.to(dtype))(torch.ones(3, 4), HALF)
    assert found.mean.dtype == torch.float32


@pytest.mark.parametrize(
    "pack",
    [lambda y: [y], lambda y: {"x": y}, lambda y: {"sample": y, "h": y + 1}],
    ids=["list", "dict", "dict with a sample"],
)
def test_the_prediction_is_found_in_what_a_network_returns(pack):
    denoiser = feasibly.wrap(lambda x, t: pack(x / 2), "x0", VP())
    assert (denoiser(torch.ones(3, 4), HALF).mean == 0.5).all()


def test_of_several_tensors_none_is_guessed():
    with pytest.raises(DenoiserError, match="returned dict"):
        feasibly.wrap(lambda x, t: {"a": x, "b": x}, "x0", VP())(torch.ones(3, 4), HALF)


def test_a_torchscript_module_is_copied_and_left_as_it_is():
    net = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    denoiser = feasibly.wrap(lambda x, t: net(x), "x0", VP())
    assert all(p.requires_grad for p in net.parameters())
    wrapped = feasibly.wrap(torch.jit.script(Plain()), "x0", VP())
    assert not any(p.requires_grad for p in wrapped.net.parameters())
    assert denoiser(torch.ones(3, 4), HALF).mean.shape == (3, 4)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_lazy_layers_without_weights_are_refused():
    with pytest.raises(DenoiserError, match="Call it once"):
        feasibly.wrap(nn.LazyLinear(4), "x0", VP())


class Table(Schedule):
    """A schedule without gradients: of NumPy, or of the nearest step of a table."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, t):
        s = t if self.steps is None else (t * self.steps).round() / self.steps
        alpha, sigma = VP()(s)
        return tuple(torch.from_numpy(v.detach().numpy().copy()) for v in (alpha, sigma))


def test_rates_of_a_schedule_without_gradients_are_differences():
    smooth = VP()
    for times, rtol in (([0.1, 0.5, 0.9], 1e-6), ([0.0, 1.0], 0.02)):  # one-sided at the ends
        t = torch.tensor(times, dtype=torch.float64)
        for found, expected in zip(rates(Table(None), t), rates(smooth, t), strict=True):
            clock = 1 - smooth.tau  # the table's is t itself
            torch.testing.assert_close(found, clock * expected, rtol=rtol, atol=0)


def test_a_velocity_in_a_schedule_of_steps_is_refused():
    denoiser = feasibly.wrap(lambda x, t: x, "velocity", Table(1000))
    with pytest.raises(DenoiserError, match="Interpolate its table"):
        denoiser(torch.ones(2, 4), HALF)
