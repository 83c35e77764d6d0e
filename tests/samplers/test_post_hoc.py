"""Post-hoc projection."""

import torch

from feasibly import Ancestral, Linear, PostHoc


def test_it_is_the_projection_of_the_unconditional_sample(gaussian):
    A, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])
    plane = Linear(A, y, tolerance=1e-6)
    free = Ancestral(gaussian, steps=8).sample(32, (2,), seed=4)
    projected = PostHoc(gaussian, plane, steps=8).sample(32, (2,), seed=4)
    torch.testing.assert_close(
        projected.samples, plane.projection(free.samples), atol=2e-3, rtol=0
    )
    assert projected.feasible.all()
    assert projected.evaluations.forward == free.evaluations.forward
    assert projected.evaluations.backward == 0
