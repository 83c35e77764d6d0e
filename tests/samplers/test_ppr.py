"""Algorithm 2."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from feasibly import PPR, Ancestral, Equality, TunedPPR
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.run import trajectory
from feasibly.schedules import VP, Cosine, LogLogit, Rectified, Schedule
from tests.helpers import on, sampled
from tests.samplers.conftest import CURVE, correlated, denoised, normal, plane

UNREACHABLE = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)


@pytest.mark.parametrize(
    "minimize",
    [
        GaussNewton(steps=4),
        pytest.param(LBFGS(steps=8), marks=pytest.mark.slow),
        LBFGS(steps=8, line_search=False),
    ],
    ids=["gauss-newton", "l-bfgs", "l-bfgs without line search"],
)
@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_budget_is_that_of_the_paper(minimize, gaussian):
    """T (1 + M (P + 1)) forward and T M P backward evaluations, when no member stops early."""
    for T, M in ((1, 1), (4, 2), (2, 3)):
        kernel = on(PPR(steps=T, repeats=M, minimize=minimize), gaussian, UNREACHABLE)
        spent = sampled(kernel, 3, (2,)).evaluations
        expected = (T * (1 + M * (minimize.steps + 1)), T * M * minimize.steps)
        assert (spent.forward, spent.backward) == expected == kernel.budget()
        assert (spent.member_forward, spent.member_backward) == tuple(3 * n for n in expected)


def test_the_papers_settings_are_the_defaults_and_cost_1216_and_1024(gaussian):
    kernel = on(PPR(), gaussian, UNREACHABLE)
    assert (kernel.steps, kernel.repeats, kernel.sigma_max) == (64, 2, math.inf)
    assert kernel.minimize == LBFGS(steps=8, max_step=None)
    assert kernel.last is None
    assert kernel.budget() == (1216, 1024)


@pytest.mark.parametrize("m", [3, 12], ids=["dense", "krylov"])
@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_budget_counts_the_products_of_several_residuals(m):
    prior = Gaussian(torch.zeros(16), torch.eye(16), LogLogit())
    constraint = Equality(lambda x: x[:, :m].square() + 1, tolerance=1e-9)
    kernel = on(PPR(steps=2, minimize=GaussNewton(rtol=1e-12)), prior, constraint)
    spent = sampled(kernel, 2, (16,), dtype=torch.float64).evaluations
    forward, backward = kernel.budget(residuals=m)
    assert spent.forward <= forward
    assert spent.backward <= backward
    if m == 3:
        assert (spent.forward, spent.backward) == (forward, backward)


def test_trivial_constraint_leaves_the_predictor_and_the_renoising(gaussian):
    """Where nothing is violated, PROJECT is the denoiser."""
    kernel = on(PPR(), gaussian, Equality(lambda x: 0 * x, tolerance=1e-9))
    x = normal(5, 2)
    t = torch.tensor(0.4, dtype=torch.float64)
    found = kernel.project(x, t, radius=1.0)
    torch.testing.assert_close(found.x_0, gaussian(x, t).mean, rtol=0, atol=1e-14)
    torch.testing.assert_close(kernel.scale(t) * found.x, x, rtol=0, atol=1e-14)


def test_above_its_levels_a_step_is_the_predictor(checkerboard):
    bounds = {"sigma_max": 1.0}
    constraint = CURVE
    x, z = normal(2, 7, 2).float()
    t, s = torch.tensor(0.9), torch.tensor(0.85)
    ppr = on(PPR(**bounds), checkerboard, constraint).step(x, t, s, lambda like: z)
    ancestral = on(Ancestral(), checkerboard).step(x, t, s, lambda like: z)
    assert torch.equal(ppr.x, ancestral.x)
    assert torch.equal(ppr.x_0, ancestral.x_0)


def test_a_step_predicts_then_projects_and_renoises_so_many_times(checkerboard):
    """Algorithm 2, with each projection from the state that the last renoising has left, and
    within the radius of the level that the step came from."""
    constraint = CURVE
    minimize = GaussNewton(steps=3, max_distance=0.3)  # so short that the radius is felt
    kernel = on(PPR(repeats=3, minimize=minimize), checkerboard, constraint)
    t, s = torch.tensor([0.6, 0.5], dtype=torch.float64)
    x, *noise = normal(5, 7, 2)
    given = iter(noise)
    found = kernel.step(x, t, s, lambda like: next(given))
    x_s = kernel.predict(x, checkerboard(x, t).mean, t, s, lambda like: noise[0])
    for z in noise[1:]:
        x_0 = kernel.project(x_s, s, radius=kernel.noise_level(t)).x_0
        x_s = kernel.renoise(x_0, s, lambda like, z=z: z)
    assert torch.equal(found.x, x_s)
    assert torch.equal(found.x_0, x_0)


def test_projection_on_a_gaussian_is_the_closed_form():
    """With an affine denoiser and a linear constraint, PROJECT is a least-distance problem."""
    prior, constraint = correlated(LogLogit(), 6), plane(2, 6, tolerance=1e-12)
    minimize = GaussNewton(max_distance=None, damping=0.0)
    kernel = on(PPR(minimize=minimize), prior, constraint)
    t, x = torch.tensor(0.5, dtype=torch.float64), normal(4, 6)
    x_0, slope = denoised(prior, x, t)
    J = constraint.A @ slope
    expected = x - constraint.residual(x_0) @ torch.linalg.inv(J @ J.T) @ J
    best = kernel.project(x, t, radius=1.0)
    torch.testing.assert_close(kernel.scale(t) * best.x, expected)
    torch.testing.assert_close(best.x_0, denoised(prior, expected, t)[0])
    assert (best.value < 1e-12).all()


class Exploding(Schedule):
    """The variance-exploding schedule with the same sigma / alpha as another."""

    def __init__(self, base):
        self.base = base

    def __call__(self, t):
        alpha, sigma = self.base(t)
        return torch.ones_like(t), sigma / alpha


@pytest.mark.parametrize("base", [VP(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize("eta", [0.0, 1.0], ids=["DDIM", "DDPM"])
def test_schedules_are_equivalent_under_x_over_alpha(base, eta):
    """The same noise, and sigma / alpha, give the same samples (methods.md, invariant 4)."""
    constraint = CURVE
    results = []
    for schedule in (base, Exploding(base)):
        prior = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]), schedule)
        kernel = on(
            PPR(steps=16, repeats=1, eta=eta, minimize=GaussNewton(), sigma_max=0.75),
            prior,
            constraint,
        )
        noise = iter(normal(64, 8, 2, seed=11))

        def randn(like, noise=noise):
            return next(noise)

        x_t = schedule(torch.tensor(1.0, dtype=torch.float64))[1] * next(noise)
        path = []
        for t, s in pairwise(kernel.times()):
            x_t, x_0, _ = kernel.step(x_t, t, s, randn)
            path.append(torch.cat((x_t / schedule(s)[0], x_0)))
        results.append(torch.stack(path))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("schedule", [LogLogit(), VP()], ids=repr)
def test_projection_stays_within_the_trust_radius(schedule):
    """Half of the radius in units of clean data, as wide as the noise of so many numbers."""
    prior = Gaussian(torch.zeros(2), torch.eye(2), schedule)
    kernel = on(PPR(minimize=GaussNewton(steps=8, max_distance=0.5)), prior, UNREACHABLE)
    t = torch.tensor(0.3, dtype=torch.float64)
    alpha, _ = schedule(t)
    x = alpha * normal(32, 2, seed=11)
    for radius in (1.0, 0.2):
        found = kernel.scale(t) * kernel.project(x, t, radius).x
        moved = (found - x).norm(dim=1) / alpha
        assert moved.max() <= 0.5 * radius * math.sqrt(2) * (1 + 1e-9)
        assert moved.max() > 0.1 * radius * math.sqrt(2)


@pytest.mark.parametrize(
    "options",
    [
        {"repeats": 0},
        {"repeats": 1.5},
        {"sigma_max": None},
        {"sigma_max": 1e-4},
    ],
    ids=str,
)
def test_bad_options_are_refused(options, gaussian):
    with pytest.raises(ValueError, match=rf"PPR\({next(iter(options))}="):
        on(PPR(**options), gaussian, UNREACHABLE)


@pytest.fixture
def broad():
    return Gaussian(torch.zeros(16).double(), torch.eye(16).double(), LogLogit())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_the_last_projection_goes_on_for_members_that_are_nearly_feasible():
    """A smooth random field with a nearly singular covariance: curvature that a search of 16
    iterations does not learn."""
    i = torch.arange(128.0).double()
    cov = (-0.5 * ((i[:, None] - i) / 3) ** 2).exp() + 1e-4 * torch.eye(128).double()
    field = Gaussian(torch.zeros(128).double(), cov, VP())
    truth = torch.linalg.cholesky(cov) @ MemberNoise(1, [0], (128,), dtype=torch.float64)()[0]
    y = (2 * truth[32:96]).sin()
    seen = Equality(lambda x: (2 * x[:, 32:96]).sin() - y, tolerance=1e-4)
    kernel = on(TunedPPR(steps=24), field, seen, (128,))
    assert kernel.last == replace(kernel.minimize, steps=160)
    long, short = (
        sampled(each, 8, (128,), dtype=torch.float64)
        for each in (kernel, replace(kernel, last=None))
    )
    assert short.feasible.double().mean() < 0.5
    assert long.feasible.all()
    share = short.evaluations.backward / long.evaluations.backward
    assert share > 0.5, "only the last projection is longer"


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_the_budget_counts_the_longer_last_projection(broad):
    impossible = Equality(lambda x: x[:, :12].square() + 1, tolerance=1e-6)
    minimize = {"minimize": WarmLBFGS(steps=4), "last": WarmLBFGS(steps=9)}
    kernel = on(PPR(steps=12, repeats=1, sigma_max=10.0, **minimize), broad, impossible)
    spent = sampled(kernel, 2, (16,), dtype=torch.float64).evaluations
    assert (spent.forward, spent.backward) == kernel.budget(12)
    levels = sum(kernel.noise_level(s) <= 10.0 for s in kernel.times()[1:])
    assert spent.backward == 4 * (levels - 1) + 9


def test_projections_of_a_run_share_their_curvature(broad):
    """The pairs of a step are the next one's to begin with, and a run's own."""
    curved = Equality(lambda x: x[:, :12] + x[:, :12] ** 3 - 0.3, tolerance=1e-12)
    kernel = on(PPR(steps=6, minimize=WarmLBFGS(steps=4, memory=48)), broad, curved)
    noise = MemberNoise(0, [0, 1], (16,), dtype=torch.float64)
    memories = [step.memory for _, _, step in trajectory(kernel, noise)]
    assert memories[0].count.eq(0).all()
    for before, after in pairwise(memories):
        assert (before.count < after.count).all()
        # a step adds to the pairs, and changes none
        assert torch.equal(after.s[: before.count.min()], before.s[: before.count.min()])
    _, _, again = next(trajectory(kernel, noise))
    assert again.memory.count.eq(0).all()
    # and they are used: the first direction of a warm search is no gradient
    x, t = torch.zeros(2, 16).double(), torch.tensor(0.5).double()
    warm, cold = (kernel.project(x, t, 1.0, memory) for memory in (memories[-1], None))
    assert not torch.allclose(warm.x_0, cold.x_0)
    assert cold.state is None, "outside of a run there is nothing to share"
