import numpy as np
import pytest
import torch

from feasibly import PPR, sample
from feasibly.constraints import BlackBox, Equality
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit

PRIOR = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), LogLogit())


def curve(x):
    return x[:, :1] + torch.sin(x[:, 1:]) - 0.5


def foreign(x):
    """The same, by another program, out of autograd's sight."""
    u = x.double().cpu().numpy()
    return torch.from_numpy(u[:, :1] + np.sin(u[:, 1:]) - 0.5)


def test_its_samples_are_those_of_the_differentiable_function():
    known, unknown = (
        PPR(PRIOR, constraint, steps=16).sample(32, (2,), dtype=torch.float64)
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
    result = sample(PRIOR, rough, 64, (2,), attempts=16, options={"steps": 16})
    assert result.feasible.all()
    assert (result.samples[:, 0] < 0.25).all()
    # else a projection was needed, after 14 attempts: 64 * 0.4^14, once in 5,000 seeds
    assert result.evaluations.backward == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: BlackBox(curve, 1e-6, limit=1).residual(x), "raise limit=1"),
        (lambda x: BlackBox(lambda x: x[:, 0], 1e-6).residual(x), r"shape \(B, m\), got \(3,\)"),
        (lambda x: BlackBox(print, 1e-6).residual(x), "must be numbers.*Got NoneType"),
        (lambda x: BlackBox(curve, 1e-6, step=0.0), r"step=\.\.\.\) must be positive"),
    ],
    ids=["limit", "shape", "nothing", "step"],
)
def test_what_cannot_be_differenced_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(torch.zeros(3, 2))
