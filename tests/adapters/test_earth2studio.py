"""Assimilation of stations in the form of earth2studio's models."""

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from feasibly.errors import ConstraintError
from feasibly.oracles import Gaussian
from feasibly.schedules import EDM

pytest.importorskip(
    "earth2studio.utils.obs", reason="earth2studio is not installed", exc_type=ImportError
)
pandas = pytest.importorskip("pandas")
adapter = pytest.importorskip("feasibly.adapters.earth2studio")

VARIABLES = ["t2m", "u10m"]
LAT = np.array([60.0, 50.0, 40.0], np.float32)
LON = np.array([0.0, 10.0, 20.0, 30.0], np.float32)
MEAN, STD = [280.0, 2.0], [10.0, 5.0]
NOON = np.datetime64("2024-01-01T12", "ns")
MINUTE = np.timedelta64(1, "m")
D = 24


def covariance():
    Q = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cov = Q @ Q.T / D + 0.3 * torch.eye(D)
    root = cov.diag().rsqrt()
    return root[:, None] * cov * root


COV = covariance()


def model(**options):
    oracle = Gaussian(torch.zeros(D), COV, EDM())
    given = {"mean": MEAN, "std": STD, "errors": {"t2m": 1.0, "u10m": 2.0}, "members": 256}
    return adapter.Assimilation(oracle, VARIABLES, LAT, LON, **given | options)


def table(rows, times=(NOON,)):
    """A table of (time, lat, lon, variable, observation)."""
    frame = pandas.DataFrame(
        rows, columns=["time", "lat", "lon", "variable", "observation"]
    ).astype({"time": "datetime64[ns]", "lat": float, "lon": float, "observation": float})
    frame.attrs["request_time"] = np.array(times)
    return frame


ROWS = [
    (NOON, 60.0, 10.0, "t2m", 291.0),  # a point of the grid
    (NOON, 50.0, 24.0, "u10m", 9.0),  # between columns 2 and 3
]


def test_it_is_an_assimilation_model():
    """By their protocol, whose file is run alone: its package imports all models, a minute."""
    package = importlib.util.find_spec("earth2studio.models.da")
    file = Path(package.submodule_search_locations[0], "base.py")
    protocol = runpy.run_path(str(file))["AssimilationModel"]
    assert isinstance(model(), protocol)
    assert not isinstance(object(), protocol)
    assert model().init_coords() is None


@pytest.mark.slow
def test_axes_and_columns_are_those_of_theirs(monkeypatch):
    da = pytest.importorskip("earth2studio.models.da", exc_type=ImportError)
    imports = pytest.importorskip("earth2studio.utils.imports")
    ours = model(members=4)
    # theirs asks for cupy, and without a GPU makes no use of it
    monkeypatch.setattr(imports.OptionalDependencyFailure, "failures", {})
    theirs = da.InterpEquirectangular(LAT, LON)
    theirs.VARIABLES = VARIABLES
    (schema,), (known,) = ours.input_coords(), theirs.input_coords()
    assert {k: v.dtype for k, v in schema.items()} == {k: v.dtype for k, v in known.items()}
    obs = table(ROWS)
    (out,) = ours.output_coords((schema,), **obs.attrs)
    assert list(out) == ["ensemble", *theirs.output_coords((known,), **obs.attrs)[0]]
    generator = ours.create_generator()
    assert generator.send(None) is None
    field, reference = generator.send(obs), theirs(obs)
    assert field.isel(ensemble=0, drop=True).coords.equals(reference.coords)
    assert field.dims == ("ensemble", *reference.dims)
    assert (generator.send(obs) == field).all()


def test_the_ensemble_is_of_the_kalman_posterior():
    """Of all members, the squared Mahalanobis distance to the exact posterior, and that of their
    mean: two statistics at 5 standard errors, a false-alarm rate below 1e-5."""
    field = model()(table(ROWS)).isel(time=0).values.reshape(256, 2, 3, 4)
    H = torch.zeros(2, 2, 3, 4, dtype=torch.float64)
    H[0, 0, 0, 1] = 10.0
    H[1, 1, 1, 2], H[1, 1, 1, 3] = 0.6 * 5.0, 0.4 * 5.0
    H, R = H.reshape(2, D), torch.tensor([1.0, 4.0]).double().diag()
    gain = COV @ H.T @ torch.linalg.inv(H @ COV @ H.T + R)
    mean, cov = gain @ torch.tensor([11.0, 7.0]).double(), COV - gain @ H @ COV
    shift, scale = (torch.tensor(v).double()[:, None, None] for v in (MEAN, STD))
    x = ((torch.from_numpy(field).double() - shift) / scale).reshape(256, D)
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(cov), (x - mean).T, upper=False)
    assert abs(z.square().sum() / 256 - D) < 5 * (2 * D / 256) ** 0.5
    assert abs(256 * z.mean(dim=1).square().sum() - D) < 5 * (2 * D) ** 0.5


def test_exact_values_hold_next_to_noisy_ones():
    obs = table(ROWS).assign(error=[0.0, 2.0])
    field = model(errors=None, tolerance=1e-4, members=16)(obs)
    held = field.sel(variable="t2m", lat=60.0, lon=10.0).values
    np.testing.assert_allclose(held, 291.0, atol=1e-2)
    with pytest.raises(ValueError, match="need a tolerance"):
        model(errors=None)(obs)


def test_the_nearest_report_of_the_window_counts():
    ours = model(members=4)
    late = NOON + 60 * MINUTE
    crowd = table(
        [
            (NOON - 4 * MINUTE, 60.0, 10.0, "t2m", 250.0),
            (NOON + 3 * MINUTE, 60.0, 10.0, "t2m", 291.0),
            (NOON, 60.0, 10.0, "t2m", np.nan),
            (NOON + 11 * MINUTE, 50.0, 24.0, "t2m", 0.0),  # in no window
            (NOON, -50.0, 24.0, "t2m", 0.0),  # off the grid
            (NOON + 3 * MINUTE, 50.0, 24.0, "u10m", 9.0),
            (late, 40.0, 0.0, "t2m", 285.0),
        ],
        (late, NOON),
    )
    both = ours(crowd)
    assert (both.time.values == np.array([late, NOON])).all()
    plain = ours(table(ROWS)).isel(time=0)
    np.testing.assert_array_equal(both.sel(time=NOON).values, plain.values)


def test_without_an_observation_it_is_the_prior_and_times_have_their_own_noise():
    """Variances of 256 samples are within 0.5 of 1: 5.6 standard errors, for each of 24. The
    correlation of one value at two times is within 5 of zero."""
    field = model()(table([], (NOON, NOON + 60 * MINUTE)))
    x = (field.transpose(..., "variable").values - MEAN) / STD
    x = x.reshape(256, 2, D)
    assert (abs(x.var(axis=0) - 1) < 0.5).all()
    assert (abs((x[:, 0] * x[:, 1]).mean(axis=0)) < 5 / 16).all()


@pytest.mark.slow
def test_their_random_source_goes_through():
    """Observations all over the globe, at random times in the window."""
    data = pytest.importorskip("earth2studio.data", exc_type=ImportError)
    np.random.seed(0)
    source = data.RandomDataFrame(n_obs=200, tolerance=np.timedelta64(9, "m"))
    ours = model(members=4, mean=0.0, std=1.0, errors={"t2m": 1.0, "u10m": 1.0})
    (schema,) = ours.input_coords()
    times = np.array([NOON, NOON + 60 * MINUTE])
    obs = data.fetch_dataframe(source, times, schema["variable"], list(schema))
    field = ours(obs)
    assert field.shape == (4, 2, 2, 3, 4)
    assert np.isfinite(field.values).all()
    assert all(one.chi_square for one in ours.results)


def test_wrong_uses_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        model(std=[10.0, 0.0])
    obs = table(ROWS)
    with pytest.raises(ValueError, match="no column error"):
        model(errors=None)(obs)
    with pytest.raises(ConstraintError, match="the variable t2"):
        model()(obs.replace("t2m", "t2"))
    with pytest.raises(ValueError, match=r'attrs\["request_time"\]'):
        model()(None)
    obs.attrs.clear()
    with pytest.raises(ValueError, match=r'attrs\["request_time"\]'):
        model()(obs)
