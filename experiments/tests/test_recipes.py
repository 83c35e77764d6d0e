import numpy as np
import pytest
import torch

from experiments import data
from experiments.recipes import KS, KS128
from experiments.recipes.ks import nearest
from feasibly.problems import ks_solver
from feasibly.problems.ks import RMS, residual


def field(n=3, size=8, seed=0):
    return torch.randn(n, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """KS on 4 x 4 points, from data on 8 x 8."""
    monkeypatch.setattr(KS, "size", 4)
    np.save(tmp_path / "ks.npy", field().numpy())
    made = KS()
    made.data(tmp_path)
    return made


def test_data_come_in_units_of_their_size_and_coarsened(recipe):
    x = recipe.batch(16, torch.Generator().manual_seed(0), symmetries=False)
    plain = field()[:, ::2, ::2] / RMS
    assert x.shape == (16, 4, 4)
    which = {next(i for i in range(3) if torch.allclose(u, plain[i])) for u in x}
    assert which == {0, 1, 2}


def test_symmetries_shift_and_reflect_in_space_and_choose_the_first_frame(recipe):
    x = recipe.batch(64, torch.Generator().manual_seed(0), symmetries=True)
    seen = set()
    for u in x:
        for i, offset, sign, shift in np.ndindex(3, 2, 2, 8):
            whole = field()[i, offset::2] / RMS
            image = (-whole.flip(1) if sign else whole).roll(shift, dims=1)[:, ::2]
            if torch.allclose(u, image):
                seen.add((i, offset, sign, shift))
                break
        else:
            pytest.fail("a batch holds what is no image of the data")
    assert {place[1] for place in seen} == {0, 1}
    assert {place[2] for place in seen} == {0, 1}
    assert len({place[3] for place in seen}) == 8


def test_symmetries_leave_solutions_solutions(recipe, monkeypatch):
    monkeypatch.setattr(KS, "size", 64)
    start = ks_solver.initial_conditions(2, torch.Generator().manual_seed(0), points=64)
    recipe.trajectories = ks_solver.bdf1(start, 812)[:, 300::8].numpy().astype(np.float32)
    plain = residual(torch.from_numpy(recipe.trajectories) / RMS)
    x = recipe.batch(8, torch.Generator().manual_seed(1), symmetries=True)
    for r in residual(x):
        assert (r - plain).abs().min() < 1e-3 * r


def test_data_that_are_not_there_are_asked_for_with_the_command(tmp_path):
    with pytest.raises(ValueError, match=r"ks\.npy.*experiments data ks --out"):
        KS().data(tmp_path)


def test_nine_tenths_of_the_times_are_where_there_is_something_to_learn():
    u = torch.linspace(0, 1, 2001)
    t = KS().times(u)
    assert t[0] == 0
    assert t[-1] == 1
    assert (t.diff() > 0).all()
    sigma = KS().model().schedule(t)[1]
    assert ((sigma > 3e-3) & (sigma < 30)).float().mean().item() == pytest.approx(0.9, abs=0.01)


def test_the_nearest_trajectory_may_be_shifted_and_reflected():
    train = field(5)
    mirrored = -train.flip(2)
    x = torch.stack((train[3].roll(3, 1), mirrored[1].roll(2, 1), field(1, seed=9)[0]))
    distance = nearest(x, train)
    assert distance[:2].tolist() == pytest.approx([0, 0], abs=1e-3)
    images = torch.cat([v.roll(k, 2) for v in (train, mirrored) for k in range(8)])
    expected = (images - x[2]).square().mean(dim=(1, 2)).min().sqrt()
    assert distance[2].item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_prior_that_has_learned_data_by_heart_is_found_out(recipe):
    """In whatever image the training showed: here the second start, between two places."""
    copies = (field()[:, 1::2].roll(3, 2)[..., 1::2]) / RMS
    found = recipe.distance(torch.cat((copies, field(3, 4, seed=9))))
    assert found[:3].max() < 1e-3
    assert found[3:].min() > 0.1


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of four trajectories, that are quickly simulated, and which of them were."""
    done = []

    def simulate(block, seed, size):
        done.append(block)
        return field(4, size, seed=100 * seed + block)

    monkeypatch.setattr(data, "BLOCK", 4)
    monkeypatch.setattr(data.ks_solver, "simulate", simulate)
    return done


def test_a_data_file_is_its_blocks_in_order(tmp_path, blocks):
    path = tmp_path / "new" / "ks.npy"
    data.ks(path, 10, 8, seed=2)
    expected = torch.cat([field(4, 8, seed=200 + b) for b in range(3)])[:10]
    np.testing.assert_array_equal(np.load(path), expected)
    assert [p.name for p in path.parent.iterdir()] == ["ks.npy"]


def test_data_of_another_size_are_refused(tmp_path):
    np.save(tmp_path / "ks.npy", np.zeros((2, 64, 64), dtype=np.float32))
    KS().data(tmp_path)
    with pytest.raises(ValueError, match=r"shape \(2, 64, 64\).*multiples of 128"):
        KS128().data(tmp_path)
