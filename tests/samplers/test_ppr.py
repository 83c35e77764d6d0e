"""Algorithm 2."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import PPR, Ancestral, Equality, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.errors import InfeasibleWarning
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.schedules import VP, Cosine, LogLogit, Rectified, Schedule

UNREACHABLE = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("M", [1, 2, 3])
@pytest.mark.parametrize(
    "minimize",
    [GaussNewton(steps=4), LBFGS(steps=8), LBFGS(steps=8, line_search=False)],
    ids=["gauss-newton", "l-bfgs", "l-bfgs without line search"],
)
@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_budget_is_that_of_the_paper(T, M, minimize, gaussian):
    """T (1 + M (P + 1)) forward and T M P backward calls, when no member stops early."""
    sampler = PPR(
        gaussian,
        UNREACHABLE,
        steps=T,
        repeats=M,
        minimize=minimize,
        sigma_max=math.inf,
        retries=0,
    )
    calls = sampler.sample(3, (2,)).evaluations
    expected = (T * (1 + M * (minimize.steps + 1)), T * M * minimize.steps)
    assert (calls.forward, calls.backward) == expected == sampler.budget()
    assert (calls.member_forward, calls.member_backward) == tuple(3 * n for n in expected)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_paper_setting_costs_1216_and_1024(gaussian):
    sampler = PPR(
        gaussian,
        UNREACHABLE,
        steps=64,
        repeats=2,
        minimize=LBFGS(steps=8),
        sigma_max=math.inf,
        retries=0,
    )
    calls = sampler.sample(1, (2,)).evaluations
    assert (calls.forward, calls.backward) == (1216, 1024)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_default_budget_is_kept_by_members_that_never_become_feasible(gaussian):
    sampler = PPR(gaussian, UNREACHABLE)
    calls = sampler.sample(2, (2,)).evaluations
    assert (calls.forward, calls.backward) == sampler.budget() == (368, 160)


@pytest.mark.parametrize("m", [3, 12], ids=["dense", "krylov"])
@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_budget_counts_the_products_of_several_residuals(m):
    prior = Gaussian(torch.zeros(16), torch.eye(16), LogLogit())
    constraint = Equality(lambda x: x[:, :m].square() + 1, tolerance=1e-9)
    minimize = GaussNewton(rtol=1e-12)
    sampler = PPR(prior, constraint, steps=6, minimize=minimize, retries=0)
    calls = sampler.sample(2, (16,), dtype=torch.float64).evaluations
    forward, backward = sampler.budget(residuals=m)
    assert calls.forward <= forward
    assert calls.backward <= backward
    if m == 3:
        assert (calls.forward, calls.backward) == (forward, backward)


def test_trivial_constraint_leaves_the_predictor_and_the_renoising(gaussian):
    """Where nothing is violated, PROJECT is the denoiser."""
    sampler = PPR(gaussian, Equality(lambda x: 0 * x, tolerance=1e-9))
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.tensor(0.4, dtype=torch.float64)
    assert torch.equal(sampler.project(x, t), gaussian(x, t).mean)


def test_above_sigma_max_a_step_is_the_predictor(checkerboard):
    constraint = LevelSet(GaussianRandomField(0))
    x, z = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0))
    t, s = torch.tensor(0.9), torch.tensor(0.85)
    ppr = PPR(checkerboard, constraint).step(x, t, s, lambda like: z)
    ancestral = Ancestral(checkerboard).step(x, t, s, lambda like: z)
    assert all(torch.equal(a, b) for a, b in zip(ppr, ancestral, strict=True))


def test_projection_on_a_gaussian_is_the_closed_form():
    """With an affine denoiser and a linear constraint, PROJECT is a least-distance problem."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    cov, mu = half @ half.T / 6, torch.randn(6, generator=generator, dtype=torch.float64)
    A = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(2, generator=generator, dtype=torch.float64)
    prior = Gaussian(mu, cov, LogLogit())
    minimize = GaussNewton(max_distance=None, damping=0.0)
    sampler = PPR(prior, Linear(A, y, tolerance=1e-12), minimize=minimize)

    t = torch.tensor(0.5, dtype=torch.float64)
    sigma = prior.schedule(t)[1]
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    G = cov @ torch.linalg.inv(cov + sigma**2 * torch.eye(6, dtype=torch.float64))
    J = A @ G
    r = (mu + (x - mu) @ G.T) @ A.T - y
    expected = x - r @ torch.linalg.inv(J @ J.T).T @ J
    best = sampler.search(x, t)
    torch.testing.assert_close(best.x, expected)
    torch.testing.assert_close(best.x_0, mu + (expected - mu) @ G.T)
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
    constraint = LevelSet(GaussianRandomField(1))
    results = []
    for schedule in (base, Exploding(base)):
        prior = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]), schedule)
        trajectory = []
        sampler = PPR(prior, constraint, steps=16, eta=eta)
        noise = iter(torch.randn(64, 8, 2, dtype=torch.float64, generator=_seeded()))

        def randn(like, noise=noise):
            return next(noise)

        x_t = schedule(torch.tensor(1.0, dtype=torch.float64))[1] * next(noise)
        times = torch.linspace(1, 0, 17, dtype=torch.float64)
        for t, s in pairwise(times):
            x_t, x_0 = sampler.step(x_t, t, s, randn)
            trajectory.append(torch.cat((x_t / schedule(s)[0], x_0)))
        results.append(torch.stack(trajectory))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-8)


def _seeded():
    return torch.Generator().manual_seed(11)


def test_projection_stays_within_reach(checkerboard):
    sampler = PPR(checkerboard, UNREACHABLE, minimize=GaussNewton(steps=8, max_distance=0.5))
    x = torch.randn(32, 2, generator=_seeded(), dtype=torch.float64)
    t = torch.tensor(0.3, dtype=torch.float64)
    for reach in (None, 0.2):
        moved = (sampler.search(x, t, reach).x - x).norm(dim=1)
        unit = (reach or sampler.noise_level(t)) * math.sqrt(2)
        assert moved.max() <= 0.5 * unit * (1 + 1e-9)
        assert moved.max() > 0.1 * unit


def test_minimizer_is_chosen_by_the_number_of_residuals(gaussian):
    prior = Gaussian(torch.zeros(32), torch.eye(32), LogLogit())
    few = PPR(gaussian, LevelSet(GaussianRandomField(0)))
    many = PPR(prior, Equality(lambda x: x - 1, tolerance=1e-6), steps=4, retries=0)
    few.sample(1, (2,))
    many.sample(1, (32,))
    assert few.minimize == GaussNewton()
    assert many.minimize == WarmLBFGS(steps=16)
    assert "LBFGS" in repr(many)  # which Result.method reports


def test_samples_lie_on_support_and_constraint(checkerboard):
    """The exact prior: all feasible, and off the support by rounding at most."""
    from feasibly.problems.distributions import Checkerboard

    result = PPR(checkerboard, LevelSet(GaussianRandomField(0))).sample(256, (2,))
    assert result.feasible.double().mean() >= 0.99
    assert Checkerboard(slack=1e-5).in_support(result.samples).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeats": 0}, "ablation"),
        ({"sigma_max": 1e-4}, "raise it"),
        ({"retries": -1}, "not be negative"),
        ({"last_steps": 0}, "at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"eta": 1.5}, r"\[0, 1\]"),
        ({"output": "final"}, "'clean'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        PPR(gaussian, UNREACHABLE, **options)


def many(m=12, tolerance=1e-6):
    """As many residuals as the first m coordinates, which are to be 0.3."""
    return Equality(lambda x: x[:, :m] - 0.3, tolerance=tolerance)


@pytest.fixture
def broad():
    return Gaussian(torch.zeros(16).double(), torch.eye(16).double(), LogLogit())


def test_what_is_not_given_is_chosen_by_the_number_of_residuals(broad):
    few, lot = PPR(broad, many(8)), PPR(broad, many(9))
    for sampler in (few, lot):
        sampler.sample(2, (16,), dtype=torch.float64)
    assert (few.steps, few.repeats, few.sigma_max, few.minimize) == (32, 1, 0.75, GaussNewton())
    assert (lot.steps, lot.repeats, lot.sigma_max) == (64, 1, 10.0)
    assert lot.minimize == WarmLBFGS(steps=16)
    assert "WarmLBFGS(steps=16" in repr(lot)


def test_what_is_given_stays(broad):
    given = {"steps": 32, "repeats": 1, "sigma_max": 0.75, "minimize": LBFGS(3)}
    for name, value in given.items():
        sampler = PPR(broad, many(), **{name: value})
        sampler.sample(2, (16,), dtype=torch.float64)
        assert getattr(sampler, name) == value
    changed = PPR(broad, many())
    changed.steps = 5
    result = changed.sample(2, (16,), dtype=torch.float64)
    assert result.trace[0].steps == 5


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
    short, default = (
        PPR(field, seen, retries=0, last_steps=P).sample(8, (128,), dtype=torch.float64)
        for P in (16, None)
    )
    assert short.feasible.double().mean() < 0.5
    assert default.feasible.all()
    once = short.calls.backward / default.calls.backward
    assert once > 0.5, "only the last projection is longer"


def test_last_steps_are_chosen_with_the_minimizer(broad):
    expected = [(PPR(broad, many()), 48), (PPR(broad, many(), fast=True), 33)]
    expected += [(PPR(broad, many(8)), None), (PPR(broad, many(), minimize=WarmLBFGS(16)), None)]
    expected += [(PPR(broad, many(), minimize=LBFGS(4), last_steps=5), 5)]
    for sampler, steps in expected:
        sampler.sample(2, (16,), dtype=torch.float64)
        assert sampler.last_steps == steps
    changed = expected[0][0]
    changed.minimize = LBFGS(4)
    assert changed.last_steps is None
    changed.sample(2, (16,), dtype=torch.float64)
    assert changed.last_steps is None, "a minimizer that is given is taken as it is"


def test_the_budget_of_many_residuals_is_that_of_their_defaults(broad):
    impossible = Equality(lambda x: x[:, :12].square() + 1, tolerance=1e-6)
    sampler = PPR(broad, impossible, retries=0)
    expected = sampler.budget(12)
    assert sampler.steps == 32, "to ask for a budget changes nothing"
    with pytest.warns(InfeasibleWarning):
        calls = sampler.sample(2, (16,), dtype=torch.float64).evaluations
    assert (calls.forward, calls.backward) == expected == sampler.budget(12)


def test_projections_of_a_run_share_their_curvature_and_runs_do_not(broad, monkeypatch):
    made, used = [], []
    remember = WarmLBFGS.remember
    call = WarmLBFGS.__call__

    def note(self, x):
        made.append(remember(self, x))
        return made[-1]

    def watch(self, *arguments, history=None, **options):
        used.append(history)
        return call(self, *arguments, history=history, **options)

    monkeypatch.setattr(WarmLBFGS, "remember", note)
    monkeypatch.setattr(WarmLBFGS, "__call__", watch)
    sampler = PPR(broad, many(), retries=0)
    sampler.sample(2, (16,), dtype=torch.float64)
    sampler.sample(2, (16,), dtype=torch.float64)
    levels = sampler.levels()
    assert len(made) == 2
    assert [history is made[0] for history in used] == [True] * levels + [False] * levels
    sampler.project(torch.zeros(3, 16).double(), torch.tensor(0.5).double())
    assert used[-1] is None, "outside of a run there is nothing to share"


def test_members_with_many_residuals_do_not_depend_on_their_batch(broad):
    whole = PPR(broad, many()).sample(5, (16,), dtype=torch.float64)
    alone = PPR(broad, many()).sample([3], (16,), dtype=torch.float64)
    torch.testing.assert_close(whole.samples[3], alone.samples[0], rtol=0, atol=1e-9)
    assert whole.feasible.all()


def test_fast_asks_for_fewer_gradients_and_still_lands(broad):
    few = Equality(lambda x: x[:, :1] - 0.3, tolerance=1e-6)
    assert PPR(broad, few, fast=True, retries=0).budget(1)[1] == 20
    assert PPR(broad, few, retries=0).budget(1)[1] == 40
    quick, full = (PPR(broad, many(), fast=fast, retries=0) for fast in (True, False))
    assert quick.budget(12)[1] / full.budget(12)[1] == 11 / 16
    for constraint in (few, many()):
        sampler = PPR(broad, constraint, fast=True)
        assert sampler.sample(8, (16,), dtype=torch.float64).feasible.all()
    assert quick.minimize is None, "to ask for a budget changes nothing"


def test_a_value_that_is_set_is_not_chosen_even_if_it_is_the_default(broad):
    sampler = PPR(broad, many())
    sampler.steps, sampler.sigma_max = 32, 0.75
    sampler.sample(2, (16,), dtype=torch.float64)
    assert (sampler.steps, sampler.sigma_max) == (32, 0.75)
    again = PPR(broad, many(8))
    again.sample(2, (16,), dtype=torch.float64)
    again.constraint = many()
    again.sample(2, (16,), dtype=torch.float64)
    assert (again.steps, again.sigma_max) == (64, 10.0), "chosen anew for other residuals"
    assert again.minimize == WarmLBFGS(steps=16)


def test_interleaved_runs_of_one_sampler_do_not_disturb_one_another(broad):
    sampler = PPR(broad, many(), retries=0)
    x_0 = torch.zeros(2, 16).double()
    sampler.prepare(x_0, sampler.constraint.residual(x_0))

    def run(members):
        noise = MemberNoise(0, members, (16,), dtype=torch.float64)
        return sampler.trajectory(noise)

    alone = [[x for _, x, _ in run(members)][-1] for members in ([0, 1], [2, 3, 4])]
    first, second = run([0, 1]), run([2, 3, 4])
    *_, last = zip(first, second, strict=True)
    for (_, x, _), expected in zip(last, alone, strict=True):
        torch.testing.assert_close(x, expected)
    assert sampler._memory is None
