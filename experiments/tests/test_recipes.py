import numpy as np
import pytest
import torch

from experiments.recipes import KS, KS128
from feasibly.problems.ks import RMS


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


def test_nine_tenths_of_the_times_are_where_there_is_something_to_learn():
    u = torch.linspace(0, 1, 2001)
    t = KS().times(u)
    assert t[0] == 0
    assert t[-1] == 1
    assert (t.diff() > 0).all()
    sigma = KS().model().schedule(t)[1]
    assert ((sigma > 3e-3) & (sigma < 30)).float().mean().item() == pytest.approx(0.9, abs=0.01)


def test_a_prior_that_has_learned_data_by_heart_is_found_out(recipe):
    """In whatever image the training showed: here the second start, between two places."""
    copies = (field()[:, 1::2].roll(3, 2)[..., 1::2]) / RMS
    found = recipe.distance(torch.cat((copies, field(3, 4, seed=9))))
    assert found[:3].max() < 1e-3
    assert found[3:].min() > 0.1


def test_data_of_another_size_are_refused(tmp_path):
    np.save(tmp_path / "ks.npy", np.zeros((2, 64, 64), dtype=np.float32))
    KS().data(tmp_path)
    with pytest.raises(ValueError, match=r"shape \(2, 64, 64\).*multiples of 128"):
        KS128().data(tmp_path)
