"""Complex values are two real ones each, or refused: their imaginary part is never dropped."""

import numpy as np
import pytest
import torch

import feasibly
from feasibly import constraints
from feasibly.errors import ConstraintError
from feasibly.members import calling

D = 6
F = torch.fft.rfft(torch.eye(D, dtype=torch.float64), dim=0)[1:3]
TRUE = torch.randn(D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = F @ TRUE.to(F.dtype)


def waves(x):
    return torch.fft.rfft(x)[:, 1:3]


EXACT = {
    "linear": feasibly.Linear(F, Y, 1e-8),
    "linear of arrays": feasibly.Linear(F.numpy(), Y.tolist(), 1e-8),
    "observation": feasibly.Observation(waves, Y, 1e-8),
    "equality": feasibly.Equality(lambda x: waves(x) - Y.to(waves(x)), 1e-8),
    "each member": feasibly.EachMember(feasibly.Equality(waves, 1e-8), Y.expand(8, 2)),
    "black box": constraints.BlackBox(lambda x: np.fft.rfft(x.numpy())[:, 1:3] - Y.numpy(), 1e-8),
}


@pytest.mark.parametrize("name", EXACT)
def test_both_parts_of_complex_values_hold(name):
    law = EXACT[name]
    x = torch.randn(8, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gap = torch.view_as_real(waves(x) - Y).reshape(8, 4)
    with calling(range(8)):
        assert torch.allclose(law.residual(x), gap, atol=1e-12)
        assert torch.allclose(law.violation(x), gap.square().sum(dim=1))
        assert law.is_feasible(TRUE[None].expand(8, D)).all()


@pytest.mark.parametrize(
    ("noise", "stds"),
    [
        (0.1, [0.1, 0.1, 0.1, 0.1]),
        ([0.1, 0.2], [0.1, 0.1, 0.2, 0.2]),
        (np.diag([1.0, 4.0, 9.0, 16.0]), [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_noise_is_that_of_each_part(noise, stds):
    x = torch.zeros(1, D, dtype=torch.float64)
    scaled = torch.view_as_real(-Y).flatten() / torch.tensor(stds)
    for law in (feasibly.Linear(F, Y, noise=noise), feasibly.Observation(waves, Y, noise=noise)):
        assert torch.allclose(law.residual(x)[0].abs().sort().values, scaled.abs().sort().values)


def residual(law):
    return law.residual(torch.ones(2, D))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: feasibly.Linear(F, Y, noise=torch.ones(2, 2)), "standard deviation"),
        (lambda: constraints.Mask(torch.ones(D, dtype=torch.bool), 1j, 1e-6), "is complex"),
        (lambda: constraints.Bounds(0, 1j, 1e-6), "is complex"),
        (lambda: feasibly.Equality(waves, 1e-6).in_units(1j, 1), "is complex"),
        (lambda: feasibly.Linear(torch.eye(D)[:1], [1 + 1j], 1e-6), "no x satisfies"),
        (lambda: residual(feasibly.Inequality(waves, 1e-6)), "no order"),
        (lambda: residual(constraints.Scalar(lambda x: waves(x)[:, 0], 1e-6)), "no order"),
        (lambda: residual(constraints.LevelSet(lambda x: waves(x)[:, 0])), "no order"),
        (lambda: residual(feasibly.Observation(waves, [1.0, 2.0], 1e-6)), "y is real"),
        (lambda: residual(feasibly.Observation(lambda x: x[:, :2], Y, 1e-6)), "y is complex"),
    ],
)
def test_complex_values_without_a_meaning_are_refused(make, said):
    with pytest.raises((ValueError, ConstraintError), match=said):
        make()
