import pytest
import torch
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from feasibly.derivatives import CHECKPOINTS, Jacobian, ordinary
from tests.tensors import normal

A = normal(6, 8, seed=1)


def curved(x):
    return torch.sin(x.flatten(1) @ A.T.to(x))


def in_half(x):
    return curved(x.bfloat16().to(x)).bfloat16().to(x)


def jacobian(f, x, **options):
    x = x.requires_grad_()
    return Jacobian(f, f(x), x, **options)


def exact(x):
    return torch.cos(x.flatten(1) @ A.T.to(x))[..., None] * A.to(x)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-3), (torch.float64, 1e-8)])
def test_products_with_a_jacobian_are_right_in_the_units_of_a_sample(dtype, error, scale):
    x, v = (scale * normal(4, 2, 4)).to(dtype), normal(4, 2, 4, seed=2).to(dtype)
    J = jacobian(lambda x: curved(x / scale), x)
    expected = torch.einsum("bmd,bd->bm", exact(x.detach() / scale) / scale, v.flatten(1))
    assert (J(v) - expected).norm() < error * expected.norm()
    torch.testing.assert_close(J.rows(), (exact(x.detach() / scale) / scale).unflatten(2, (2, 4)))


def test_a_linear_function_loses_nothing_but_rounding():
    """Even far from zero, where short steps would drown."""
    b = 1e4 * torch.ones(6)
    x, v = normal(4, 8).float(), 1e-3 * normal(4, 8, seed=2).float()
    product = jacobian(lambda x: x @ A.T.float() + b, x, linear=True)(v)
    torch.testing.assert_close(product, v @ A.T.float(), rtol=0, atol=3e-6)


def test_the_step_is_longer_where_a_function_computes_in_half_precision():
    """The exact product along one direction tells it, where there is one."""
    x, v = normal(4, 8).float() / 4, normal(4, 8, seed=2).float()
    expected = torch.einsum("bmd,bd->bm", exact(x), v)
    J = jacobian(in_half, x.clone())
    blind = (J(v) - expected).norm() / expected.norm()
    J.T(torch.ones(4, 6))
    seeing = (J(v) - expected).norm() / expected.norm()
    assert blind > 0.3
    assert seeing < 0.15


def test_two_derivatives_keep_the_digits_of_a_differential_equation():
    """Differences lose them, since the equation amplifies the rounding of a smooth field."""
    points = torch.linspace(0, 1, 65)

    def equation(u):
        return u[:, 1:-1] ** 3 - 64**2 * u.diff(n=2)

    x, v = torch.sin(3 * points)[None], torch.cos(2 * points)[None]
    _, expected = torch.func.jvp(equation, (x.double(),), (v.double(),))
    errors = [
        (jacobian(equation, x.clone(), twice=twice)(v) - expected).norm() / expected.norm()
        for twice in (False, True)
    ]
    assert errors[0] > 0.01
    assert errors[1] < 1e-3


class Once(torch.autograd.Function):
    """A function whose derivative depends on a `share` of the cotangent as far as torch sees."""

    share = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, p):
        (x,) = ctx.saved_tensors
        known = p.detach() if Once.share == 0 else p.lerp(p.detach(), 1 - Once.share)
        return known * x.cos()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_products_are_differences_without_a_right_second_derivative(share, monkeypatch):
    monkeypatch.setattr(Once, "share", share)
    x, v = normal(4, 8), normal(4, 8, seed=2)
    J = jacobian(Once.apply, x, twice=True)
    J.T(normal(4, 8, seed=3))
    torch.testing.assert_close(J(v), x.detach().cos() * v)
    assert not J.twice


def test_a_member_that_is_not_finite_disturbs_no_other_and_is_not_evaluated():
    x, v = normal(3, 8), normal(3, 8, seed=2)
    seen = []

    def recorded(x):
        seen.append(x.detach())
        return curved(x)

    whole = jacobian(curved, x.clone())(v)
    v[1] = torch.nan
    product = jacobian(recorded, x.clone())(v)
    assert product[1].isnan().all()
    assert torch.equal(product[[0, 2]], whole[[0, 2]])
    assert all(x.isfinite().all() for x in seen)


def test_reentrant_checkpoints_have_gradients_inside_and_are_torchs_own_outside():
    x = normal(2, 8).requires_grad_()

    def gradient():
        y = checkpoint(curved, x, use_reentrant=True).sum()
        return torch.autograd.grad(y, x)[0]

    with pytest.raises(RuntimeError, match="use_reentrant"):
        gradient()
    with CHECKPOINTS, CHECKPOINTS:
        pass
    with CHECKPOINTS:
        with CHECKPOINTS:
            pass
        torch.testing.assert_close(gradient(), exact(x.detach()).sum(dim=1))
    assert torch.utils.checkpoint.CheckpointFunction is CheckpointFunction


def test_a_tensor_of_inference_mode_becomes_an_ordinary_one():
    with torch.inference_mode():
        x = ordinary(torch.ones(2))
    assert not x.is_inference()
    y = torch.ones(2)
    assert ordinary(y) is y
