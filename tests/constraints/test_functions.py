"""Constraints that are stated by a function."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly import PPR, sample
from feasibly.constraints import BlackBox, Equality, GaussianRandomField, LevelSet, Scalar
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.tensors import double


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 4)], ids=str)
def test_an_equality_flattens_its_function(shape):
    values = torch.arange(5 * max(1, torch.Size(shape).numel())).double().reshape(5, *shape)
    r = Equality(lambda x: values * x[:1, :1].sum(), tolerance=1e-3).residual(torch.ones(5, 2))
    assert torch.equal(r, values.reshape(5, -1))


def test_the_violation_of_a_scalar_is_its_function():
    constraint = Scalar(lambda x: x.square().sum(dim=1), tolerance=1.0)
    x = double([[3.0, 4.0], [0.6, 0.0]])
    torch.testing.assert_close(constraint.violation(x), double([25.0, 0.36]))
    torch.testing.assert_close(constraint.residual(x), double([[5.0], [0.6]]))
    assert constraint.is_feasible(x).tolist() == [False, True]


def test_a_newton_step_on_the_residual_of_a_scalar_is_polyak_on_its_violation():
    x = double([[1.5, -0.5]]).requires_grad_()

    def c(x):
        return (x[:, 0] ** 2 + 3 * x[:, 1] ** 2 - 1) ** 2

    (g_c,) = torch.autograd.grad(c(x).sum(), x)
    r = Scalar(c, tolerance=1e-3).residual(x)
    (g_r,) = torch.autograd.grad(r.sum(), x)
    newton = r.detach() * g_r / g_r.square().sum()
    torch.testing.assert_close(newton, 2 * c(x).detach() * g_c / g_c.square().sum())


def test_the_gradient_of_a_scalar_at_an_exact_solution_is_zero():
    x = torch.zeros(2, 3).double().requires_grad_()
    r = Scalar(lambda x: x.square().sum(dim=1), tolerance=1e-3).residual(x)
    assert r.max() < 1e-100
    (g,) = torch.autograd.grad(r.sum(), x)
    assert torch.equal(g, torch.zeros(2, 3).double())


def test_a_negative_violation_within_rounding_counts_as_zero():
    constraint = Scalar(lambda x: x[:, 0], tolerance=1e-3)
    x = torch.tensor([[-1e-5], [4.0]], dtype=torch.float64, requires_grad=True)
    r = constraint.residual(x)
    torch.testing.assert_close(r[:, 0], torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert constraint.is_feasible(x).tolist() == [True, False]
    (g,) = torch.autograd.grad(r.sum(), x)
    assert g.tolist() == [[0.0], [0.25]]


def test_a_negative_violation_spoils_its_own_sample_only():
    constraint = Scalar(lambda x: x[:, 0], tolerance=1e-3)
    r = constraint.residual(torch.tensor([[-0.25], [4.0]]))
    assert r[:, 0].isnan().tolist() == [True, False]
    assert not constraint.is_feasible(torch.tensor([[-0.25]])).any()


check = settings(derandomize=True, deadline=None, max_examples=60)


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
    state = torch.get_rng_state()
    assert torch.equal(GaussianRandomField(seed=5)(x), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.isclose(GaussianRandomField(seed=6)(x), first).any()


SEEDS = 500
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


def test_a_field_is_close_to_normal():
    # the fourth moment of M products of a normal and a cosine is 3 + 1.5 / M
    values = torch.stack([GaussianRandomField(seed, bias=0.0)(ANCHORS) for seed in range(SEEDS)])
    assert_mean((values**4).mean(dim=1, keepdim=True), 3 + 1.5 / 64)


PRIOR = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), LogLogit())


def curve(x):
    return x[:, :1] + torch.sin(x[:, 1:]) - 0.5


def foreign(x):
    """The same, by another program, out of autograd's sight."""
    u = x.double().cpu().numpy()
    return torch.from_numpy(u[:, :1] + np.sin(u[:, 1:]) - 0.5)


def test_its_samples_are_those_of_the_differentiable_function():
    known, unknown = (
        sampled(on(PPR(steps=16), PRIOR, constraint), 32, (2,), dtype=torch.float64)
        for constraint in (Equality(curve, 1e-10), BlackBox(foreign, 1e-10))
    )
    assert unknown.feasible.all()
    torch.testing.assert_close(unknown.samples, known.samples, rtol=0, atol=1e-4)


def test_its_function_may_return_an_array_or_a_list():
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))

    def array(x):
        return np.asarray(curve(x), dtype=np.float32)

    for f in (array, lambda x: curve(x).tolist(), lambda x: torch.from_numpy(array(x))):
        at = x.clone().requires_grad_()
        r = BlackBox(f, 1e-10).residual(at)
        assert r.dtype == x.dtype
        torch.testing.assert_close(r.detach(), curve(x))
        (slope,) = torch.autograd.grad(r.sum(), at)
        torch.testing.assert_close(slope[:, 1], torch.cos(x[:, 1]), rtol=0, atol=1e-3)


def test_a_gradient_takes_two_evaluations_an_element():
    sizes = []

    def f(x):
        sizes.append(x.shape[0])
        return curve(x)

    x = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    BlackBox(f, 1e-6).residual(x).sum().backward()
    assert sizes == [5, 5 * 2 * 2]


def staircase(x):
    """How much of x is above 1, in treads of 0.1."""
    return torch.floor((x[:, :1] - 1) * 10) / 10


def test_steps_longer_than_its_treads_climb_a_staircase():
    x = torch.tensor([[1.73, 0.0]], dtype=torch.float64)

    def slope(step):
        at = x.clone().requires_grad_()
        return torch.autograd.grad(BlackBox(staircase, 0.02, step=step).residual(at).sum(), at)[0]

    assert slope(1e-3).tolist() == [[0.0, 0.0]]
    torch.testing.assert_close(slope(0.5), torch.tensor([[1.0, 0.0]]).double())


def test_a_rough_inequality_is_sampled_without_derivatives():
    def outside(x):
        assert not x.requires_grad
        return (x[:, :1] * 4).floor() / 4  # inside below 1/4

    rough = BlackBox(outside, 1e-12, step=0.5, inequality=True)
    result = sample(PRIOR, rough, 64, (2,), attempts=16)
    assert result.feasible.all()
    assert (result.samples[:, 0] < 0.25).all()
    # else a projection was needed, after 14 attempts: 64 * 0.4^14, once in 5,000 seeds
    assert result.evaluations.backward == 0
