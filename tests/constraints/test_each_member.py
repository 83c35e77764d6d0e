"""A target for each member: the same in any batch, and zero at the truth it goes through."""

import warnings

import pytest
import torch

import feasibly
from feasibly import members
from feasibly.checks import diagnose
from feasibly.constraints import (
    Bounds,
    Composite,
    Decoded,
    EachMember,
    Energy,
    Equality,
    Inequality,
    LevelSet,
    Linear,
    Mask,
    through,
)
from feasibly.oracles import Gaussian
from feasibly.samplers import Rejection
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

A = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.5, 0.0, 1.0, 1.0]]).double()
LINEAR = Linear(A, torch.tensor([1.0, -1.0]).double(), tolerance=1e-6)
HALF = Bounds(torch.tensor([0.5, -2.0, -torch.inf, -2.0]), torch.tensor([0.5, 2, 2, 2]), 1e-6)
STATED = {
    "linear": LINEAR,
    "mask": Mask(torch.tensor([True, False, True, False]), 0.3, tolerance=1e-6),
    "energy": Energy((-1,), 0.5, tolerance=1e-6),
    "level set": LevelSet(lambda x: x[:, 0] * x[:, 1] - 0.1, tolerance=1e-6),
    "decoded": Decoded(LINEAR, torch.tanh),
    "in units": LINEAR.in_units(0.3, 2.0),
    "composite": Composite([LINEAR, Bounds(-9.0, 9.0, 1e-6)]),
    "bounds with a fixed element": HALF,
    "the same, decoded": Decoded(HALF, torch.tanh),
}


def points(n, seed=0):
    x = torch.randn((n, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.clamp(-1.9, 1.9)


@pytest.mark.parametrize("name", STATED)
def test_a_statement_through_truths_is_zero_at_them_and_moves_as_the_constraint_does(name):
    constraint, truths = STATED[name], points(3)
    stated = through(constraint, truths, repeats=2)
    ids, x = torch.tensor([5, 0, 3]), points(3, seed=1)
    with members.calling(ids):
        at_truths, feasible = stated.assess(truths[ids // 2])
        assert torch.equal(at_truths, torch.zeros(3).double())
        assert feasible.all()
        r = stated.equalities.residual(x)
    equalities = constraint.equalities
    moved = equalities.residual(x) - equalities.residual(truths[ids // 2])
    torch.testing.assert_close(r, moved)


def test_an_inequality_stays_as_it_is():
    inside = Inequality(lambda x: x[:, :1], tolerance=1e-6)
    assert through(inside, points(3)) is inside
    stated = through(HALF, points(3))
    with members.calling([0, 1]):
        low = points(3)[:2] - torch.tensor([0, 100.0, 0, 0])
        assert stated.violation(low).min() > 90**2  # below a bound, as before
        assert stated.violation(points(3)[:2] - torch.tensor([0, 0, 100.0, 0])).max() == 0


def test_an_inequality_next_to_an_equality_keeps_its_limit_behind_units_and_decoders():
    both = Composite([Equality(lambda x: x[:, 0], 1e-8), Inequality(lambda x: x[:, 1:], 1e-2)])
    truth = torch.tensor([[0.3, -1.0, -1.0, -1.0]]).double()
    x = truth.repeat(3, 1)
    x[:, 1] = torch.tensor([0.09, 0.11, -1.0])
    x[2, 0] = 0.2
    for constraint in (both, Decoded(both, torch.clone), both.in_units(0.0, 1.0)):
        with members.calling([0]):
            assert through(constraint, truth).is_feasible(x).tolist() == [True, False, False]


def test_a_projection_brings_each_member_to_its_own_target():
    targets = points(3)[:, :2]
    stated = EachMember(Linear(A, torch.zeros(2), tolerance=1e-9), targets)
    for constraint in (
        stated,
        Composite([stated, EachMember(Mask(A[0] > 1, 0.0, 1e-9), 0.1 + 0 * targets[:, :1])]),
    ):
        with members.calling([2, 0]):
            near = constraint.projection(points(2, seed=1))
        assert torch.allclose(near @ A.T, targets[[2, 0]], atol=1e-9)
        with members.calling([0]):  # one index stands for all samples
            assert torch.allclose(constraint.projection(near) @ A.T, targets[[0, 0]], atol=1e-9)


NORMAL = Gaussian(torch.zeros(4), torch.eye(4), LogLogit())
TARGETS = points(6)[:, :2]
EACH = EachMember(Linear(A, torch.zeros(2), tolerance=1e-6), TARGETS)
ONE = {"dtype": torch.float64, "seed": 3}


@pytest.mark.parametrize("method", ["auto", "eci"])
def test_a_sampled_member_meets_its_own_target_whatever_the_batch_size(method):
    """`auto` is SMC. Some members are resampled, in batches of their own."""
    options = {"monitor": method == "auto", "method": method}
    whole = feasibly.sample(NORMAL, EACH, 6, (4,), **options, **ONE)
    assert whole.feasible.all()
    assert torch.allclose(whole.samples @ A.T, TARGETS, atol=1e-3)
    parts = feasibly.sample(NORMAL, EACH, [4, 1, 5], (4,), batch_size=2, **options, **ONE)
    torch.testing.assert_close(parts.samples, whole.samples[[4, 1, 5]], rtol=1e-6, atol=1e-6)


def test_a_store_holds_members_with_targets_of_their_own(tmp_path):
    path = tmp_path / "each.zarr"
    plan = feasibly.plan(NORMAL, EACH, (4,), method="calibrated", monitor=False)
    feasibly.ensemble.run(plan, path, 6, batch_size=4, seed=3)
    x = torch.stack([torch.from_numpy(feasibly.ensemble.Store(path).get(i)) for i in range(6)])
    assert torch.allclose(x.double() @ A.T, TARGETS, atol=2e-3)
    other = EachMember(EACH.constraint, TARGETS + 1)
    plan = feasibly.plan(NORMAL, other, (4,), method="calibrated", monitor=False)
    with pytest.raises(feasibly.StoreError, match="constraint"):
        feasibly.ensemble.run(plan, path, 6, batch_size=4, seed=3)


def test_a_diagnosis_is_of_the_first_members_target():
    found = diagnose(NORMAL, EACH, points(16), levels=3)
    first = Linear(A, TARGETS[0], tolerance=1e-6)
    assert found.violation == pytest.approx(
        diagnose(NORMAL, first, points(16), levels=3).violation
    )


@pytest.mark.slow
def test_rejection_takes_one_target_in_a_run():
    first = Equality(lambda x: x[:, :1], tolerance=1e-6)
    kernel = on(Rejection(steps=8, level=0.3, tries=2), NORMAL, EachMember(first, TARGETS[:, :1]))
    assert kernel.one_target
    with pytest.raises(feasibly.SamplingError, match="one run for each target"):
        sampled(kernel, 2, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two tries a member may have none that is kept
        alone = sampled(kernel, [5], (4,), attempts=2)
    assert torch.allclose(alone.samples[:, 0], TARGETS[5, 0].float(), atol=1e-3)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_what_is_missing_constrains_no_member(noise):
    """Half of the members miss a value, the first one too. They have the exact distribution
    without it: of 128, an element is outside of these bounds by a chance of 1e-5."""
    i = torch.arange(4.0, dtype=torch.float64)
    cov = 0.6 ** (i[:, None] - i).abs()
    prior = Gaussian(torch.zeros(4), cov, LogLogit())
    kind = {"tolerance": 1e-6} if noise is None else {"noise": noise}
    y = torch.ones(256, 2) / (noise or 1.0)
    y[:128, 0] = torch.nan
    law = EachMember(feasibly.Linear(torch.eye(4)[:2], torch.zeros(2), **kind), y)
    x = feasibly.sample(prior, law, 256, shape=(4,)).samples.double()
    for half, seen in zip(x.split(128), ([1], [0, 1]), strict=True):
        A = torch.eye(4, dtype=torch.float64)[seen]
        S = A @ cov @ A.T + (noise or 0.0) ** 2 * torch.eye(len(seen))
        gain = cov @ A.T @ torch.linalg.inv(S)
        std = (cov - gain @ A @ cov).diagonal().clamp_min(1e-9).sqrt()
        free = std > 1e-3
        assert ((half.mean(dim=0) - gain.sum(dim=1)) / std)[free].abs().max() < 0.42
        assert (half.std(dim=0) / std - 1)[free].abs().max() < 0.3
