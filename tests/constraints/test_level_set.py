import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import GaussianRandomField, LevelSet

check = settings(derandomize=True, deadline=None, max_examples=60)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def level(tolerance=4e-6):
    return LevelSet(lambda x: x[:, 0], tolerance)


@given(st.floats(-30, 30))
@check
def test_the_violation_is_the_papers_function_of_the_field(f):
    violation = level().violation(double([[f]])).item()
    assert violation == pytest.approx(1 - math.exp(-(f**2)), abs=1e-15)
    assert 0 <= violation <= 1


@given(st.floats(-12, -6))
@check
def test_a_small_violation_keeps_its_digits(exponent):
    # 1 - exp(-f^2) as it is written would be zero or noise here
    f = 10**exponent
    assert level().violation(double([[f]])).item() == pytest.approx(f**2, rel=1e-9, abs=0)


def test_the_residual_is_the_field_with_its_sign():
    assert level().residual(double([[-2.0], [3.0]])).tolist() == [[-2.0], [3.0]]


def test_the_default_tolerance_is_that_of_the_paper():
    edge = math.sqrt(-math.log1p(-4e-6))
    x = double([[0.999 * edge], [1.001 * edge], [-0.999 * edge]])
    assert level().is_feasible(x).tolist() == [True, False, True]


def test_the_same_seed_gives_the_same_field():
    x = torch.randn((20, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.manual_seed(1)
    first = GaussianRandomField(seed=5)(x)
    torch.manual_seed(2)
    assert torch.equal(GaussianRandomField(seed=5)(x), first)
    assert not torch.isclose(GaussianRandomField(seed=6)(x), first).any()


def test_drawing_a_field_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    GaussianRandomField(seed=5)
    assert torch.equal(torch.get_rng_state(), before)


SEEDS = 1000
LENGTHSCALE, STD, BIAS = 0.5, 2.0, 0.5
DISTANCES = double([0.0, 0.25, 0.5, 0.75, 1.0, 1.5])  # up to three lengthscales
ANGLES = torch.arange(6).double()
OFFSETS = DISTANCES[:, None] * torch.stack((ANGLES.cos(), ANGLES.sin()), dim=1)
# many pairs of points in each field, far apart, to average over: the waves are stationary
ANCHORS = 5 * torch.cartesian_prod(torch.arange(-3, 4), torch.arange(-2, 3)).double()


@pytest.fixture(scope="module")
def fields():
    """The values of many fields, with shape (SEEDS, anchors, distances)."""
    points = (ANCHORS[:, None] + OFFSETS).reshape(-1, 2)
    draws = [
        GaussianRandomField(seed, lengthscale=LENGTHSCALE, std=STD, bias=BIAS)(points)
        for seed in range(SEEDS)
    ]
    return torch.stack(draws).reshape(SEEDS, len(ANCHORS), len(DISTANCES))


def assert_mean(draws, expected):
    # Each row belongs to one field, so that the rows are independent. Six standard errors, a
    # false-alarm rate of 2e-9 a number.
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected).abs() <= 6 * error).all()


def test_fields_have_mean_zero(fields):
    assert_mean(fields.mean(dim=1), 0.0)


def test_fields_have_the_variance_that_was_asked_for(fields):
    # of the waves and of the bias, which counts in units of the waves
    assert_mean(fields.square().mean(dim=1), STD**2 * (1 + BIAS**2))


def test_fields_are_correlated_by_the_squared_exponential_kernel(fields):
    kernel = torch.exp(-(DISTANCES**2) / (2 * LENGTHSCALE**2))
    products = (fields * fields[..., :1]).mean(dim=1)
    assert_mean(products, STD**2 * (kernel + BIAS**2))


def test_the_bias_of_a_field_is_shared_by_all_points(fields):
    # anchors are ten lengthscales apart, where only the bias correlates them
    product = (fields[:, :-1, 0] * fields[:, 1:, 0]).mean(dim=1, keepdim=True)
    assert_mean(product, STD**2 * BIAS**2)


def test_default_fields_have_about_unit_variance():
    x = ANCHORS
    squares = [
        GaussianRandomField(seed)(x).square().mean(dim=0, keepdim=True) for seed in range(500)
    ]
    assert_mean(torch.stack(squares), 1 + 0.05**2)


def test_a_field_is_close_to_normal():
    # the fourth moment of M products of a normal and a cosine is 3 + 1.5 / M
    values = torch.stack([GaussianRandomField(seed, bias=0.0)(ANCHORS) for seed in range(SEEDS)])
    assert_mean((values**4).mean(dim=1, keepdim=True), 3 + 1.5 / 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_field_is_one_number_a_sample_in_its_dtype(dtype):
    f = GaussianRandomField(seed=0)(torch.zeros(5, 2, dtype=dtype))
    assert f.shape == (5,)
    assert f.dtype == dtype


def test_single_precision_agrees_with_double():
    x = torch.randn((20, 2), generator=torch.Generator().manual_seed(0))
    field = GaussianRandomField(seed=0)
    torch.testing.assert_close(field(x).double(), field(x.double()), rtol=0, atol=1e-4)
