"""Studies on Kuramoto-Sivashinsky and on the weather, with small stand-ins for the priors."""

import io
import json
from functools import partial

import numpy as np
import pytest
import torch

from experiments import pages, records, tables
from experiments.benches import KSBench, WeatherBench, observed
from experiments.figures import by_hour, gallery, maps, over_time, ranks
from experiments.records import PRIOR, pack, unpack
from experiments.run import run
from experiments.samplers import post_hoc, ppr
from experiments.studies import Comparison, Study
from feasibly import TunedPPR, sample
from feasibly.denoisers import Denoiser
from feasibly.minimizers import LBFGS
from feasibly.nn import SphereAutoencoder
from feasibly.oracles import Gaussian
from feasibly.problems import weather as planet
from feasibly.problems.ks import KS, SUPPORT
from feasibly.schedules import LogLogit

SAMPLERS = {
    "PPR": partial(ppr, steps=8, sigma_max=10.0, attempts=1, minimize=LBFGS()),
    "post-hoc": partial(post_hoc, steps=8),
}


class White(Denoiser):
    """The prior of independent standard normal numbers."""

    def mean(self, x, sigma):
        return x / (1 + sigma**2)


@pytest.fixture(scope="module")
def days():
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(2 * 24, 3, 4, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 64), mode="bicubic")
    return torch.tensor([1700.0, 15.0, 15.0])[:, None, None] * smooth.unflatten(0, (2, 24))


@pytest.fixture(scope="module", autouse=True)
def prepared(days):
    """White noise for the priors, on 8 x 8 points of KS, and an untrained autoencoder."""
    oracle = Gaussian(torch.zeros(64), torch.eye(64), LogLogit(1e-4, 1e4, 4.0))
    torch.manual_seed(0)
    autoencoder = SphereAutoencoder(channels=(16, 16, 16)).eval().requires_grad_(False)
    autoencoder.fit_fields(days[:, 0])
    autoencoder.fit_latents(days[:, 0])
    white = White(LogLogit(1e-3, 1e2, 2.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed, "KS", lambda observation, _=None: KS(observation, oracle, size=8))
        patch.setitem(SUPPORT, 8, SUPPORT[64])
        patch.setattr(observed.priors, "digest", lambda name: "first")
        patch.setattr(observed.priors, "load", lambda name: white)
        patch.setattr(observed.priors, "load_autoencoder", lambda name: autoencoder)
        patch.setattr(planet, "fresh_days", lambda block, members: days[list(members)])
        patch.setattr(planet, "FLOOR_STEPS", 5)
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Results of their own."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)


def study(samplers=SAMPLERS, name="tiny"):
    return Study(name, "Does it run?", {"ks": Comparison(samplers, protocol={"post-hoc": (1, 3)})})


def start(samplers=SAMPLERS, kinds=("sine-3",), references=range(1), members=4):
    bench = KSBench(kinds, references, members)
    run(study(samplers), bench, bench.settings())
    return records.read("tiny", "ks")


@pytest.fixture(scope="module")
def rows(prepared, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", tmp_path_factory.mktemp("results"))
        return start(kinds=("sine-3", "linear-1"), references=range(2))


def test_every_label_is_run_on_the_references_of_its_protocol():
    bench = KSBench(("sine-3", "linear-1"), range(10, 12))
    comparison = study().on["ks"]
    found = [
        (label, *setting.values(), options["members"])
        for setting in bench.settings()
        for label in SAMPLERS
        if (options := bench.options(comparison, label, setting))
    ]
    assert found == [
        ("PPR", "sine-3", 10, 8),
        ("post-hoc", "sine-3", 10, 3),
        ("PPR", "sine-3", 11, 8),
        ("PPR", "linear-1", 10, 8),
        ("post-hoc", "linear-1", 10, 3),
        ("PPR", "linear-1", 11, 8),
    ]


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_a_record_is_that_of_the_samplers_own_run(rows):
    row = rows[0]
    problem = observed.KS("sine-3")
    y = problem.reference(0)
    method = TunedPPR(steps=8, sigma_max=10.0, minimize=LBFGS())
    settings = {"method": method, "monitor": False, "attempts": 1}
    result = sample(problem.denoiser, problem.constraint(y), 4, (8, 8), **settings)
    scores = problem.scores(result.samples, result.feasible, y)
    assert row.items() >= json.loads(json.dumps(scores)).items()
    assert row["violation_worst"] == result.violation.max().item()
    assert row["sampler"] == result.method
    kept = [row for row in rows if "picture" in row]
    assert {row["reference"] for row in kept} == {0}
    np.testing.assert_allclose(unpack(kept[0]["picture"], (8, 8)), y.numpy(), rtol=1e-3, atol=1e-3)


def test_a_result_of_another_study_is_taken_over(monkeypatch):
    first, _ = start()
    monkeypatch.setattr(observed.Case, "score", lambda *a: pytest.fail("sampled again"))
    samplers = {"PPR": SAMPLERS["PPR"], "the same": SAMPLERS["PPR"]}
    other = study(samplers, "other")
    bench = KSBench(["sine-3"], range(1), 4)
    run(other, bench, bench.settings())
    assert records.read("other", "ks") == [
        first | {"study": "other", "label": label} for label in samplers
    ]
    # what differs in anything but the label is no twin
    different = study({"PPR": partial(ppr, steps=9, attempts=1)}, "third")
    monitored = study({"default": SAMPLERS["PPR"]}, "default")
    for one, members in ((different, 4), (other, 3), (monitored, 4)):
        with pytest.raises(pytest.fail.Exception, match="sampled again"):
            run(one, KSBench(["sine-3"], range(1), members), bench.settings())


def test_a_study_is_run_again_with_other_weights_of_the_prior(monkeypatch):
    rows = start()
    monkeypatch.setattr(observed.priors, "digest", lambda name: "second")
    again = start()
    assert len(again) == 2 * len(rows)
    assert {row["weights"] for row in again} == {"first", "second"}
    with pytest.raises(ValueError, match="stale"):
        tables.means(again)


def test_figures_of_ks_show_what_the_records_say(rows):
    panel = over_time(rows).axes[0]
    assert panel.get_title() == "RMSE, sine-3"
    # the other was run on reference 0 alone, so that PPR is shown on it
    (mine,) = (
        r["mse"]
        for r in rows
        if (r["label"], r["observation"], r["reference"]) == ("PPR", "sine-3", 0)
    )
    np.testing.assert_allclose(panel.get_lines()[0].get_ydata(), np.sqrt(mine))
    assert panel.get_lines()[0].get_label() == "PPR"
    titles = ["reference", "PPR", "post-hoc"]
    assert [ax.get_title() for ax in gallery(rows).axes if ax.images] == titles
    # a label with another reference is left out
    first = next(row for row in rows if row["label"] == "PPR" and "picture" in row)
    moved = pack(torch.tensor(unpack(first["picture"], (8, 8)).astype(float)) + 1)
    other = [
        row | {"label": "other"} | ({"picture": moved} if "picture" in row else {})
        for row in rows
        if row["label"] == "PPR"
    ]
    assert [ax.get_title() for ax in gallery([*rows, *other]).axes if ax.images] == titles
    assert len(over_time([*rows, *other]).axes[0].lines) == 2
    by_label = {row["label"]: row for row in tables.means([*rows, *other])}
    assert "rmse_ratio" in by_label["PPR"]
    assert "rmse_ratio" not in by_label["other"]


@pytest.fixture(scope="module")
def weather(prepared, tmp_path_factory):
    samplers = {
        "default": partial(ppr, steps=2, attempts=1, minimize=LBFGS(2)),
        "post-hoc": partial(post_hoc, steps=2, minimize=LBFGS(2)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", tmp_path_factory.mktemp("weather"))
        bench = WeatherBench(("state", "wind"), range(2), 3)
        found = Study("calibration", "Does it run?", {"weather": Comparison(samplers)})
        run(found, bench, bench.settings())
        return records.read("calibration", "weather")


def test_records_of_weather_have_scores_by_variable_and_hour(weather, days):
    assert len(weather) == 2 * 2 * 2
    for row in weather:
        assert np.array(row["mse"]).shape == np.array(row["crps"]).shape == (3, 24)
        assert ("excess" in row) == (row["observation"] == "state")
    row = next(r for r in weather if r["observation"] == "state" and r["reference"] == 1)
    expected = (row["violation_median"] / 6144) - row["floor"]
    assert row["excess"] == pytest.approx(expected, rel=1e-4)
    assert row["floor"] * 6144 == pytest.approx(planet.Weather("state").floor(days[1]), rel=1e-4)
    first = next(r for r in weather if "picture" in r)
    shown = unpack(first["picture"], (5, 32, 64))
    np.testing.assert_allclose(shown, days[0, list(tables.SHOWN), 2], rtol=1e-3, atol=1e-2)


def test_tables_show_a_variable_of_an_observation_from_hour_6_to_18(weather, monkeypatch):
    monkeypatch.setattr(records, "read", lambda study, problem: weather)
    parts = dict(tables.parts(weather))
    assert list(parts)[:3] == ["state/geopotential", "state/u", "state/v"]
    row = tables.means(parts["wind/v"])[0]
    mine = [r for r in weather if r["label"] == "default" and r["observation"] == "wind"]
    mse = np.mean([np.array(r["mse"])[2, 6:19] for r in mine], axis=0)
    assert row["rmse"] == pytest.approx(np.sqrt(mse).mean())
    page = "<!-- table: calibration weather/wind/v; default -->\n<!-- end -->"
    filled = pages.fill(page)
    assert f"| {row['rmse']:.3f} |" in filled
    assert "violation, median" in filled
    filled = pages.fill(page.replace("wind", "state"))
    assert "excess over the floor" in filled
    assert "violation, median" not in filled
    state = [row for row in parts["state/u"] if row["label"] == "default"]
    assert len({row["sampler"] for row in state}) == 2, "each day has a tolerance of its own"
    assert tables.means(state)[0]["settings"] == 2
    with pytest.raises(ValueError, match="different runs"):
        tables.means([state[0], state[1] | {"sampler": state[1]["sampler"].replace("=2", "=5")}])


def test_maps_and_curves_of_weather_show_what_the_records_say(weather):
    mine = [r for r in weather if r["label"] == "default" and r["observation"] == "wind"]
    curves = by_hour(weather)
    assert [ax.get_title() for ax in curves.axes] == ["state", "", "wind", ""]
    crps, variance, skill = (
        np.mean([r[k][2] for r in mine], axis=0) for k in ("crps", "variance", "mean_se")
    )
    np.testing.assert_allclose(curves.axes[2].lines[0].get_ydata(), crps)
    ratio = curves.axes[3].lines[0].get_ydata()
    np.testing.assert_allclose(ratio, np.sqrt(4 / 3 * variance / skill))
    # a panel ends above the prior's own score
    prior = [row | {"label": PRIOR} for row in weather if row["label"] == "default"]
    ax = by_hour([*weather, *prior]).axes[2]
    assert ax.get_ylim()[1] == pytest.approx(4 / 3 * max(crps))
    histograms = ranks(weather)
    assert [ax.get_title() for ax in histograms.axes[2:4]] == ["state/v", "wind/geopotential"]
    density = 4 * np.mean([r["ranks"][1] for r in mine], axis=0)
    np.testing.assert_allclose(histograms.axes[4].lines[0].get_ydata(), density)
    maps(weather).savefig(io.BytesIO(), format="png", dpi=30)
