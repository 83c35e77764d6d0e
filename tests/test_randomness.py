import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.randomness import MemberNoise, generator

check = settings(derandomize=True, deadline=None, max_examples=10)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SHAPES = [(2,), (), (3, 4), (1500,), (70, 70)]  # many draws a block, one draw a block


def draws(noise, n):
    return torch.stack([noise() for _ in range(n)], dim=1)


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.integers(0, 2**40),
    st.integers(0, 5),
    st.sampled_from(SHAPES),
)
@check
def test_a_member_draws_the_same_alone_as_in_any_batch(members, seed, attempt, shape):
    noise = MemberNoise(seed, members, shape, attempt)
    together = draws(noise, 3)
    assert together.shape == (len(members), 3, *shape)
    assert MemberNoise(seed, members, shape, dtype=torch.float64)(together).dtype == torch.float64
    for row, member in zip(together, members, strict=True):
        assert torch.equal(row, draws(MemberNoise(seed, [member], shape, attempt), 3)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_drawn_depends_on_the_seed_and_not_on_the_device(device):
    here = draws(MemberNoise(3, range(4), (3, 4)), 5)
    there = draws(MemberNoise(3, range(4), (3, 4), device=device), 5)
    assert there.device.type == device
    assert torch.equal(here, there.cpu())


def test_streams_neither_read_nor_advance_the_global_generator():
    torch.manual_seed(0)
    first = draws(MemberNoise(3, [1], (2,)), 4)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(draws(MemberNoise(3, [1], (2,)), 4), first)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_seed_member_and_attempt_each_give_another_stream():
    keys = [(s, i, a) for s in range(4) for i in range(4) for a in range(4)]
    streams = [draws(MemberNoise(s, [i], (5,), attempt=a), 2) for s, i, a in keys]
    for one, other in combinations(streams, 2):
        assert not torch.isclose(one, other).any()


@pytest.mark.parametrize("shape", [(2,), (70, 70)], ids=str)
def test_a_stream_never_repeats_itself(shape):
    n = 2 * max(1, 2048 // max(1, math.prod(shape))) + 3  # over the end of two blocks
    stream = draws(MemberNoise(0, [0], shape, dtype=torch.float64), n).flatten()
    assert stream.unique().numel() == stream.numel()


def assert_standard_normal(z):
    # Six standard errors for mean and variance (false-alarm rate 2e-9 each). Kolmogorov-Smirnov:
    # P(sqrt(n) D > x) is close to 2 exp(-2 x^2), 1e-8 at x = 3.1.
    z = z.double().flatten()
    n = z.numel()
    assert abs(z.mean().item()) <= 6 / math.sqrt(n)
    assert abs(z.square().mean().item() - 1) <= 6 * math.sqrt(2 / n)
    cdf = torch.special.ndtr(z.sort().values)
    above, below = torch.arange(1, n + 1) / n - cdf, cdf - torch.arange(n) / n
    assert torch.maximum(above, below).max().item() * math.sqrt(n) <= 3.1


def test_a_stream_is_standard_normal():
    z = draws(MemberNoise(7, [3], (20,)), 10_000)
    assert_standard_normal(z)
    for lag in (1, 2, 512):  # and draws are uncorrelated, with the same false-alarm rate
        product = z[0, lag:] * z[0, :-lag]
        assert abs(product.mean().item()) <= 6 / math.sqrt(product.numel())


def test_first_draws_of_many_members_are_standard_normal():
    # seeds differ in one bit here: a poor mix of seed and member would show
    assert_standard_normal(MemberNoise(7, range(3000), (4,))())


def test_neighbouring_streams_are_uncorrelated():
    neighbours = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]  # seed, member, attempt
    streams = [
        draws(MemberNoise(s, [i], (4,), attempt=a, dtype=torch.float64), 5000).flatten()
        for s, i, a in neighbours
    ]
    for one, other in combinations(streams, 2):
        # a mean of n = 20000 products of unit variance: six standard errors, false-alarm rate 2e-9
        assert abs((one * other).mean().item()) <= 6 / math.sqrt(20_000)


def test_a_generator_does_not_repeat_what_a_user_draws_from_the_same_seed():
    for seed in (0, 42):
        mine = torch.randn(4096, generator=generator(seed))
        theirs = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        # six standard errors: a chance of 2e-9
        assert (mine * theirs).mean().abs() < 6 / 64
        assert torch.equal(mine, torch.randn(4096, generator=generator(seed)))


def test_another_trial_is_another_stream_and_the_same_alone_as_in_any_batch():
    noise = MemberNoise(3, [5, 7, 9], (4,), attempt=1)
    again = draws(noise.again(torch.tensor([0, 2]), trial=2), 3)
    assert torch.equal(again, draws(MemberNoise(3, [5, 9], (4,), attempt=1, trial=2), 3))
    for stream in (noise, noise.again(torch.tensor([0, 1, 2]), trial=1)):
        assert not torch.isclose(again, draws(stream, 3)[[0, 2]]).any()
