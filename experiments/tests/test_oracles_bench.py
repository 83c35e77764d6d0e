"""The oracles' exact posteriors against the prior's own samples near the constraint.

Seeds are fixed; bounds are five standard errors or more.
"""

import math
from functools import partial

import pytest
import torch

from experiments import records
from experiments.benches import OraclesBench
from experiments.benches.oracles import POSTERIORS
from experiments.run import run
from experiments.samplers import only, ppr
from experiments.studies import Comparison, Study, calibration
from experiments.studies.calibration import IdealKernel
from experiments.tests.conftest import gaussians

N = 2**13


def samples(posterior, n=N, seed=5):
    return posterior.sample(n, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("number", [0, 2])
def test_samples_of_every_posterior_are_feasible_and_in_its_modes(name, number):
    posterior = POSTERIORS[name](number)
    x = samples(posterior, 1024)
    assert x.shape == (1024, *posterior.shape)
    assert posterior.constraint.is_feasible(x).all()
    if posterior.mode:
        assert 0 <= posterior.mode(x).min() <= posterior.mode(x).max() < posterior.modes
        assert len(posterior.mode(x).unique()) > 1


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("gaussian-1", 0.1),
        ("correlated-1", 0.1),
        ("clusters", 0.1),
        ("ellipse", 0.02),
        ("half-plane", 0.0),
    ],
)
@pytest.mark.parametrize("number", [0, 1])
def test_posteriors_are_the_prior_in_a_narrow_tube(name, width, number):
    posterior = POSTERIORS[name](number)
    near = []
    while sum(map(len, near)) < 1000:
        x = gaussians(posterior.denoiser, 2**18, seed=len(near))
        near.append(x[posterior.constraint.violation(x) <= width**2])
    x, y = torch.cat(near), samples(posterior)
    n = len(x)
    unit = y.std(dim=0)
    assert ((x.mean(dim=0) - y.mean(dim=0)).abs() / unit).max() < 5.5 / math.sqrt(min(n, N)) + 0.01
    square = (x - y.mean(dim=0)).square().mean(dim=0) / unit**2
    kurtosis = ((y - y.mean(dim=0)) / unit).pow(4).mean(dim=0)
    assert ((square - 1).abs() / kurtosis.sqrt()).max() < 5.5 / math.sqrt(min(n, N)) + 0.02
    if posterior.mode:
        weights = [
            torch.bincount(posterior.mode(v), minlength=posterior.modes) / len(v) for v in (x, y)
        ]
        assert (weights[0] - weights[1]).abs().max() < 2.5 / math.sqrt(min(n, N)) + 0.01


def test_six_residuals_leave_the_covariance_that_regression_leaves():
    """For them a tube is too rare: x less its regression on A x is independent of it."""
    posterior = POSTERIORS["correlated-6"](1)
    x = gaussians(posterior.denoiser, 2**17)
    r = posterior.constraint.residual(x)  # A x - y
    centred = r - r.mean(dim=0)
    slope = torch.linalg.lstsq(centred, x - x.mean(dim=0)).solution
    given = x - r @ slope  # as if r had been 0
    y = samples(posterior)
    scale = y.var(dim=0).sum().sqrt()
    assert (given.mean(dim=0) - y.mean(dim=0)).norm() / scale < 5 / math.sqrt(N)
    difference = torch.linalg.matrix_norm(torch.cov(given.T) - torch.cov(y.T))
    assert difference / torch.linalg.matrix_norm(torch.cov(y.T)) < 0.1


SAMPLERS = {"PPR": partial(ppr, steps=8), "ideal kernel": only(IdealKernel)}
# under a name that pages know
STUDY = Study(
    "calibration",
    "Does it run?",
    {"oracles": Comparison(SAMPLERS, only={"ideal kernel": ("empirical",)})},
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", tmp_path_factory.mktemp("results"))
        bench = OraclesBench(("gaussian-1", "empirical"), range(2), 512)
        run(STUDY, bench, bench.settings())
        return records.read("calibration", "oracles")


def test_records_say_how_far_an_ensemble_is_from_the_truth(rows):
    found = {(row["posterior"], row["label"]): row for row in rows if row["number"] == 0}
    truth = found["gaussian-1", "two exact sample sets"]
    assert truth["std"] == pytest.approx(1, abs=0.03)
    assert truth["knn"] == pytest.approx(0.5, abs=0.06)
    mine = found["gaussian-1", "PPR"]
    assert mine["std"] < 0.85  # the paper's kernel is too narrow
    assert mine["feasible"] == 1
    assert mine["sliced"] > 1.5 * truth["sliced"]


def test_the_ideal_kernel_samples_the_empirical_posterior(rows):
    for number in (0, 1):
        found = {
            row["label"]: row
            for row in rows
            if row["posterior"] == "empirical" and row["number"] == number
        }
        truth, ideal = found["two exact sample sets"], found["ideal kernel"]
        assert ideal["feasible"] == 1
        # 32 atoms and 512 samples: half the sum of |p - q| is 0.14 by chance, with a standard
        # deviation of 0.02
        assert ideal["weight_error"] < 0.24
        assert truth["weight_error"] < 0.24
        assert "knn" not in ideal  # of points that repeat


def test_a_label_is_run_where_it_applies(rows):
    assert {row["posterior"] for row in rows if row["label"] == "ideal kernel"} == {"empirical"}
    with pytest.raises(ValueError, match=r"no oracles.*sphere"):
        OraclesBench(("sphere",), range(1), 8)
    only = calibration.STUDY.on["oracles"].only
    assert set().union(*only.values()) <= POSTERIORS.keys()
