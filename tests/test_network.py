from types import SimpleNamespace

import numpy as np
import pytest
import torch

from feasibly.errors import DenoiserError
from feasibly.network import Evaluations, Network, counted, device_of
from feasibly.schedules import LogLogit

HALF = torch.tensor(0.5)


def denoiser(function):
    function.schedule = LogLogit()
    return function


def network_of(function):
    return Network(denoiser(function))


@pytest.fixture
def network():
    return network_of(lambda x_t, t: torch.sin(x_t) * t)


@pytest.fixture
def counts():
    """The evaluations of a test."""
    evaluations = Evaluations()
    with counted(evaluations):
        yield evaluations


@pytest.fixture
def x_t():
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_a_tensor_and_an_object_with_a_mean_are_the_same_estimate(x_t):
    posterior = network_of(lambda x_t, t: SimpleNamespace(mean=torch.sin(x_t) * t))
    for network in (network_of(lambda x_t, t: torch.sin(x_t) * t), posterior):
        assert network.schedule is network.denoiser.schedule
        x_0 = network(x_t, HALF)
        assert torch.equal(x_0, torch.sin(x_t) * HALF)
        (g,) = torch.autograd.grad(x_0.sum(), x_t)
        torch.testing.assert_close(g, torch.cos(x_t) * HALF)
        again = Network(network)  # of a network the denoiser is taken
        assert again.denoiser is network.denoiser
        assert torch.equal(again(x_t, HALF), x_0)


def test_the_innermost_count_counts_and_what_began_in_it_stays_its(network, x_t):
    outer, inner = Evaluations(), Evaluations()
    with counted(outer):
        network(x_t, HALF)
        with counted(inner):
            x_0 = network(x_t, HALF)
        with counted(None):
            network(x_t, HALF)
        grad(x_0, x_t)
        network(x_t, HALF)
    network(x_t, HALF)
    assert (outer.forward, outer.backward) == (2, 0)
    assert (inner.forward, inner.backward) == (1, 1)


def grad(y, *x):
    return torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)


def several_sizes(net, x):
    for members in (3, 5, 1):
        net(torch.zeros(members, 2), HALF)


def three_products(net, x):
    x_0 = net(x, HALF)
    for _ in range(3):
        grad(x_0, x)


def one_product_of_many_uses(net, x):
    x_0 = net(x, HALF)
    grad(x_0.sum() + x_0.square().sum() + x_0[:1].prod(), x)


def to_some_members(net, x):
    moving, fixed = torch.ones(1, 2, requires_grad=True), torch.zeros(3, 2)
    grad(net(torch.cat((moving, fixed)), HALF), moving)


def past_the_network(net, x):
    y = torch.ones(4, 2, requires_grad=True)
    loss = (net(x, HALF) * y).sum()
    grad(loss, y)  # not counted
    grad(loss, x, y)


def one_of_two(net, x):
    first, second = net(x, HALF), net(x, HALF)
    grad(second.sum() + first.detach().sum(), x)


def without_gradient(net, x):
    with torch.no_grad():
        assert not net(x, HALF).requires_grad
    assert not net(x.detach(), HALF).requires_grad


@pytest.mark.parametrize(
    ("evaluate", "forward", "backward"),
    [
        (several_sizes, (3, 9), (0, 0)),
        (three_products, (1, 4), (3, 12)),
        (one_product_of_many_uses, (1, 4), (1, 4)),
        (lambda net, x: grad(net(x, HALF)[:1], x), (1, 4), (1, 4)),
        (to_some_members, (1, 4), (1, 4)),
        (past_the_network, (1, 4), (1, 4)),
        (lambda net, x: grad(net(net(x, HALF), HALF), x), (2, 8), (2, 8)),
        (one_of_two, (2, 8), (1, 4)),
        (without_gradient, (2, 8), (0, 0)),
    ],
    ids=range(9),
)
def test_evaluations_are_counted_by_batch_and_by_member(
    network, x_t, counts, evaluate, forward, backward
):
    evaluate(network, x_t)
    assert (counts.forward, counts.member_forward) == forward
    assert (counts.backward, counts.member_backward) == backward


def test_a_gradient_of_the_weights_alone_is_not_counted(x_t, counts):
    weight = torch.ones(2, requires_grad=True)
    network = network_of(lambda x_t, t: x_t * weight)
    network(x_t.detach(), HALF).sum().backward()
    assert torch.equal(weight.grad, x_t.detach().sum(dim=0))
    assert counts.backward == 0


def test_a_denoiser_that_returns_its_input_is_counted_exactly(x_t, counts):
    network = network_of(lambda x_t, t: x_t)
    x_0 = network(x_t, HALF)
    assert torch.equal(x_0, x_t)
    for n in (1, 2):
        (g,) = torch.autograd.grad(x_0.sum(), x_t, retain_graph=True)
        assert torch.equal(g, torch.ones_like(x_t))
        assert counts.backward == n


def test_a_denoiser_that_keeps_its_output_is_counted_exactly(x_t, counts):
    kept = []

    def cached(x_t, t):
        kept.append(torch.sin(x_t))
        return kept[0]

    network = network_of(cached)
    _, second = network(x_t, HALF), network(x_t, HALF)
    torch.autograd.grad(second.sum(), x_t)
    assert counts.backward == 1


@pytest.mark.parametrize("evaluations", [None, Evaluations()], ids=["uncounted", "counted"])
def test_a_denoiser_that_changes_its_input_is_refused(x_t, evaluations):
    def scaling(x_t, t):
        with torch.no_grad():
            x_t.mul_(0.5)
        return torch.sin(x_t)

    state = 2 * x_t
    before = state.detach().clone()
    with counted(evaluations), pytest.raises(DenoiserError, match="in place"):
        network_of(scaling)(state, HALF)
    assert torch.equal(state, before)


def test_seconds_are_those_of_forward_and_backward_evaluations_alone(monkeypatch, x_t, counts):
    now = 0.0

    def work(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr("feasibly.network.time", SimpleNamespace(perf_counter=lambda: now))

    def slow(x_t, t):
        work(2.0)
        x_0 = torch.sin(x_t)
        x_0.register_hook(lambda g: work(5.0))
        return x_0

    network = network_of(slow)
    network(x_t, HALF)  # from the same state, but no part of what follows
    x_0 = network(x_t, HALF)
    assert counts.seconds == 4
    work(100.0)
    loss = x_0.square()
    loss.register_hook(lambda g: work(1000.0))  # the constraint's share of a backward pass
    for n in (1, 2):
        torch.autograd.grad(loss.sum(), x_t, retain_graph=True)
        assert counts.seconds == 4 + 5 * n


def test_evaluations_add_up_field_by_field():
    total = Evaluations(1, 2, 3, 4, 0.5) + Evaluations(10, 20, 30, 40, 0.25)
    assert total == Evaluations(11, 22, 33, 44, 0.75)


def without_schedule(x_t, t):
    return x_t


def with_constant_schedule(x_t, t):
    return x_t


with_constant_schedule.schedule = (1.0, 0.5)


@pytest.mark.parametrize(
    "candidate",
    [without_schedule, with_constant_schedule, SimpleNamespace(schedule=LogLogit())],
    ids=["no schedule", "schedule not callable", "not callable"],
)
def test_what_is_no_denoiser_is_refused_with_a_remedy(candidate):
    with pytest.raises(DenoiserError, match=r"`schedule`.*feasibly\.wrap") as error:
        Network(candidate)
    assert type(candidate).__name__ in str(error.value)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (lambda x: x[:, :1], r"shape \(4, 1\)"),
        (lambda x: x[:2], r"shape \(2, 2\)"),
        (lambda x: x.double(), "float64 for a state of torch.float32"),
        (lambda x: x.to(torch.complex64), "return its real part"),
        (lambda x: x.half(), "cast its output back.$"),
        (lambda x: None, "NoneType"),
        (lambda x: (x, x), "tuple"),
        (lambda x: SimpleNamespace(mean=2.0), "float"),
        (lambda x: x.detach().numpy(), "ndarray"),
        (lambda x: SimpleNamespace(mean=np.zeros((4, 2))), "ndarray"),
    ],
    ids=[
        "features",
        "members",
        "dtype",
        "complex",
        "half",
        "none",
        "tuple",
        "mean float",
        "numpy",
        "mean numpy",
    ],
)
def test_a_wrong_output_is_refused_with_its_cause(x_t, output, cause):
    network = network_of(lambda x_t, t: output(x_t))
    with pytest.raises(DenoiserError, match=cause):
        network(x_t, HALF)


def test_a_denoiser_is_where_its_parameters_or_else_its_buffers_are():
    net = torch.nn.Module()
    assert device_of(net) == device_of(lambda x_t, t: x_t) == torch.device("cpu")
    net.register_buffer("mean", torch.zeros(1, device="meta"))
    assert device_of(net) == torch.device("meta")
    net.weight = torch.nn.Parameter(torch.zeros(1))
    assert device_of(net) == torch.device("cpu")
