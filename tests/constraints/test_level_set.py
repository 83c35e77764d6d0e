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
    assert level().violation(double([[f]])).item() == pytest.approx(f**2, rel=1e-9)


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


SEEDS = 1500
LENGTHSCALE, STD, BIAS = 0.5, 2.0, 0.3
# from a common origin, in several directions, 0 to 3 lengthscales away
DISTANCES = double([0.0, 0.25, 0.5, 0.75, 1.0, 1.5])
ANGLES = torch.arange(6).double()
POINTS = double([0.4, -0.7]) + DISTANCES[:, None] * torch.stack(
    (ANGLES.cos(), ANGLES.sin()), dim=1
)


@pytest.fixture(scope="module")
def fields():
    """The values of many fields at the points, with shape (SEEDS, points)."""
    draws = [
        GaussianRandomField(seed, lengthscale=LENGTHSCALE, std=STD, bias=BIAS)(POINTS)
        for seed in range(SEEDS)
    ]
    return torch.stack(draws)


# Six standard errors each: a false-alarm rate of 2e-9 a number.


def test_fields_have_mean_zero(fields):
    error = math.sqrt(STD**2 * (1 + BIAS**2) / SEEDS)
    assert fields.mean(dim=0).abs().max() <= 6 * error


def test_fields_have_the_variance_that_was_asked_for(fields):
    variance = STD**2 * (1 + BIAS**2)  # of the waves and of the bias
    # the kurtosis of 64 waves is 3 + 1.5 / 64, so the error is that of a normal to 1 %
    error = variance * math.sqrt(2.03 / SEEDS)
    assert (fields.square().mean(dim=0) - variance).abs().max() <= 6 * error


def test_fields_are_correlated_by_the_squared_exponential_kernel(fields):
    kernel = torch.exp(-(DISTANCES**2) / (2 * LENGTHSCALE**2))
    expected = STD**2 * (kernel + BIAS**2)
    # the variance of a product of normals is v^2 + cov^2, at most 2 v^2
    error = STD**2 * (1 + BIAS**2) * math.sqrt(2.03 / SEEDS)
    measured = (fields * fields[:, :1]).mean(dim=0)
    assert (measured - expected).abs().max() <= 6 * error
    # the test can tell this kernel from one of twice the lengthscale
    wrong = STD**2 * (torch.exp(-(DISTANCES**2) / (8 * LENGTHSCALE**2)) + BIAS**2)
    assert (measured - wrong).abs().max() > 6 * error


def test_default_fields_have_unit_variance():
    x = double([[0.3, -1.2]])
    values = torch.cat([GaussianRandomField(seed)(x) for seed in range(SEEDS)])
    error = 1.0025 * math.sqrt(2.03 / SEEDS)  # 1 + 0.05^2
    assert abs(values.square().mean().item() - 1.0025) <= 6 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_field_is_one_number_a_sample_in_its_dtype(dtype):
    f = GaussianRandomField(seed=0)(torch.zeros(5, 2, dtype=dtype))
    assert f.shape == (5,)
    assert f.dtype == dtype


def test_single_precision_agrees_with_double():
    x = torch.randn((20, 2), generator=torch.Generator().manual_seed(0))
    field = GaussianRandomField(seed=0)
    torch.testing.assert_close(field(x).double(), field(x.double()), rtol=0, atol=1e-4)
