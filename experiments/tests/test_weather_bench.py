import io
from functools import partial

import numpy as np
import pytest
import torch

from experiments import pages, records, tables, variables
from experiments.benches import WeatherBench, observed, weather
from experiments.figures import by_hour, maps, ranks
from experiments.records import PRIOR, unpack
from experiments.run import run
from experiments.samplers import default, post_hoc
from experiments.studies import Comparison, Study
from feasibly.denoisers import Denoiser
from feasibly.minimizers import LBFGS
from feasibly.nn import SphereAutoencoder
from feasibly.problems import weather as problem
from feasibly.schedules import LogLogit

SAMPLERS = {
    "default": partial(default, steps=2, attempts=1, minimize=LBFGS(4)),
    "post-hoc": partial(post_hoc, steps=2, minimize=LBFGS(4)),
}
# under a name that pages know
STUDY = Study("calibration", "Does it run?", {"weather": Comparison(SAMPLERS)})


class White(Denoiser):
    """The prior of independent standard normal latents."""

    def mean(self, x, sigma):
        return x / (1 + sigma**2)


@pytest.fixture(scope="module")
def days():
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(2 * 24, 3, 4, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 64), mode="bicubic")
    return torch.tensor([1700.0, 15.0, 15.0])[:, None, None] * smooth.unflatten(0, (2, 24))


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory, days):
    """Results of their own, white latents for the prior, an untrained autoencoder."""
    monkeypatch = pytest.MonkeyPatch()
    torch.manual_seed(0)
    autoencoder = SphereAutoencoder(channels=(16, 16, 16)).eval().requires_grad_(False)
    autoencoder.fit_fields(days[:, 0])
    autoencoder.fit_latents(days[:, 0])
    monkeypatch.setattr(records, "RESULTS", tmp_path_factory.mktemp("results"))
    monkeypatch.setattr(observed.priors, "digest", lambda name: "first")
    monkeypatch.setattr(weather.priors, "load", lambda name: White(LogLogit(1e-3, 1e2, 2.0)))
    monkeypatch.setattr(weather.priors, "load_autoencoder", lambda name: autoencoder)
    monkeypatch.setattr(problem, "fresh_days", lambda block, members: days[list(members)])
    monkeypatch.setattr(problem, "FLOOR_STEPS", 20)
    yield
    monkeypatch.undo()


@pytest.fixture(scope="module")
def rows(prepared):
    bench = WeatherBench(("state", "wind"), range(2), 3, 5)
    run(STUDY, bench, bench.settings())
    return records.read("calibration", "weather")


def test_records_have_scores_by_variable_and_hour(rows, days):
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert np.array(row["mse"]).shape == np.array(row["crps"]).shape == (3, 24)
        assert ("excess" in row) == (row["observation"] == "state")
        assert row["weights"] == "first"
    row = next(r for r in rows if r["observation"] == "state" and r["reference"] == 1)
    expected = (row["violation_median"] / 6144) - row["floor"]
    assert row["excess"] == pytest.approx(expected, rel=1e-4)
    assert row["floor"] * 6144 == pytest.approx(problem.Weather("state").floor(days[1]), rel=1e-4)


def test_tables_show_a_variable_of_an_observation_from_hour_6_to_18(rows):
    parts = dict(variables.parts(rows))
    assert list(parts)[:3] == ["state/geopotential", "state/u", "state/v"]
    row = tables.means(parts["wind/v"])[0]
    mine = [r for r in rows if r["label"] == "default" and r["observation"] == "wind"]
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
    assert tables.means(parts["state/u"])[0]["settings"] == 2
    with pytest.raises(ValueError, match="different runs"):
        tables.means([state[0], state[1] | {"sampler": state[1]["sampler"].replace("=4", "=5")}])
    other = [{"problem": "ks", "label": "a"}]
    assert variables.parts(other) == [("", other)]


def test_a_panel_ends_above_the_prior_s_own_score_and_the_legend_has_lines_of_all_panels(rows):
    prior = [row | {"label": PRIOR} for row in rows if row["label"] == "default"]
    wild = [
        row | {"label": "DPS", "crps": [[1e6 * v for v in hours] for hours in row["crps"]]}
        for row in prior
        if row["observation"] == "wind"
    ]
    figure = by_hour([*rows, *prior, *wild])
    ax = next(ax for ax in figure.axes if ax.get_title() == "wind")
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    assert ax.get_ylim()[1] == pytest.approx(4 / 3 * max(lines[PRIOR]))
    assert min(lines["DPS"]) > ax.get_ylim()[1]
    first = {line.get_label() for line in figure.axes[0].get_lines()}
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == first | {"DPS"}
    assert "DPS" not in first


def test_maps_and_curves_show_what_the_records_say(rows, days):
    curves = by_hour(rows)
    assert [ax.get_title() for ax in curves.axes] == ["state", "wind", "", ""]
    assert curves.axes[0].get_ylabel() == "CRPS of v (m/s)"
    assert curves.axes[2].get_xlabel() == "hour"
    mine = [r for r in rows if r["label"] == "default" and r["observation"] == "wind"]
    crps = np.mean([r["crps"][2] for r in mine], axis=0)
    np.testing.assert_allclose(curves.axes[1].lines[0].get_ydata(), crps)
    variance, skill = (np.mean([r[k][2] for r in mine], axis=0) for k in ("variance", "mean_se"))
    ratio = curves.axes[3].lines[0].get_ydata()
    np.testing.assert_allclose(ratio, np.sqrt(4 / 3 * variance / skill))
    picture = maps(rows)
    assert [ax.get_title() for ax in picture.axes[:3]] == ["hour 0", "hour 12", "hour 23"]
    first = next(r for r in rows if "picture" in r)
    shown = unpack(first["picture"], (5, 32, 64))
    np.testing.assert_allclose(shown, days[0, list(variables.SHOWN), 2], rtol=1e-3, atol=1e-2)
    image = picture.axes[1].images[0]
    np.testing.assert_allclose(image.get_array(), shown[2].astype(float))
    assert image.get_extent() == [0, 360, -90, 90]
    histograms = ranks(rows)
    assert [ax.get_title() for ax in histograms.axes[2:4]] == ["state/v", "wind/geopotential"]
    density = 4 * np.mean([r["ranks"][1] for r in mine], axis=0)
    np.testing.assert_allclose(histograms.axes[4].lines[0].get_ydata(), density)
    for figure in (histograms, picture):
        figure.savefig(io.BytesIO(), format="png", dpi=30)
