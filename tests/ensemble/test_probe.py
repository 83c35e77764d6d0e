"""A store goes on with the run that began it, and with no other."""

import pytest
import torch
from torch import nn

import feasibly
from feasibly import ensemble, members
from feasibly.checks.probe import PARTS, differences, probe
from feasibly.constraints import Inequality, Linear
from feasibly.denoisers import Posterior
from feasibly.ensemble import Store
from feasibly.errors import StoreError
from feasibly.minimizers import GaussNewton
from feasibly.policy import Plan
from feasibly.schedules import VE, VP
from tests.helpers import on

ROW = torch.tensor([[1.0, -2.0, 0.5]])
CONDITIONS = torch.linspace(-1, 1, 12).reshape(4, 3)


class Net(nn.Module):
    """A network that is told of its member, and rounds by the size of its batch."""

    def __init__(self, rounding=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.rounding = nn.Linear(3, 3), rounding

    def forward(self, x, time, c):
        return self.layer(x) * (1 + self.rounding * len(x)) + c


def chosen(y=0.0, conditions=CONDITIONS, schedule=None, law=None, rounding=0.0):
    law = law or Linear(ROW, torch.tensor([y]), tolerance=1e-6)
    denoiser = feasibly.wrap(Net(rounding), "x0", schedule or VP(), conditions={"c": conditions})
    method = feasibly.PPR(steps=3, minimize=GaussNewton(3))
    return Plan((on(method, denoiser, law, (3,)),))


class Stop(Exception):
    pass


def stop_half_way(path, **options):
    """Draws two of four members, as a process that is stopped then."""

    def stop(snapshot):
        if snapshot.step == 1 and len(Store(path).missing()) == 2:
            raise Stop

    with pytest.raises(Stop):
        ensemble.run(chosen(**options), path, 4, batch_size=2, callback=stop)
    assert len(Store(path).missing()) == 2


def another_member():
    changed = CONDITIONS.clone()
    changed[3] += 1
    return changed


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"y": 1.0}, "constraint"),
        ({"conditions": CONDITIONS + 1}, "denoiser"),
        ({"conditions": another_member()}, "denoiser"),
        ({"schedule": VE()}, "schedule and the denoiser"),
    ],
    ids=["other data", "other conditions", "one member's", "other schedule"],
)
def test_a_run_is_not_resumed_by_another(path, changes, part):
    stop_half_way(path)
    with pytest.raises(StoreError, match=f"another run: the {part} returned .*another store"):
        ensemble.run(chosen(**changes), path, 4, batch_size=2)
    assert len(Store(path).missing()) == 2


def test_a_bound_that_noise_seldom_meets_is_told_from_another(path):
    def bound(at):
        return Inequality(lambda x: x - at, tolerance=1e-6)

    stop_half_way(path, law=bound(3.0))
    with pytest.raises(StoreError, match="the constraint returned"):
        ensemble.run(chosen(law=bound(2.0)), path, 4, batch_size=2)


@pytest.mark.parametrize("size", [1, 2, 4, "auto"])
def test_the_same_run_goes_on_in_any_chunk(path, size):
    stop_half_way(path, rounding=1e-7)
    again = chosen(rounding=1.1e-7)  # as another machine rounds
    assert ensemble.run(again, path, 4, batch_size=size).counted == 4


def test_a_number_that_is_not_finite_is_not_compared():
    here = dict.fromkeys(PARTS, (1.0,) * 8)
    assert differences(here, here) == []
    assert differences(here | {"denoiser": (None,) * 4 + (1.0,) * 4}, here) == []
    assert differences(here | {"denoiser": (None,) * 4 + (2.0,) * 4}, here) == ["denoiser"]
    assert differences(here | {"constraint": ()}, here) == ["constraint"]


def test_a_network_in_half_precision_may_round_farther():
    here = dict.fromkeys(PARTS, (1.0,) * 4)
    other = here | {"denoiser": (1.01, 1.0, 1.0, 1.0)}
    assert differences(here, other, Net()) == ["denoiser"]
    assert differences(here, other, Net().bfloat16()) == []


def test_only_members_of_the_run_are_asked():
    seen = []

    def net(x_t, t):
        seen.extend(members.current().tolist())
        return Posterior(0.5 * x_t)

    net.schedule = VP()
    for count, asked in [(1, {0}), (2, {0, 1}), (9, {0, 1, 4, 8})]:
        seen.clear()
        found = probe(net, None, count, (3,), torch.float64, torch.device("cpu"))
        assert set(seen) == asked
        assert found["constraint"] == ()
