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
    """A function whose derivative depends on a `share` of the cotangent as far as torch sees, and
    raises if there is none."""

    share: float | None = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, p):
        (x,) = ctx.saved_tensors
        if Once.share is None and p.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        known = p.detach() if not Once.share else p.lerp(p.detach(), 1 - Once.share)
        return known * x.cos()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("share", [None, 0.0, 0.5])
def test_products_are_differences_without_a_right_second_derivative(share, told, monkeypatch):
    monkeypatch.setattr(Once, "share", share)
    x, v = normal(4, 8), normal(4, 8, seed=2)
    J = jacobian(Once.apply, x, twice=True)
    if told:
        J.T(normal(4, 8, seed=3))
    torch.testing.assert_close(J(v), x.detach().cos() * v)
    assert not J.exact.any()


def test_a_sample_without_a_right_second_derivative_takes_it_from_no_other(monkeypatch):
    monkeypatch.setattr(Once, "share", 0.5)
    x, v = normal(4, 8), normal(4, 8, seed=2)

    def one_is_wrong(x):
        return torch.cat([Once.apply(x[:1]), x[1:].sin()])

    J = jacobian(one_is_wrong, x, twice=True)
    torch.testing.assert_close(J(v), x.detach().cos() * v)
    assert J.exact.tolist() == [False, True, True, True]


def test_a_second_derivative_that_is_not_finite_is_not_taken():
    """That of torch's sinc is none at zero, where the first is zero."""
    x, v = normal(2, 8), normal(2, 8, seed=2)
    x[0] = 0.0
    product = jacobian(torch.sinc, x, twice=True)(v)
    torch.testing.assert_close(product[0], torch.zeros(8).to(v), atol=1e-4, rtol=0)


@pytest.mark.parametrize("twice", [False, True])
def test_a_member_that_is_not_finite_disturbs_no_other_and_is_not_evaluated(twice):
    x, v = normal(3, 8), normal(3, 8, seed=2)
    seen = []

    def recorded(x):
        seen.append(x.detach())
        return curved(x)

    whole = jacobian(curved, x.clone(), twice=twice)(v)
    v[1] = torch.nan
    product = jacobian(recorded, x.clone(), twice=twice)(v)
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
