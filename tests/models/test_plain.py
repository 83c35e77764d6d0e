import math
import threading

import pytest
import torch
from torch import nn

import feasibly
from feasibly.denoisers.predictions import PREDICTIONS
from feasibly.errors import DenoiserError
from feasibly.schedules import EDM, VE, VP, Flow, Rectified
from tests.helpers import on, sampled

SCHEDULES = {"vp": VP(), "rectified": Rectified(), "straight": Flow()}


PATHS = [(kind, "vp") for kind in PREDICTIONS]
PATHS += [("velocity", "rectified"), ("velocity", "straight"), ("score", "straight")]


@pytest.mark.parametrize(("kind", "path"), PATHS)
def test_every_prediction_gives_the_posterior_mean(kind, path, exact, paths, gap):
    net = exact(kind, paths[path])
    assert gap(feasibly.wrap(net, kind, SCHEDULES[path])) < 1e-8


@pytest.mark.parametrize("kind", PREDICTIONS)
def test_other_clocks_are_told_by_a_function(kind, exact, paths, gap):
    """A network that is told sigma, and moves with it: a velocity in units of t is divided."""
    schedule = VE(1e-2, 50.0)

    def scales(told):
        alpha, sigma, d_alpha, d_sigma = paths["unit"](told)
        rate = sigma * math.log(50.0 / 1e-2)  # of sigma in t, the schedule's own clock
        return alpha, sigma, d_alpha, d_sigma * rate

    net = exact(kind, scales)
    assert gap(feasibly.wrap(net, kind, schedule, time=lambda t: schedule(t)[1])) < 1e-8


def test_single_precision_keeps_five_digits_where_a_projection_needs_them(exact, paths, mixture):
    generator = torch.Generator().manual_seed(0)
    for kind in PREDICTIONS:
        adapter = feasibly.wrap(exact(kind, paths["vp"]), kind, VP())
        for t in torch.linspace(0, 0.5, 9):
            alpha, sigma = VP()(t)
            x_0, z = torch.randn(2, 64, 2, generator=generator)
            x_t = alpha * x_0 + sigma * z
            found = adapter(x_t, t).mean
            assert found.dtype == torch.float32
            assert (found - mixture(VP())(x_t, t).mean).abs().max() < 1e-5


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout()
        self.seen = []

    def forward(self, x, time):
        self.seen.append((x.dtype, time.dtype, tuple(time.shape)))
        return self.dropout(self.layer(x))


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        # a thousand steps are not told apart in half precision
        (torch.bfloat16, torch.float32),
    ],
)
def test_a_network_is_called_in_its_own_dtype_and_frozen(dtype, told):
    net = Linear().to(dtype).train()
    adapter = feasibly.wrap(net, "eps", VP())
    found = adapter(torch.randn(3, 2), torch.tensor(0.5)).mean
    assert found.dtype == torch.float32
    assert adapter.net.seen == [(dtype, told, (3,))]
    assert not adapter.net.training
    assert not any(p.requires_grad for p in adapter.parameters())


class Dropping(nn.Module):
    """A network with dropout, one of whose layers is frozen and another in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 64).requires_grad_(False), nn.Linear(64, 2).eval()
        self.dropout = nn.Dropout()

    def forward(self, x, time):
        return self.last(self.dropout(self.first(x)))


def test_wrapping_leaves_a_network_as_it_is():
    def state():
        return [(m.training, [p.requires_grad for p in m.parameters()]) for m in net.modules()]

    net = Dropping()
    before = state()
    adapter = feasibly.wrap(net, "x0", VP())
    assert state() == before
    x, t = torch.randn(3, 2), torch.tensor(0.5)
    with torch.no_grad():  # the weights are those of the network, and it drops none of them
        net.last.bias += 1
    assert torch.equal(adapter(x, t).mean, net.last(net.first(x)))


def test_a_frozen_network_is_not_copied():
    net = Linear().eval().requires_grad_(False)
    assert feasibly.wrap(net, "x0", VP()).net is net


def test_a_network_that_cannot_be_copied_has_to_be_frozen():
    net = Linear()
    net.lock = threading.Lock()
    with pytest.raises(DenoiserError, match=r"Linear cannot be copied.*eval\(\)\.requires_grad_"):
        feasibly.wrap(net, "x0", VP())
    assert feasibly.wrap(net.eval().requires_grad_(False), "x0", VP()).net is net


@pytest.mark.parametrize(
    "wrapped", [lambda x: x, lambda x: (x, None), lambda x: type("Out", (), {"sample": x})()]
)
def test_outputs_are_unwrapped(wrapped):
    adapter = feasibly.wrap(lambda x, s: wrapped(2 * x), "x0", VP())
    x = torch.randn(3, 2)
    torch.testing.assert_close(adapter(x, torch.tensor(0.5)).mean, 2 * x)


def test_complex_numbers_are_refused():
    """Their imaginary parts would be lost."""
    adapter = feasibly.wrap(lambda x, s: x.to(torch.complex64), "edm")
    with pytest.raises(DenoiserError, match="complex64, but states are real"):
        adapter(torch.ones(2, 3), torch.tensor(0.5))


def test_a_function_of_other_precision_is_told_to_cast():
    layer = torch.nn.Linear(3, 3)
    adapter = feasibly.wrap(lambda x, s: layer(x), "edm")
    with pytest.raises(DenoiserError, match="cast states and times to the dtype of its weights"):
        adapter(torch.ones(2, 3).double(), torch.tensor(0.5))


def test_a_learned_variance_is_dropped():
    def net(x, s):
        return torch.cat([x, torch.full_like(x, torch.nan)], dim=1)

    x = torch.randn(3, 4, 8, 8)
    adapter = feasibly.wrap(net, "x0", VP(), learned_variance=True)
    torch.testing.assert_close(adapter(x, torch.tensor(0.5)).mean, x)
    with pytest.raises(DenoiserError, match="learned_variance=True"):
        feasibly.wrap(net, "x0", VP())(x, torch.tensor(0.5))


def same(x, s):
    return x


MISTAKES = {
    "Cannot infer what function predicts": ((same,), {}),
    "no kind 'noise'.*'eps'": ((same, "noise", VP()), {}),
    "needs the schedule": ((same, "eps"), {}),
    "sigma": ((same, "eps", VP()), {"sigma": 2}),
    "network must be callable, got int": ((3, "eps", VP()), {}),
    "schedule must be callable, got int": ((same, "eps", 3), {}),
    "schedule is the class VP": ((same, "eps", VP), {}),
    "network is the class Linear": ((Linear, "eps", VP()), {}),
    r"wrap\(net, kind, schedule\)": ((same, VP(), "eps"), {}),
    "conditions must be a dictionary": ((same, "eps", VP()), {"conditions": torch.zeros(3)}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_explained(message):
    arguments, options = MISTAKES[message]
    with pytest.raises(DenoiserError, match=message):
        feasibly.wrap(*arguments, **options)


def test_a_network_that_returns_nothing_is_refused():
    with pytest.raises(DenoiserError, match="NoneType"):
        feasibly.wrap(lambda x, s: None, "eps", VP())(torch.randn(1, 2), torch.tensor(0.5))


def test_a_printed_adapter_states_what_it_assumes():
    conditions = {"label": torch.arange(8), "scale": torch.tensor(2.0), "mode": "fast"}
    said = repr(feasibly.wrap(Linear(), "eps", VP(), conditions=conditions))
    for part in (
        "Linear, 6 parameters, torch.float32",
        "the noise: x_0 = (x_t - sigma F) / alpha",
        "VP(beta_0=0.1, beta_1=20, tau=0.0001)",
        "t = 1: noise, alpha 0.006572, sigma 1; the network gets 1",
        "label: 8, one for each sample",
        "scale: one for all samples",
        "mode = 'fast'",
        "time: the schedule's own clock",
    ):
        assert part in said


class Labelled(nn.Module):
    """Knows the data of each label: a point."""

    points = torch.tensor([[0.0, 0.0], [5.0, 5.0], [-5.0, 5.0]])

    def forward(self, x, time, label):
        return self.points.to(x)[label].expand_as(x)


def test_every_member_has_its_own_condition():
    labels = torch.tensor([1, 2, 0, 1, 2])
    denoiser = feasibly.wrap(Labelled(), "x0", EDM(), conditions={"label": labels})
    drawn = sampled(on(feasibly.Ancestral(steps=4), denoiser), 5, (2,), batch_size=2).samples
    torch.testing.assert_close(drawn, Labelled.points[labels])
    some = sampled(on(feasibly.Ancestral(steps=4), denoiser), [4, 0], (2,)).samples
    torch.testing.assert_close(some, Labelled.points[labels[[4, 0]]])


@pytest.mark.parametrize("label", [torch.tensor(1), torch.tensor([1])])
def test_one_condition_serves_all_members(label):
    denoiser = feasibly.wrap(Labelled(), "x0", EDM(), conditions={"label": label})
    drawn = sampled(on(feasibly.Ancestral(steps=4), denoiser), 5, (2,)).samples
    torch.testing.assert_close(drawn, Labelled.points[1].expand(5, 2))


def test_a_call_may_bring_its_own_conditions():
    denoiser = feasibly.wrap(Labelled(), "x0", EDM())
    labels = torch.tensor([1, 2])
    found = denoiser(torch.randn(2, 2), torch.tensor(0.5), label=labels).mean
    torch.testing.assert_close(found, Labelled.points[labels])


def test_members_without_a_condition_are_refused():
    denoiser = feasibly.wrap(Labelled(), "x0", EDM(), conditions={"label": torch.tensor([1, 2])})
    with pytest.raises(DenoiserError, match="label has 2 rows"):
        denoiser(torch.randn(3, 2), torch.tensor(0.5))
    with pytest.raises((DenoiserError, feasibly.SamplingError), match="label has 2 rows"):
        sampled(on(feasibly.Ancestral(steps=4), denoiser), 3, (2,))
