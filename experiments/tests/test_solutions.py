import pytest
import torch

from experiments.studies import solutions
from experiments.tasks.solutions import (
    RHO,
    Pairs,
    burgers,
    fronts,
    gained,
    reaction_diffusion,
    reactions,
    uneven,
)
from feasibly.oracles import Empirical
from feasibly.schedules import Flow

SMALL = {
    "Burgers, initial state": lambda: fronts("initial state", 12),
    "Burgers, boundary and mass": lambda: fronts("boundary", 12),
    "reaction-diffusion": lambda: reactions(12, 10),
}


@pytest.fixture(scope="module", params=SMALL)
def task(request):
    return SMALL[request.param]()


def test_data_satisfy_what_is_given_and_it_singles_out_the_atoms(task):
    data = task.denoiser.data
    assert task.law(data).abs().max() < 1e-13
    same = (data - task.atoms[0])[:, task.known].abs().amax(dim=1) < 1e-12
    assert same.sum() == len(task.atoms) == 80
    assert torch.equal(data[same], task.atoms)
    assert torch.equal(task.constraint.is_feasible(data), same)


def test_scores_tell_the_truth_from_one_atom_and_from_half_of_them(task):
    true = task.about(task.sample(64, torch.Generator().manual_seed(0)))
    one = task.about(task.atoms[:1].expand(64, -1, -1))
    half = task.atoms[task.free[0] < task.free[0].median()]
    half = task.about(half[torch.arange(64) % len(half)])
    assert true["off"] == pytest.approx(0, abs=1e-6)
    assert true["p"] > 1e-3  # by chance not so in one of a thousand seeds; this one is fixed
    assert one["p"] < 1e-9
    assert half["p"] < 1e-6
    assert max(true["mmse"], true["smse"]) < min(one["mmse"], half["mmse"])


def test_products_give_the_denoiser_of_finite_data():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(50, 3, 4, generator=generator, dtype=torch.float64)
    x = data[:8] + 0.3 * torch.randn(8, 3, 4, generator=generator, dtype=torch.float64)
    for sigma in (1e-3, 0.3, 10.0):
        one, other = (
            kind(data, Flow()).mean(x, torch.tensor(sigma)) for kind in (Pairs, Empirical)
        )
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_a_front_moves_by_half_of_its_height():
    u = burgers(torch.tensor([0.3]).double(), torch.tensor([1.0]).double(), 200)
    place = u.mean(dim=1)[0]  # of a front from one to zero
    assert (place[120] - place[20]).item() == pytest.approx(0.5 * 100 / 200, abs=5e-3)


def test_a_point_that_gains_is_a_gain_of_mass():
    random = torch.Generator().manual_seed(0)
    u = burgers(*torch.rand(2, 5, generator=random).double(), 20)
    u[:, 3, 7] += 1e-3
    expected = torch.zeros(5, 20).double()
    expected[:, 6] = 1e-3 / 21
    torch.testing.assert_close(gained(u), expected, rtol=0, atol=1e-14)


def test_our_default_is_measured(monkeypatch):
    monkeypatch.setattr(solutions, "MEMBERS", 4)
    monkeypatch.setattr(solutions, "_task", lambda name: fronts("initial state", 6))
    (found,) = solutions.measure({"task": "t", "label": "default", "seed": 0})
    assert found["given"] < 1e-3
    assert found["evaluations"] > 0


def test_a_flat_state_without_fluxes_grows_as_the_reaction_does_and_fluxes_add_mass():
    start = torch.full((2, 10), 0.3, dtype=torch.float64)
    flux = torch.tensor([[0.0, 0.0], [0.04, -0.03]], dtype=torch.float64)
    still, fed = reaction_diffusion(start, flux, 100)
    t = 0.01 * torch.arange(100).double()
    logistic = 0.3 / (0.3 + 0.7 * torch.exp(-RHO * t))
    torch.testing.assert_close(still, logistic.expand(10, -1), rtol=0, atol=1e-12)
    gain = (fed - still).mean(dim=0)[-1].item()
    assert gain == pytest.approx(0.07 * 0.99, rel=0.01)
    assert uneven(torch.stack([still, fed])).abs().max() < 1e-13
