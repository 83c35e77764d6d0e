import math

import pytest
import torch

from feasibly.constraints import DivergenceFree

SHAPES = {2: (6, 9), 3: (6, 5, 8)}
SPACING = {2: (0.3, 0.5), 3: (0.3, 0.5, 0.2)}


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wave(d):
    """cos(k . r) on the grid, with its wave vector."""
    n, h = SHAPES[d], SPACING[d]
    sides = list(zip(n, h, strict=True))
    k = torch.tensor([2 * math.pi / (n_i * h_i) for n_i, h_i in sides], dtype=torch.float64)
    axes = [torch.arange(n_i, dtype=torch.float64) * h_i for n_i, h_i in sides]
    r = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    return torch.einsum("i,i...->...", k, r), k


@pytest.mark.parametrize("d", [2, 3])
def test_a_wave_along_its_vector_diverges_and_one_across_does_not(d):
    phase, k = wave(d)
    constraint = DivergenceFree(SPACING[d], tolerance=1e-20)
    shape = (d, *(1,) * d)
    along = k.reshape(shape) * phase.cos()
    # div = -|k|^2 sin(phase), of which the mean square is half of |k|^4
    torch.testing.assert_close(constraint.violation(along[None]), k.norm()[None] ** 4 / 2)
    across = torch.zeros(d).double()
    across[0], across[1] = k[1], -k[0]
    assert constraint.is_feasible((across.reshape(shape) * phase.cos())[None]).all()


@pytest.mark.parametrize("scheme", ["spectral", "periodic"])
@pytest.mark.parametrize("d", [2, 3])
def test_the_leray_projection_keeps_what_is_free_and_drops_what_is_a_gradient(d, scheme):
    constraint = DivergenceFree(SPACING[d], tolerance=1e-20, scheme=scheme)
    u = normal(4, 2, d, *SHAPES[d])  # two fields a sample
    free = constraint.projection(u)
    assert constraint.is_feasible(free).all()
    assert not constraint.is_feasible(u).any()
    torch.testing.assert_close(constraint.projection(free), free)
    # orthogonal, so the nearest
    other = constraint.projection(normal(4, 2, d, *SHAPES[d], seed=1))
    dot = ((u - free) * other).flatten(start_dim=1).sum(dim=1)
    torch.testing.assert_close(dot, torch.zeros(4).double(), rtol=0, atol=1e-10)
    mean = tuple(range(-d, 0))
    torch.testing.assert_close(free.mean(dim=mean), u.mean(dim=mean))


def test_a_gradient_is_projected_to_nothing():
    phase, k = wave(2)
    u = (k[:, None, None] * phase.cos())[None]
    free = DivergenceFree(SPACING[2], tolerance=1e-20).projection(u)
    torch.testing.assert_close(free, torch.zeros_like(u), rtol=0, atol=1e-12)


def test_without_periods_a_rotation_is_free():
    x, y = torch.meshgrid(torch.arange(5) * 0.3, torch.arange(6) * 0.5, indexing="ij")
    constraint = DivergenceFree(SPACING[2], tolerance=1e-20, scheme="open")
    assert constraint.is_feasible(torch.stack((-y, x))[None].double()).all()
    torch.testing.assert_close(
        constraint.violation(torch.stack((x, y))[None].double()), torch.tensor([4.0]).double()
    )


@pytest.mark.parametrize(
    ("spacing", "scheme", "message"),
    [
        ((1.0,), "spectral", "two or three"),
        ((1.0, -1.0), "spectral", "positive"),
        ((1.0, 1.0), "upwind", "scheme=...\\) must be one of"),
    ],
    ids=["one", "negative", "scheme"],
)
def test_what_is_no_grid_is_refused(spacing, scheme, message):
    with pytest.raises(ValueError, match=message):
        DivergenceFree(spacing, 1e-6, scheme)


def test_a_field_with_the_wrong_components_is_refused():
    with pytest.raises(ValueError, match="an axis of 2 components and 2 grid axes, got"):
        DivergenceFree((1.0, 1.0), 1e-6).residual(torch.zeros(2, 3, 4, 4))
