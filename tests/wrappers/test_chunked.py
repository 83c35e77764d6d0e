"""A denoiser a few members at a time, and blocks that are computed again."""

import copy

import pytest
import torch
from torch import nn

import feasibly
from feasibly import Chunked, members, samplers
from feasibly.constraints import GaussianRandomField, LevelSet, Linear
from feasibly.denoisers import Karras
from feasibly.minimizers import GaussNewton
from feasibly.network import device_of
from feasibly.nn import SphereNet, UNet, recompute
from feasibly.nn.sphere import Block
from feasibly.nn.unet import ResidualBlock
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

T = torch.tensor(0.5)
LEVEL = LevelSet(GaussianRandomField(seed=3))
LINE = Linear(torch.tensor([[1.0, -2.0]]), torch.tensor([0.3]), tolerance=1e-6)


class Net(nn.Module):
    """A small network that needs its members, and notes how many there are at a time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.requires_grad_(False)
        self.schedule = LogLogit()
        self.seen = []

    def forward(self, x_t, t):
        rows = members.current()
        rows = torch.arange(len(x_t)) if rows is None else rows
        self.seen.append(rows.tolist())
        assert len(rows) == len(x_t)
        alpha_t, sigma_t = (v.reshape(-1, 1) for v in self.schedule(t))
        x = x_t / alpha_t
        # like a denoiser: next to the identity, with its mean each member's own
        return (x + sigma_t * (self.layers(x) + 0.1 * rows[:, None])) / (1 + sigma_t**2)


def drawn(net, make):
    return sampled(make(net), 7, (2,), seed=1, batch_size=7)


METHODS = {
    "PPR, Gauss-Newton": lambda d: on(feasibly.PPR(steps=8, minimize=GaussNewton(3)), d, LEVEL),
    "MMPS": lambda d: on(samplers.MMPS(steps=8), d, LINE),
}


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_members_do_not_depend_on_the_chunks_of_a_call(make):
    whole = Net()
    expected = drawn(whole, make)
    assert max(map(len, whole.seen)) == 7
    for chunk, recomputed in ((1, True), (3, True), (3, False), (16, True)):
        parts = Net()
        found = drawn(Chunked(parts, chunk, recomputed), make)
        torch.testing.assert_close(found.samples, expected.samples, rtol=1e-4, atol=1e-5)
        assert max(map(len, parts.seen)) == min(chunk, 7)
        for name in ("member_forward", "member_backward"):
            assert getattr(found.evaluations, name) == getattr(expected.evaluations, name)


@pytest.mark.parametrize("t", [T, torch.linspace(0.2, 0.8, 5)], ids=["one time", "times"])
def test_a_gradient_is_that_of_the_whole(t):
    net, x = Net(), torch.randn(5, 2)
    gradients = []
    for denoiser in (net, Chunked(net, 2)):
        z = x.clone().requires_grad_()
        with members.calling(range(5)):
            found = denoiser(z, t)
        mean = found if isinstance(found, torch.Tensor) else found.mean
        gradients.append(torch.autograd.grad(mean.square().sum(), z)[0])
    torch.testing.assert_close(*gradients)


def test_a_part_is_computed_again_for_its_own_members():
    net = Net()
    with members.calling([4, 5, 6]):
        z = torch.randn(3, 2, requires_grad=True)
        mean = Chunked(net, 2)(z, T).mean
    assert net.seen == [[4, 5], [6]]
    torch.autograd.grad(mean.sum(), z)  # nobody says any more whose call it is
    assert sorted(net.seen[2:]) == [[4, 5], [6]]


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_conditions_of_a_call_go_to_their_rows(chunk):
    def net(x, time, c, shared, factor):
        return factor * x + c + shared

    denoiser = feasibly.wrap(net, "x0", LogLogit())
    x, c = torch.randn(5, 2), torch.randn(5, 2, requires_grad=True)
    given = {"c": c, "shared": torch.ones(1, 2), "factor": 3.0}
    gradients = []
    for d in (denoiser, Chunked(denoiser, chunk)):
        z = x.clone().requires_grad_()
        mean = d(z, T, **given).mean
        torch.testing.assert_close(mean, 3 * x + c + 1)
        gradients.append(torch.autograd.grad(mean.square().sum(), (z, c)))
    torch.testing.assert_close(*gradients)


def kept(function, x):
    """The bytes that a function keeps for a gradient."""
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = 0 if isinstance(tensor, nn.Parameter) else storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(x.clone().requires_grad_())
    return sum(found.values()), result


def test_activations_are_not_kept():
    net = Karras(UNet((16, 32)), LogLogit()).requires_grad_(False)
    x = torch.randn(4, 32, 32)
    whole, _ = kept(lambda z: net(z, T).mean, x)
    parts, _ = kept(lambda z: Chunked(net)(z, T).mean, x)
    assert parts < whole / 20


def test_it_is_the_same_denoiser_to_those_who_ask():
    net = Net()
    chunked = Chunked(net, 2)
    assert chunked.schedule is net.schedule
    assert device_of(chunked) == device_of(net)
    assert len(list(chunked.parameters())) == len(list(net.parameters()))


def test_a_chunk_is_not_empty():
    with pytest.raises(ValueError, match="at least 1"):
        Chunked(Net(), 0)


CASES = {
    "UNet": (lambda: UNet((16, 32, 64)), ResidualBlock, (2, 16, 16)),
    "SphereNet": (lambda: SphereNet(4, 4, channels=32), Block, (2, 4, 4, 4, 8)),
}
each = pytest.mark.parametrize(("make", "kind", "shape"), CASES.values(), ids=CASES.keys())


def network(make):
    torch.manual_seed(1)
    net = make().requires_grad_(False)
    for p in net.parameters():  # the last layer begins as zero
        p.add_(0.02 * torch.randn_like(p))
    return net


@each
def test_recomputed_blocks_are_the_same_and_keep_less(make, kind, shape):
    plain, again = network(make), recompute(network(make), kind)
    assert again.state_dict().keys() == plain.state_dict().keys()
    x, results = torch.randn(shape), []
    for net in (plain, again):
        z = x.clone().requires_grad_()
        y = net(z, T)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), z)[0]))
    torch.testing.assert_close(results[0], results[1])
    sizes = [kept(lambda z, net=net: net(z, T), x)[0] for net in (plain, again)]
    assert sizes[1] < 0.6 * sizes[0]


@each
def test_a_copy_of_a_network_recomputes_its_own_blocks(make, kind, shape):
    net = recompute(network(make), kind)
    other = copy.deepcopy(net)
    for p in other.parameters():
        p.zero_()
    x = torch.randn(shape, requires_grad=True)
    assert net(x, T).abs().max() > 0
    assert other(x, T).abs().max() == 0


def test_a_network_without_such_blocks_is_refused():
    with pytest.raises(ValueError, match=r"no block of \['Block'\].*Linear"):
        recompute(Net(), Block)
