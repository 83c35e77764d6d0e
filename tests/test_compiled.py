"""Networks that torch has compiled."""

import copy

import pytest
import torch

import feasibly
from feasibly.denoisers import Karras
from feasibly.nn import ModulatedMLP
from feasibly.schedules import LogLogit

LINE = feasibly.Equality(lambda x: x[:, :1] - 0.2, tolerance=1e-8)


@pytest.fixture
def plain():
    torch.manual_seed(0)
    net = ModulatedMLP(width=32)
    torch.nn.init.normal_(net.output.weight, std=0.1)
    return Karras(net, LogLogit()).requires_grad_(False)


def compiled(denoiser):
    other = copy.deepcopy(denoiser)
    # the same graphs of forward and backward passes as ever, run without a C++ compiler
    other.backbone = torch.compile(other.backbone, backend="aot_eager")
    return other


@pytest.mark.slow
def test_members_of_a_compiled_network_are_those_of_the_network(plain):
    torch._dynamo.reset()
    members = [
        feasibly.sample(denoiser, LINE, 8, (2,), method="ppr-tuned")
        for denoiser in (plain, compiled(plain))
    ]
    assert all(result.feasible.all() for result in members)
    torch.testing.assert_close(members[1].samples, members[0].samples)
