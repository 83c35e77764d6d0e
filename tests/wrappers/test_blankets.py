import pytest
import torch

from feasibly import PPR, Linear
from feasibly.denoisers import Denoiser, Posterior
from feasibly.members import calling, current
from feasibly.schedules import LogLogit
from feasibly.wrappers import Blankets
from tests.helpers import on, sampled

SCHEDULE = LogLogit(1e-3, 1e2, spread=2.0)


class White(Denoiser):
    """Independent frames: windows make no difference."""

    def mean(self, x, sigma):
        assert x.shape[1:] == (6, 2)
        return x / (1 + sigma**2)


class Names(torch.nn.Module):
    """Tells each frame which window and place it was denoised in."""

    schedule = SCHEDULE

    def forward(self, x_t, t):
        place = torch.arange(6.0)[None, :, None].expand_as(x_t)
        return Posterior(100 * x_t[:, :1] + place)


def windows(stitch, frames=12, stride=2):
    x = torch.arange(float(frames))[None, :, None].expand(1, -1, 2)
    start_and_place = Blankets(Names(), 6, stride, stitch)(x, torch.tensor(0.5)).mean[0, :, 0]
    return start_and_place


def test_middle_frames_are_kept_when_windows_are_joined_symmetrically():
    # windows start at 0, 2, 4, 6; the middle two frames of each are its places 2 and 3
    expected = [0, 1, 2, 3, 202, 203, 402, 403, 602, 603, 604, 605]
    assert windows("symmetric").tolist() == expected


def test_last_frames_are_kept_when_windows_are_joined_causally():
    expected = [0, 1, 2, 3, 4, 5, 204, 205, 404, 405, 604, 605]
    assert windows("causal").tolist() == expected


def test_all_windows_count_alike_in_the_average():
    found = windows("average", frames=8)  # windows start at 0 and 2
    expected = [0, 1] + [(i + 200 + i - 2) / 2 for i in range(2, 6)] + [204, 205]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("stitch", ["symmetric", "causal", "average"])
@pytest.mark.parametrize("stride", [1, 3, 4, 6])
def test_weights_of_a_frame_sum_to_one_and_independent_frames_are_exact(stitch, stride):
    frames = 6 + 3 * stride
    blankets = Blankets(White(SCHEDULE), 6, stride, stitch)
    x = torch.randn(3, frames, 2, generator=torch.Generator().manual_seed(0))
    for t in (torch.tensor(0.4), torch.tensor([0.1, 0.5, 0.9])):
        sigma = SCHEDULE(t)[1].reshape(-1, 1, 1)
        torch.testing.assert_close(blankets(x, t).mean, x / (1 + sigma**2))


def test_windows_have_the_conditions_of_their_member():
    seen = []

    class Conditional(White):
        def mean(self, x, sigma):
            seen.append(current().tolist())
            return super().mean(x, sigma)

    with calling([4, 9]):
        Blankets(Conditional(SCHEDULE), 6, 3)(torch.zeros(2, 12, 2), torch.tensor(0.5))
    assert seen == [[4, 4, 4, 9, 9, 9]]


def test_a_long_trajectory_is_sampled_under_a_constraint():
    A = torch.zeros(1, 24)
    A[0, ::2] = 1  # the sum of one channel over all frames
    prior = Blankets(White(SCHEDULE), 6, 3)
    line = Linear(A, torch.tensor([2.0]), 1e-6)
    result = sampled(on(PPR(steps=16), prior, line), 4, (12, 2), seed=0)
    assert result.feasible.all()
    torch.testing.assert_close(
        result.samples[..., 0].sum(dim=1), torch.full((4,), 2.0), atol=1e-3, rtol=0
    )


def test_what_cannot_be_covered_is_refused():
    with pytest.raises(ValueError, match="6 plus a multiple of 4"):
        Blankets(White(SCHEDULE), 6, 4)(torch.zeros(1, 12, 2), torch.tensor(0.5))
    with pytest.raises(ValueError, match="no frame is left out"):
        Blankets(White(SCHEDULE), 6, 7)
    with pytest.raises(ValueError, match="stitch"):
        Blankets(White(SCHEDULE), 6, 3, "sideways")
