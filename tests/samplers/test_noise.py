"""Samplers under observations with errors: the posterior of normals and of two modes."""

import math
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

import feasibly
from feasibly import members as batch
from feasibly.__main__ import main
from feasibly.audits.run import Work
from feasibly.constraints import (
    Bounds,
    Composite,
    EachMember,
    Equality,
    Linear,
    Observation,
    through,
)
from feasibly.ensemble import Store, Summary
from feasibly.errors import CalibrationWarning, InfeasibleWarning
from feasibly.linalg import least_squares
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.policy import Plan
from feasibly.problem import Problem
from feasibly.result import Result
from feasibly.run import run
from feasibly.samplers import DPS, METHODS, MMPS, SMC, CalibratedPPR, moments
from feasibly.samplers import calibrated as calibrated_module
from feasibly.samplers.levels import Levels
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.samplers.conftest import double, normal

D, M = 8, 5


HALF = normal(D, D)
COV, MU = HALF @ HALF.T / D + 0.1 * torch.eye(D).double(), normal(D, seed=1)
MODEL = Gaussian(MU, COV, LogLogit())
A, Y, F = normal(M, D, seed=2), normal(M, seed=3), normal(M, M, seed=4)
STDS = double([0.5, 0.1, 1.0, 2.0, 0.3])


def stated(noise, tolerance=None):
    return Linear(A, Y, tolerance, noise=noise)


def some_exact(k):
    """The first k values hold exactly, in a part of their own."""
    held = Linear(A[:k], Y[:k], 1e-10)
    return Composite([Linear(A[k:], Y[k:], noise=STDS[k:]), held])


# what is observed, and the covariance of its errors
OBSERVED = {
    "one": (stated(0.3), 0.09 * torch.eye(M).double()),
    "each": (stated(STDS), STDS.square().diag()),
    "correlated": (stated(F @ F.T), F @ F.T),
    "rank 2": (stated(F[:, :2] @ F[:, :2].T, 1e-10), F[:, :2] @ F[:, :2].T),
    "one exact": (some_exact(1), (STDS * double([0, 1, 1, 1, 1])).square().diag()),
    "three exact": (some_exact(3), (STDS * double([0, 0, 0, 1, 1])).square().diag()),
}
of_each = pytest.mark.parametrize("name", OBSERVED)


def updated(mean, cov, R, A=A, y=Y):
    """The Kalman update of a normal."""
    K = cov @ A.T @ torch.linalg.pinv(A @ cov @ A.T + R)
    return mean + (y - mean @ A.T) @ K.T, cov - K @ A @ cov


def root(cov):
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return vectors * values.clamp_min(0).sqrt()


def given(x_t, t, cov=COV):
    """The moments of p(x_0 | x_t)."""
    alpha, sigma = MODEL.schedule(t)
    precision = torch.linalg.inv(cov)
    V = torch.linalg.inv(precision + (alpha / sigma) ** 2 * torch.eye(D).double())
    return (MU @ precision + alpha / sigma**2 * x_t) @ V.T, V


def state(t, R):
    """A state on the way of a sample of the posterior."""
    alpha, sigma = MODEL.schedule(t)
    mean, cov = updated(MU, COV, R)
    return alpha * (mean + root(cov) @ normal(D, seed=5)) + sigma * normal(D, seed=6)


@of_each
@pytest.mark.parametrize("t", [0.95, 0.4])
def test_a_posterior_sample_has_the_moments_of_the_kalman_update(name, t, monkeypatch):
    """A step is affine in its noise. So a few rows tell the map, and with it both moments."""
    monkeypatch.setattr(calibrated_module, "RTOL", 1e-13)
    constraint, R = OBSERVED[name]
    t = double(t)
    kernel = on(CalibratedPPR(products=D, iterations=M), MODEL, constraint)
    x_t, rows, drawn = state(t, R), 3 * (D + M), []

    def randn(like):
        drawn.append(normal(*like.shape, seed=10 + len(drawn)))
        return drawn[-1]

    x_0 = kernel.posterior(x_t.expand(rows, D), t, randn)
    assert len(drawn) == 2  # of the sample without the observation, and of the errors
    ones = torch.ones(rows, 1).double()
    noise = torch.cat([ones, *drawn], dim=1)
    affine = torch.linalg.lstsq(noise, x_0).solution
    torch.testing.assert_close(noise @ affine, x_0, rtol=0, atol=1e-9)
    mean, cov = updated(*given(x_t, t), R)
    torch.testing.assert_close(affine[0], mean, rtol=0, atol=1e-9)
    largest = cov.abs().max().item()
    torch.testing.assert_close(affine[1:].T @ affine[1:], cov, rtol=0, atol=1e-8 * largest)


@of_each
@pytest.mark.parametrize("solver", ["gmres", "cg"])
def test_the_estimate_of_mmps_is_the_mean_of_the_kalman_update(name, solver):
    constraint, R = OBSERVED[name]
    kernel = on(MMPS(sigma_y=0.0, solver=solver, iterations=2 * M, rtol=1e-13), MODEL, constraint)
    for t in double([0.9, 0.6, 0.3]):
        x_t = torch.stack([state(t, R), state(t, R) + 0.1])
        expected, _ = updated(*given(x_t, t), R)
        torch.testing.assert_close(kernel.estimate(x_t, t), expected, rtol=0, atol=1e-7)


def test_dps_takes_the_residual_in_units_of_its_errors():
    x_t, t, s = normal(3, D, seed=7), double(0.5), double(0.4)
    exact = Linear(A / STDS[:, None], Y / STDS, 1e-6)
    steps = [
        on(DPS(eta=0.0, zeta=0.1), MODEL, constraint).step(x_t, t, s).x
        for constraint in (stated(STDS), exact)
    ]
    torch.testing.assert_close(*steps)


def chi_square(x, mean, cov):
    """Samples in directions in which their posterior has variance one, with shape (N, q)."""
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    kept = values > 1e-9 * values[-1]
    return (x - mean) @ vectors[:, kept] / values[kept].sqrt()


WIDE = {"as precise": 0.3, "from precise to coarse": 10 ** torch.linspace(-3, 0, 16).double()}


@pytest.mark.parametrize("name", WIDE)
def test_an_ensemble_of_the_default_has_the_mean_and_the_spread_of_the_posterior(name):
    """Of 512 members the sum of squared means over 24 directions exceeds 80 in 4 of 100 million
    runs, and a variance is beyond 1.4 or below 0.65 in 5 of a million runs. The steps' own errors
    are 2 % of a standard deviation. A solver that stops at a hundredth of the residual has a sum
    of 300 and a variance of 1.9 where errors differ much."""
    size, m = 24, 16
    half, mu = normal(size, size, seed=20), normal(size, seed=21)
    cov = half @ half.T / size + 0.1 * torch.eye(size).double()
    A, std = normal(m, size, seed=22) / math.sqrt(size), WIDE[name] * torch.ones(m).double()
    y = A @ (mu + torch.linalg.cholesky(cov) @ normal(size, seed=23)) + std * normal(m, seed=24)
    model = Gaussian(mu, cov, LogLogit())
    constraint = Linear(A, y, noise=std)
    result = feasibly.sample(model, constraint, 512, (size,), dtype=torch.float64, monitor=False)
    assert result.method.startswith("up to 4 times CalibratedPPR(")
    z = chi_square(result.samples, *updated(mu, cov, std.square().diag(), A, y))
    assert 512 * z.mean(dim=0).square().sum() < 80
    assert z.var(dim=0).max() < 1.4
    assert z.var(dim=0).min() > 0.65
    (fit,) = result.chi_square.values()
    expected = ((result.samples @ A.T - y) / std).square().mean(dim=1)
    torch.testing.assert_close(fit, expected)


MODES, WEIGHTS = double([[-1.0, 0.0], [1.0, 1.0]]), double([0.6, 0.4])
WIDTHS = double([[[0.04, 0.01], [0.01, 0.09]], [[0.09, -0.02], [-0.02, 0.04]]])
MIXTURE = GaussianMixture(WEIGHTS, MODES, WIDTHS, LogLogit())
ALONG = double([[1.0, -0.5]])


def of_modes(y, std):
    """The posterior's weight of the first mode, and the moments of each mode."""
    R = double([[std**2]])
    found = [updated(m, c, R, ALONG, y) for m, c in zip(MODES, WIDTHS, strict=True)]
    S = (ALONG @ WIDTHS @ ALONG.T).squeeze() + std**2
    log_w = WEIGHTS.log() - (y - MODES @ ALONG[0]).square() / S / 2 - S.log() / 2
    return log_w.softmax(dim=0)[0].item(), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("y", "std", "level"),
    [(0.1, 0.5, 0.0), (0.5, 0.003, 0.05)],
)
def test_particles_weigh_modes_as_a_value_with_noise_does(y, std, level):
    """Of 1024 members and 16 particles. A count of members of a mode is beyond 5 standard
    deviations in fewer than 1 in a million runs; 0.02 is for the few particles. So are means,
    and variances beyond 1.4 or below 0.65. A projection or a last step that ignores the value
    has a variance of more than 5 in the last case."""
    constraint = Linear(ALONG, [y], noise=std)
    result = feasibly.sample(
        MIXTURE,
        constraint,
        1024,
        (2,),
        method=SMC(particles=16, levels=Levels(drawn=level)),
        dtype=torch.float64,
        monitor=False,
    )
    first, moments = of_modes(y, std)
    far = torch.stack([(result.samples - m).square().sum(dim=1) for m in MODES])
    mode = far.argmin(dim=0)
    share = (mode == 0).double().mean().item()
    assert abs(share - first) < 0.02 + 5 * math.sqrt(first * (1 - first) / 1024)
    for k, (mean, cov) in enumerate(moments):
        z = chi_square(result.samples[mode == k], mean, cov)
        if len(z) > 300:
            assert z.mean(dim=0).abs().max() < 0.05 + 5 / math.sqrt(len(z))
            assert z.var(dim=0).min() > 0.65
            assert z.var(dim=0).max() < 1.4


QUICK = [CalibratedPPR(steps=8), SMC(steps=8, particles=3), MMPS(steps=8), DPS(steps=8, zeta=0.01)]
QUICK = {type(method): method for method in QUICK}


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in QUICK
        for name in ("one exact", "of each member")
        if not kind.shares
    ],
)
def test_a_member_with_noise_does_not_depend_on_its_batch_mates(kind, name):
    own = partial(EachMember, stated(STDS), normal(9, M, seed=8))
    constraint = own() if name == "of each member" else OBSERVED[name][0]
    kernel = on(QUICK[kind], MODEL, constraint)
    together, alone = (sampled(kernel, ids, (D,), dtype=torch.float64) for ids in ([5, 0, 3], [3]))
    torch.testing.assert_close(alone.samples[0], together.samples[2], rtol=1e-9, atol=1e-9)
    for key, fit in together.chi_square.items():
        torch.testing.assert_close(alone.chi_square[key][0], fit[2], rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_what_is_exact_beside_noise_is_met_and_a_bound_is_kept():
    bound = Bounds(-torch.inf, MU[0] + 0.1 + torch.arange(D) * 10, 1e-8)
    circle = Equality(lambda x: x[:, :2].square().sum(dim=1) - 1, 1e-8)
    beside = [some_exact(2), *(Composite([stated(0.3), one]) for one in (bound, circle))]
    for constraint in beside:
        for method in (CalibratedPPR(steps=16), SMC(steps=16, particles=2, error=9.0)):
            result = sampled(on(method, MODEL, constraint), 8, (D,), dtype=torch.float64)
            assert result.feasible.all()
            assert constraint.exact.is_feasible(result.samples).all()


def test_a_plan_keeps_noise_beside_inequalities_and_so_does_its_statement_through_truths():
    size, m = 132, 129
    model = Gaussian(torch.zeros(size), torch.eye(size), LogLogit())
    noisy = Linear(normal(m, size), normal(m, seed=1), noise=0.5)
    constraint = Composite([noisy, Bounds(-3.0, 3.0, 1e-6)])
    chosen = feasibly.plan(model, constraint, (size,), dtype=torch.float64, monitor=False)
    first, last = chosen.kernels[0].constraint, chosen.kernels[-1].constraint
    assert last is constraint
    assert first.inequalities is None
    assert first.noisy is not None
    truths = normal(3, size, seed=2).clamp(-3, 3)
    work = Work(through(constraint, truths, 2), truths, 2, {}, None, 0.05)
    restated = work.restated(chosen.kernels)
    x = normal(1, size, seed=3)
    with batch.calling([4]):
        expected = work.stated.noisy.residual(x)
        assert torch.equal(restated[0].constraint.noisy.residual(x), expected)
        assert torch.equal(restated[-1].constraint.noisy.residual(x), expected)
    assert restated[0].constraint.inequalities is None


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")  # of MMPS
@pytest.mark.parametrize(
    ("method", "constraint"),
    [
        (QUICK[SMC], stated(STDS)),
        (QUICK[SMC], some_exact(2)),
        (SMC(steps=8, levels=Levels(drawn=0.0)), stated(0.1)),
        (QUICK[CalibratedPPR], some_exact(2)),
        (QUICK[MMPS], some_exact(2)),
    ],
)
def test_no_method_exceeds_its_budget_under_noise(method, constraint):
    kernel = on(method, MODEL, constraint)
    result = sampled(kernel, 4, (D,), dtype=torch.float64)
    forward, backward = kernel.budget(M)
    assert result.evaluations.forward <= forward
    assert result.evaluations.backward <= backward


def test_methods_that_take_no_noise_refuse_it():
    for method in METHODS.values():
        if method.enforces and not method.takes_noise:
            with pytest.raises(ValueError, match=f"^{method.__name__} takes exact constraints"):
                on(method(), MODEL, stated(0.1), (D,))
    assert {m for m in METHODS.values() if m.enforces and m.takes_noise} >= set(QUICK)


def four_steps(model, constraint):
    problem = Problem(model, constraint, (D,), dtype=torch.float64)
    return Plan((CalibratedPPR(steps=4).bind(problem),))


def few(members, constraint=None):
    whole = Composite([stated(0.3), stated(0.3)]) if constraint is None else constraint
    kernel = on(CalibratedPPR(steps=4), MODEL, whole)
    return sampled(kernel, members, (D,), dtype=torch.float64)


def test_results_keep_how_members_fit_through_files_and_joins(tmp_path):
    whole = few(6)
    assert len(whole.chi_square) == 2  # two parts of the same words
    whole.save(tmp_path / "run.safetensors")
    again = Result.load(tmp_path / "run.safetensors")
    joined = Result.join([few([0, 1, 2]), few([3, 4, 5])])
    for other in (again, joined):
        assert list(other.chi_square) == list(whole.chi_square)
        for name, fit in whole.chi_square.items():
            torch.testing.assert_close(other.chi_square[name], fit)
    assert again.summary() == whole.summary()
    assert few(2, Linear(A, Y, 1e-6)).chi_square == {}


def stored(path, members, constraint, chunk=2):
    return feasibly.ensemble.run(four_steps(MODEL, constraint), path, members, batch_size=chunk)


def test_a_store_that_grows_has_the_samples_of_a_run_and_how_they_fit(tmp_path):
    xarray = pytest.importorskip("xarray")
    two = Composite([stated(0.3), some_exact(2)])
    for count in (2, 5):
        summary = stored(tmp_path / "run.zarr", count, two)
    run = sampled(on(CalibratedPPR(steps=4), MODEL, two), 5, (D,), dtype=torch.float64)
    assert len(run.chi_square) == 2
    stored_samples = torch.from_numpy(summary.store.get(3)).double()
    torch.testing.assert_close(stored_samples, run.samples[3], rtol=1e-5, atol=1e-6)
    found = xarray.open_zarr(tmp_path / "run.zarr")["chi_square"]
    assert found.dims == ("member", "observation")
    assert found.attrs["observations"] == list(run.chi_square)
    for k, (name, fit) in enumerate(run.chi_square.items()):
        for values in (found[:, k].values, summary.fits()[name]):
            torch.testing.assert_close(torch.from_numpy(values), fit, rtol=1e-5, atol=1e-6)
        assert f"{name}: chi-square per observed value {fit.mean():.3g} on average" in str(summary)
    assert summary.store.manifest.observations == dict(zip(run.chi_square, [5, 3], strict=True))


def test_failed_samples_have_no_fit_and_no_part_in_the_words(tmp_path):
    class Broken(Gaussian):
        def mean(self, x, sigma):
            out = super().mean(x, sigma)
            return torch.where(batch.current()[:, None] == 1, torch.nan, out)

    plan = four_steps(Broken(MU, COV, LogLogit()), stated(0.3))
    with pytest.warns(InfeasibleWarning, match="1 of 3 samples became non-finite"):
        result = run(plan.kernels, 3)
    (fit,) = result.chi_square.values()
    assert fit.isnan().tolist() == [False, True, False]
    said = f"chi-square per observed value {fit[[0, 2]].mean():.3g} on average"
    assert said in str(result)
    assert "violation" not in str(result), "all has noise"
    summary = feasibly.ensemble.run(plan, tmp_path / "run.zarr", 3)
    assert said in str(summary)
    assert [r.chi_square == (None,) for r in summary.records] == [False, True, False]


MODULE = """
import torch
import feasibly


def denoiser():
    return feasibly.oracles.Gaussian(torch.zeros(2), torch.eye(2), feasibly.schedules.LogLogit())


def noisy():
    return feasibly.Linear([[1.0, 1.0]], [0.5], noise=0.3)


def wrong():
    return feasibly.Linear([[1.0, 1.0]], [0.5], noise=-0.3)
"""


@pytest.mark.slow
def test_the_shell_samples_and_checks_observations_with_noise(
    module_of_a_user, monkeypatch, tmp_path, capsys
):
    name = module_of_a_user(MODULE)

    def shell(*arguments):
        monkeypatch.setattr("sys.argv", ["feasibly", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code

    of = ("--denoiser", f"{name}:denoiser", "--constraint", f"{name}:noisy")
    short = ("--members", 4, "--method", "smc", "--steps", 8)
    out = tmp_path / "out"
    assert shell("sample", *of, *short, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "Linear(1 value with noise): chi-square per observed value" in printed
    (fit,) = Result.load(out / "samples.safetensors").chi_square.values()
    row = f"<td>Linear(1 value with noise)</td><td>{fit.mean():.3g}</td><td>{fit.min():.3g}</td>"
    assert row in (out / "report.html").read_text()
    store = tmp_path / "run.zarr"
    assert shell("sample", *of, *short, "--out", store, "--batch-size", 4) == 0
    assert shell("report", store) == 0
    assert row in store.with_suffix(".html").read_text()
    assert shell("check", *of) == 0
    printed = capsys.readouterr().out
    assert "Observed values per sample: 1, all with noise." in printed
    assert "olerance" not in printed
    assert shell("sample", *of[:3], f"{name}:wrong", "--out", out) == 2
    assert "must not be negative" in capsys.readouterr().err


@pytest.mark.slow
def test_an_audit_finds_no_fault_of_a_posterior_sampler_and_that_of_one_without_spread():
    """At a level of 0.01 an exact candidate is found at fault in at most 1 of 200 runs."""
    constraint = some_exact(1)
    right = CalibratedPPR(products=D, steps=32, spacing="noise")
    narrow = replace(right, products=0, steps=8)
    found = feasibly.audit(
        MODEL,
        constraint,
        (D,),
        methods=[right, narrow],
        truths=48,
        members=5,
        near=1,
        level=0.01,
        monitor=False,
        dtype=torch.float64,
    )
    first, second = found.candidates
    assert first.feasible == second.feasible == 1
    assert not first.examination.faulty
    assert second.examination.faulty
    assert found.best is right


@pytest.mark.slow
def test_an_audit_leaves_out_those_of_its_own_methods_that_take_no_noise():
    found = feasibly.audit(
        MODEL, stated(0.5), (D,), truths=16, members=2, monitor=False, dtype=torch.float64
    )
    names = {candidate.name for candidate in found.candidates}
    assert "auto" in names
    assert "ppr-tuned" not in names
    assert any(
        "ppr-tuned was left out: TunedPPR takes exact constraints only" in note
        for note in found.notes
    )
    with pytest.raises(ValueError, match="PPR takes exact constraints"):
        feasibly.audit(MODEL, stated(0.5), (D,), methods=("auto", "ppr"))


@pytest.mark.slow
def test_a_curved_observation_with_noise_pulls_as_far_as_its_errors_allow():
    """The exact posterior by quadrature; 800 members of 16 particles. A mean or a standard
    deviation differs by 5 standard errors in 1 of a million runs; 0.02 is for the steps."""
    model = Gaussian(double([0.5]), double([[1.0]]), LogLogit())
    observed = Observation(lambda x: x.square(), [1.0], noise=0.5)
    grid = torch.linspace(-6, 6, 20001).double()
    log_p = -((grid - 0.5) ** 2) / 2 - ((grid**2 - 1) / 0.5) ** 2 / 2
    p = log_p.softmax(dim=0)
    result = feasibly.sample(
        model, observed, 800, (1,), method=SMC(particles=16), dtype=torch.float64, monitor=False
    )
    x = result.samples[:, 0]
    for power in (1, 2):
        exact, square = (p * grid**power).sum(), (p * grid ** (2 * power)).sum()
        error = 5 * math.sqrt((square - exact**2) / 800)
        assert abs(x.pow(power).mean() - exact) < 0.02 + error


def test_a_move_that_overshoots_a_curved_residual_is_shortened():
    """At the slope of exp(x) - 50 from x = 0 the whole move would end at x near 49."""
    prior = Gaussian(torch.zeros(2).double(), 1e4 * torch.eye(2).double(), LogLogit())
    curved = Observation(lambda x: x[:, :1].exp(), torch.tensor([50.0]).double(), noise=0.1)
    kernel = on(CalibratedPPR(products=0), prior, curved)
    x_t, t = torch.zeros(3, 2).double(), torch.tensor(0.99).double()
    x_0 = kernel.posterior(x_t, t, torch.zeros_like)
    assert curved.residual(x_0).abs().max() < curved.residual(torch.zeros_like(x_t)).abs().min()
    assert (x_0[:, 0] < 10).all()
    # a linear residual that does not say so is moved onto as one that does
    line = {"noise": 0.1, "y": torch.tensor([50.0]).double()}
    whole = Linear(torch.tensor([[1.0, 0.0]]).double(), **line)
    unsaid = Observation(lambda x: x[:, :1], **line)
    ends = [
        on(CalibratedPPR(products=0), prior, c).posterior(x_t, t, torch.zeros_like)
        for c in (whole, unsaid)
    ]
    torch.testing.assert_close(*ends)


def test_exact_values_of_different_sizes_beside_noise_keep_the_posterior():
    """A total, some values and noisy sums of others. Chi-square of 10 values and 64 members, and
    the mean's error, are beyond their bounds in fewer than one of 10^6 runs."""
    n, members, factor = 128, 64, 4.0
    eye = torch.eye(n).double()
    A = torch.cat([factor * torch.ones(1, n).double(), eye[:64:2]])
    B = eye[:20:2] + eye[1:20:2]
    x = normal(n, seed=7)
    y, v = A @ x, B @ x + 0.3 * normal(10, seed=8)
    both = Composite([Linear(A, y, 1e-8), Linear(B, v, noise=0.3)])
    prior = Gaussian(torch.zeros(n).double(), eye, LogLogit())
    result = feasibly.sample(prior, both, members, (n,), dtype=torch.float64, monitor=False)
    assert result.feasible.all()
    R = torch.cat([torch.zeros(len(A)), torch.full((10,), 0.09)]).double().diag()
    mean, cov = updated(torch.zeros(n).double(), eye, R, torch.cat([A, B]), torch.cat([y, v]))
    apart = (result.samples.mean(dim=0) - mean).square().sum() / cov.trace()
    assert apart < 2 / members
    assert abs(result.samples.var(dim=0).sum() / cov.trace() - 1) < 0.1


@pytest.mark.parametrize("far", [False, True])
def test_members_that_fit_worse_than_errors_allow_are_said_to(tmp_path, far):
    """Of 100 values chi-square is above 1.5 + 0.7 by chance in fewer than one of 10^10 runs."""
    prior = Gaussian(torch.zeros(100), torch.eye(100), LogLogit())
    y = torch.randn(100, generator=torch.Generator().manual_seed(0)) * math.sqrt(2)
    seen = Observation(lambda x: x, y + 10.0 * far, noise=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = feasibly.sample(prior, seen, 4, (100,), monitor=False)
    words = "worse than its noise allows"
    assert any(words in w for w in result.warnings) == far
    plan = Plan((on(CalibratedPPR(steps=8), prior, seen, (100,)),))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = feasibly.ensemble.run(plan, tmp_path / "run.zarr", 4, batch_size=2)
    said = [w for w in caught if words in str(w.message)]
    assert [w.category for w in said] == [CalibrationWarning] * far
    assert str(summary).count(words) == far
    assert (words in str(Summary.read(Store(summary.store.path)))) == far


def test_kept_derivatives_give_the_samples_of_products(monkeypatch):
    curved = Equality(lambda x: (x[:, :2].square() - 1).to(x), 1e-10)
    constraint = Composite([stated(STDS), curved])

    def draw():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = on(CalibratedPPR(steps=8, iterations=7), MODEL, constraint)
            return sampled(kernel, 4, (D,), dtype=torch.float64).samples

    kept = draw()
    monkeypatch.setattr(moments, "KEPT", 0)
    torch.testing.assert_close(draw(), kept, rtol=0, atol=1e-6)


def test_what_the_covariance_knows_joins_and_what_it_does_not_waits():
    """Of three exact values one has a negative variance, one a variance that is smaller than that,
    and one a larger one."""
    held = Linear(torch.eye(4)[:3].double(), double([1.0, 1.0, 1.0]), 1e-10)
    observed = Linear(torch.eye(4)[3:].double(), double([1.0]), noise=0.1)
    moved = moments.toward(
        Composite([held, observed]),
        torch.zeros(1, 4).double(),
        lambda v: double([[-0.5, 0.1, 4.0, 1.0]]) * v,
        0.0,
        lambda S, b, iterations, rtol, least: least_squares(S, b, iterations, rtol, least=least),
        8,
        1e-6,
    )
    torch.testing.assert_close(moved.x, double([[0.0, 0.0, 1.0, 1 / 1.01]]))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "std"), [(1, 0.02), (2, 0.05), (2, 0.02), (8, 0.02)])
def test_values_of_samples_have_the_errors_of_their_measurements(count, std):
    """Of normal data, by particles. The standard error of the variance is 0.06 / count ** 0.5: the
    bars are at five for one value, and one seed in a million fails."""
    D = 10
    oracle = Gaussian(torch.zeros(D), torch.eye(D), LogLogit())
    y = torch.linspace(-0.5, 0.5, count)
    seen = Linear(torch.eye(D)[:count], y, noise=std)
    x = feasibly.sample(oracle, seen, 512, (D,), method="smc", monitor=False, seed=1).samples
    gain = 1 / (1 + std**2)
    z = (x[:, :count] - gain * y) / (gain * std**2) ** 0.5
    assert 0.7 < z.square().mean() < 1.3
