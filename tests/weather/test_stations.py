import warnings

import numpy as np
import pytest
import torch

from feasibly.errors import ConstraintError
from feasibly.weather import Stations

xarray = pytest.importorskip("xarray")
pandas = pytest.importorskip("pandas")

LATITUDE = (torch.arange(8) + 0.5) * 180 / 8 - 90  # -78.75 to 78.75, without rows on the poles
LONGITUDE = torch.arange(16) * 22.5
WHOLE = torch.linspace(-90, 90, 9)  # with rows on the poles
TIMES = np.arange(4.0)
GRID = {"times": TIMES, "latitude": LATITUDE, "longitude": LONGITUDE}
WEST = {"latitude": torch.tensor([30.0, 40.0, 50.0]), "longitude": torch.tensor([350.0, 360, 370])}


def table(lat, lon, time=0.0, value=0.0, variable="t2m", error=1.0):
    n = np.size(lat)
    columns = {"time": time, "lat": lat, "lon": lon, "value": value, "error": error}
    columns |= {"variable": variable}
    return {name: np.broadcast_to(np.asarray(c), (n,)) for name, c in columns.items()}


def at(fields, lat, lon, time=0.0, variables=("t2m",), **options):
    """Interpolates fields, with shape (T, C, lat, lon)."""
    grid = {**GRID, **{k: v for k, v in options.items() if k in GRID}}
    rest = {k: v for k, v in options.items() if k in ("between",)}
    rows = table(lat, lon, time, variable=options.get("variable", variables[0]))
    return Stations(rows, variables=variables, **grid, **rest)(fields[None])[0]


def plane(latitude, longitude, times=TIMES):
    """A field that is linear in latitude, longitude and time, with shape (T, 1, lat, lon)."""
    lat, lon = latitude.double()[:, None], longitude.double()
    t = torch.as_tensor(times).double()[:, None, None, None]
    return 3 * lat - 2 * lon + 5 * t + 1


@pytest.mark.parametrize("descending", [False, True])
def test_linear_functions_are_exact(descending):
    latitude = LATITUDE.flip(0) if descending else LATITUDE
    fields = plane(latitude, LONGITUDE)
    rng = np.random.default_rng(0)
    lat, lon, time = rng.uniform(-78, 78, 50), rng.uniform(0, 337, 50), rng.uniform(0, 3, 50)
    found = at(fields, lat, lon, time, latitude=latitude)
    expected = torch.from_numpy(3 * lat - 2 * lon + 5 * time + 1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9)


def test_a_grid_may_have_uneven_steps():
    latitude, longitude = torch.tensor([-80.0, -20, 3, 70]), torch.tensor([0.0, 100, 130, 300])
    found = at(plane(latitude, longitude), [1.0], [77.0], latitude=latitude, longitude=longitude)
    assert found.item() == pytest.approx(3 - 154 + 1)


def test_points_of_the_grid_have_the_values_of_the_fields():
    fields = torch.randn(4, 1, 8, 16, dtype=torch.float64)
    i, j = torch.meshgrid(torch.arange(8), torch.arange(16), indexing="ij")
    lat, lon = LATITUDE[i].flatten().numpy(), LONGITUDE[j].flatten().numpy()
    torch.testing.assert_close(at(fields, lat, lon, time=2.0), fields[2, 0].flatten())


@pytest.mark.parametrize("lon", [348.75, -11.25])
def test_longitudes_go_around(lon):
    """Half way between the last and the first longitude, however it is written."""
    fields = torch.randn(4, 1, 8, 16, dtype=torch.float64)
    found = at(fields, [LATITUDE[3].item()], [lon])
    assert found.item() == pytest.approx(fields[0, 0, 3, [0, -1]].mean().item())


def test_grids_may_begin_in_the_west():
    fields = torch.randn(4, 1, 8, 16, dtype=torch.float64)
    west = {"longitude": LONGITUDE - 180}
    lat, lon = [10.0, 20.0, -60.0], [179.0, 181.0, 0.0]
    torch.testing.assert_close(
        at(fields, lat, lon, **west), at(fields.roll(8, dims=-1), lat, lon), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(("lat", "row"), [(90.0, -1), (85.0, -1), (-81.0, 0), (-90.0, 0)])
def test_beyond_the_last_row_it_counts(lat, row):
    fields = torch.randn(4, 1, 8, 16, dtype=torch.float64)
    found = at(fields, [lat] * 2, [0.0, 11.25])
    line = fields[0, 0, row]
    torch.testing.assert_close(found, torch.stack([line[0], (line[0] + line[1]) / 2]))


def test_a_row_on_the_pole_is_used():
    fields = torch.randn(4, 1, 9, 16, dtype=torch.float64)
    found = at(fields, [90.0, -90.0], [0.0, 45.0], latitude=WHOLE)
    torch.testing.assert_close(found, torch.stack([fields[0, 0, -1, 0], fields[0, 0, 0, 2]]))


def test_time_is_linear_or_the_nearest_frame():
    fields = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 1, 8, 16)
    args = fields, [0.0] * 3, [0.0] * 3, [0.25, 1.75, 3.0]
    torch.testing.assert_close(at(*args), torch.tensor([0.25, 1.75, 3.0]))
    torch.testing.assert_close(at(*args, between="nearest"), torch.tensor([0.0, 2.0, 3.0]))
    late = at(fields, [0.0], [0.0], [3.4], between="nearest")
    assert late.item() == 3, "up to half a step behind the last frame"


def test_only_frames_that_count_are_needed():
    stations = Stations(table([0, 0, 0], [0, 1, 2], [1.0, 1.0, 3.0]), variables=["t2m"], **GRID)
    assert stations.frames == [1, 3]
    linear = Stations(table([0, 0], [0, 1], [1.0, 2.5]), variables=["t2m"], **GRID)
    assert linear.frames == [1, 2, 3]


def test_channels_are_those_of_the_names():
    fields = torch.arange(3.0).reshape(1, 3, 1, 1).expand(4, 3, 8, 16)
    names = np.array(["2m_temperature", "geopotential_500", "q"])
    rows = {**table([0, 0, 0], [0, 1, 2]), "variable": names}
    found = Stations(rows, variables=["specific_humidity", "t2m", "z500"], **GRID)(fields[None])
    assert found.tolist() == [[1, 2, 0]]


def test_neighbours_without_a_value_do_not_count_at_points_of_the_grid():
    fields = torch.full((4, 1, 8, 16), torch.nan)
    fields[0, 0, 3, 2] = 5.0
    assert at(fields, [LATITUDE[3].item()], [45.0]).item() == 5


def test_gradients_are_the_weights():
    x = torch.zeros(2, 4, 1, 8, 16, dtype=torch.float64, requires_grad=True)
    stations = Stations(table([0.0], [11.25], [0.5]), variables=["t2m"], **GRID)
    (gradient,) = torch.autograd.grad(stations(x)[0, 0], x)
    assert gradient[1].count_nonzero() == 0, "members are independent"
    around = gradient[0, :2, 0, 3:5, :2]
    torch.testing.assert_close(around, torch.full_like(around, 1 / 8))


def test_values_and_errors_have_the_units_of_the_fields():
    rows = {**table([0, 1], [0, 1], value=[10.0, 5500.0], error=[1.0, np.nan])}
    rows["variable"] = np.array(["t2m", "z500"])
    stations = Stations(
        rows,
        variables=["z500", "2m_temperature"],
        errors={"geopotential_500": 6.0, "t2m": 9.0},
        scale={"z500": 9.80665},
        offset={"t2m": 273.15},
        **GRID,
    )
    torch.testing.assert_close(
        stations.y, torch.tensor([283.15, 5500 * 9.80665], dtype=torch.float64)
    )
    torch.testing.assert_close(
        stations.errors, torch.tensor([1.0, 6 * 9.80665], dtype=torch.float64)
    )


def test_gaps_are_left_out():
    rows = table([0, 1, 2], [0, 1, 2], value=[np.nan, 4.0, 5.0])
    stations = Stations(rows, variables=["t2m"], **GRID)
    assert stations.rows.tolist() == [1, 2]
    assert stations.y.tolist() == [4.0, 5.0]
    assert len(stations) == 2
    assert repr(stations) == "Stations(2 of t2m, in 1 of 4 frames)"


def dates(columns):
    return {**columns, "time": np.array(["2021-06-01T12", "2021-06-01T13"], "datetime64[ns]")}


HOURS = {**GRID, "times": np.arange("2021-06-01T12", "2021-06-01T16", dtype="datetime64[h]")}


@pytest.mark.parametrize("kind", ["pandas", "index", "xarray", "zone", "text", "z", "tensors"])
def test_tables_of_all_kinds_are_read_alike(kind):
    plain = dates(table([0.0, 1.0], [0.0, 1.0], value=[1.0, 2.0]))
    frame = pandas.DataFrame(plain)
    given = {
        "pandas": lambda: frame.rename(columns={"lat": "latitude", "lon": "longitude"}),
        "index": lambda: frame.set_index(["time", "lat"]),
        "xarray": lambda: xarray.Dataset({k: ("obs", v) for k, v in plain.items()}),
        "zone": lambda: frame.assign(
            time=frame.time.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
        ),
        "text": lambda: frame.assign(time=["2021-06-01T12:00", "2021-06-01 13:00"]),
        "z": lambda: {**plain, "time": ["2021-06-01T12:00:00Z", "2021-06-01T13:00:00Z"]},
        "tensors": lambda: plain | {k: torch.tensor(plain[k]) for k in ("lat", "lon", "value")},
    }[kind]()
    fields = torch.randn(1, 4, 1, 8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Stations(given, variables=["t2m"], **HOURS)
    expected = Stations(plain, variables=["t2m"], **HOURS)
    assert found.frames == [0, 1]
    assert torch.equal(found(fields), expected(fields))
    assert torch.equal(found.y, expected.y)


def test_the_constraint_is_the_observation_with_these_errors():
    rows = table([0.0, 10.0], [0.0, 50.0], value=[1.0, 2.0], error=[0.5, 2.0])
    stations = Stations(rows, variables=["t2m"], **GRID)
    constraint = stations.constraint()
    x = torch.randn(3, 4, 1, 8, 16)
    expected = (stations(x) - torch.tensor([1.0, 2.0])) / torch.tensor([0.5, 2.0])
    torch.testing.assert_close(constraint.noisy.residual(x), expected)
    assert constraint.exact is None
    assert constraint.linear


def test_exact_values_have_a_tolerance_and_are_projected():
    rows = table([0.0, 85.0], [0.0, 50.0], value=[1.0, 2.0], error=0.0)
    constraint = Stations(rows, variables=["t2m"], **GRID).constraint(tolerance=1e-6)
    x = constraint.projection(torch.randn(3, 4, 1, 8, 16, dtype=torch.float64))
    assert constraint.noisy is None
    assert constraint.violation(x).max() < 1e-20


def test_exact_values_and_others_mix():
    rows = table([0.0, 1.0, 2.0], [0.0, 5.0, 9.0], error=[0.0, 1.0, 2.0])
    constraint = Stations(rows, variables=["t2m"], **GRID).constraint(tolerance=1e-6)
    x = torch.ones(1, 4, 1, 8, 16)
    assert constraint.exact.residual(x).tolist() == [[1.0]]
    assert constraint.noisy.residual(x).tolist() == [[1.0, 0.5]]


@pytest.mark.parametrize("by_frame", [True, False])
def test_latents_are_decoded_and_frames_without_stations_are_not(by_frame):
    seen = []

    def decode(z):
        seen.append(z.shape)
        return z[..., None, None, None].expand(*z.shape, 1, 8, 16) * 2

    rows = table([0.0, 10.0], [0.0, 50.0], time=[1.0, 3.0])
    stations = Stations(rows, variables=["t2m"], **GRID)
    constraint = stations.constraint(decode, by_frame=by_frame)
    z = torch.arange(8.0).reshape(2, 4).requires_grad_()
    r = constraint.noisy.residual(z)
    assert r.tolist() == [[2.0, 6.0], [10.0, 14.0]]
    assert len(seen) == (2 if by_frame else 1)
    (gradient,) = torch.autograd.grad(r.sum(), z)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 2, 0, 2]] * 2))
    assert stations.values(z, decode, by_frame=by_frame).tolist() == r.tolist()


def test_the_fit_of_an_ensemble_is_told_by_row():
    rows = table([0.0, 10.0, 20.0], [0.0, 50.0, 60.0], value=[1.0, 2.0, 0.0], error=[1, 2, 0.0])
    rows["variable"] = np.array(["t2m", "sp", "t2m"])
    stations = Stations(rows, variables=["t2m", "sp", "q"], **GRID)
    fields = torch.tensor([0.0, 4.0, torch.nan]).reshape(3, 1, 1, 1, 1).expand(3, 4, 3, 8, 16)
    fit = stations.fit(fields)
    assert fit.attrs["members"] == 2, "a member that failed is left out"
    frame = fit.to_dataframe()
    assert frame.index.tolist() == [0, 1, 2]
    assert frame["variable"].tolist() == ["t2m", "sp", "t2m"]
    assert frame["mean"].tolist() == [2, 2, 2]
    np.testing.assert_allclose(frame["spread"], np.sqrt(8))
    np.testing.assert_allclose(frame["misfit"], [1, 0, np.nan])
    np.testing.assert_allclose(frame["chi_square"], [(1 + 9) / 2, 1, np.nan])
    assert fit.attrs["chi_square of t2m"] == 5
    assert fit.attrs["chi_square of sp"] == 1
    assert "chi_square of q" not in fit.attrs
    assert stations.chi_square(fields[:2])["t2m"].tolist() == [1, 9]


def test_the_fit_of_an_ensemble_is_told_by_station():
    rows = table([0.0, 10.0, 0.0, 0.0], [0.0, 50.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0])
    rows |= {"value": np.array([1.0, 2.0, 5.0, 3.0]), "error": np.array([1.0, 2.0, 3.0, 0.0])}
    rows["variable"] = np.array(["t2m", "sp", "t2m", "t2m"])
    stations = Stations(rows, variables=["t2m", "sp", "q"], **GRID)
    noisy = stations.constraint(tolerance=1e-6).noisy
    fields = torch.tensor([0.0, 4.0]).reshape(2, 1, 1, 1, 1).expand(2, 4, 3, 8, 16)
    first, second = stations.by_station(noisy.residual(fields))
    assert (first["lat"], first["lon"], first["variable"], first["values"]) == (0, 0, "t2m", 2)
    # the mean is 2, of values 1 and 5 with errors of 1 and 3
    assert first["error"] == pytest.approx(np.sqrt((1 + 9) / 2))
    assert first["misfit"] == pytest.approx(np.sqrt((1 + 9) / 2))
    assert first["chi_square"] == pytest.approx((1 + 9 + 25 / 9 + 1 / 9) / 4)
    assert (second["lat"], second["variable"], second["values"]) == (10, "sp", 1)
    assert second["misfit"] == pytest.approx(0, abs=1e-6)
    assert second["chi_square"] == pytest.approx(1)


def without(name):
    return lambda: {k: v for k, v in GOOD.items() if k != name}


GOOD = table([0.0, 40.0], [0.0, 5.0], value=[1.0, 2.0])
LIKE = torch.linspace(240, 300, 128).reshape(1, 8, 16)
NAN, INF = np.nan, np.inf

WRONG = {
    "no table": (lambda: 3, {}, "takes a table"),
    "no lat": (without("lat"), {}, "lacks lat"),
    "lengths": ({"value": [1.0]}, {}, "one length"),
    "square": ({"value": [[1.0, 2.0]] * 2}, {}, "one length"),
    "words": ({"value": ["1.0", "hot"]}, {}, "column value must have numbers"),
    "value of dates": ({"value": HOURS["times"][:2]}, {}, "must have numbers"),
    "beyond a pole": ({"lat": [0.0, 91.5]}, {}, "Row 1 .* 91.5, has no latitude"),
    "longitude": ({"lon": [0.0, 400.0]}, {}, "Row 1 .* 400.0, has no longitude"),
    "no place": ({"lat": [NAN, 0.0]}, {}, "Row 0 .* no latitude"),
    "infinite value": ({"value": [INF, 0.0]}, {}, "Row 0 .* infinite value"),
    "no value": ({"value": [NAN, NAN]}, {}, "No row is left"),
    "no rows": ({k: [] for k in GOOD}, {}, "0 rows"),
    "unknown": ({"variable": ["t2m", "t3m"]}, {}, "variable t3m"),
    "level": ({"variable": ["t2m", "z500"]}, {"variables": ["t2m", "z850"]}, "variable z500"),
    "early": ({"time": [-0.1, 0.0]}, {}, "Row 0 .* outside of the frames"),
    "late": ({"time": [3.1, 0.0]}, {}, "outside of the frames"),
    "later": ({"time": [0.0, 3.6]}, {"between": "nearest"}, "Row 1 .* outside of the frames"),
    "dates": ({"time": HOURS["times"][:2]}, {}, "both as dates"),
    "no dates": ({}, {"times": HOURS["times"]}, "both as dates"),
    "missing time": ({"time": [0.0, NAN]}, {}, "lacks 1 of 2 times, .* row 1"),
    "missing date": ({"time": np.array(["NaT", "NaT"], "M8[ns]")}, {}, "lacks 2 of 2 times"),
    "no date": ({"time": ["noon", "midnight"]}, {}, "must have dates or numbers"),
    "twice": ({"lat": [0.0, 0.0], "lon": [0.0, 360.0]}, {}, "Row 1 .* of row 0"),
    "region": ({"lat": [29.0, 40.0]}, WEST, "Row 0 .* outside of the grid"),
    "region's side": ({"lat": [40.0] * 2, "lon": [0.0, 11.0]}, WEST, "Row 1 .* outside"),
    "far from a pole": ({"lat": [0.0, 80.0]}, {"latitude": LATITUDE[2:-2]}, "Row 1 .* outside"),
    "negative": ({"error": [1.0, -2.0]}, {}, "Row 1 .* -2.0, has no standard deviation"),
    "no error": (without("error"), {}, r"Row 0 .* has no error: .*\(2 of 2 rows\)"),
    "one error": ({"error": [1.0, NAN]}, {}, "Row 1 of the table has no error"),
    "infinite error": ({"error": [INF, 1.0]}, {}, "Row 0 .* no standard deviation"),
    "celsius": ({"value": [15.0, 12.0]}, {"like": LIKE}, "Row 0 .* from 240 to 300"),
    "gross": ({"value": [270.0, 9e9]}, {"like": LIKE}, "Row 1 .* from 240 to 300"),
    "like": ({}, {"like": LIKE[:, 1:]}, r"like=\.\.\.\) takes fields of shape"),
    "between": ({}, {"between": "cubic"}, "got 'cubic'"),
    "one name": ({}, {"variables": "t2m"}, "takes the names"),
    "names twice": ({}, {"variables": ["t2m", "2m_temperature"]}, "each once"),
    "errors of none": ({}, {"errors": {"t3m": 1.0}}, "'t3m'"),
    "scale of zero": ({}, {"scale": {"t2m": 0.0}}, "must not be zero"),
    "scale of nothing": ({}, {"scale": {"t2m": NAN}}, "finite numbers"),
    "frames": ({}, {"times": [0.0, 2.0, 1.0]}, "must ascend"),
    "latitudes": ({}, {"latitude": torch.tensor([0.0, 50, 40])}, "must ascend or descend"),
    "far latitudes": ({}, {"latitude": torch.tensor([0.0, 95.0])}, r"within \[-90, 90\]"),
    "longitudes": ({}, {"longitude": torch.tensor([0.0, 180, 360])}, "each meridian once"),
    "one latitude": ({}, {"latitude": torch.tensor(4.0)}, "at least two finite numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name):
    changed, options, message = WRONG[name]
    rows = changed() if callable(changed) else {**GOOD, **changed}
    with pytest.raises(ConstraintError, match=message):
        Stations(rows, **{"variables": ["t2m"], **GRID, **options})


def test_wrong_uses_are_said_in_a_sentence():
    stations = Stations(GOOD, variables=["t2m"], **GRID)
    exact = Stations({**GOOD, "error": [0.0, 1.0]}, variables=["t2m"], **GRID)
    with pytest.raises(ConstraintError, match=r"takes fields of shape .*\(B, 4, 1, 8, 16\)"):
        stations(torch.zeros(1, 4, 8, 16))
    with pytest.raises(ConstraintError, match="1 of 2 values have an error of zero"):
        exact.constraint()
    with pytest.raises(ConstraintError, match="all values have errors"):
        stations.constraint(tolerance=1.0)
    with pytest.raises(ConstraintError, match="decoder as a function, got Tensor"):
        stations.constraint(torch.zeros(3))
    with pytest.raises(ConstraintError, match=r"decoder must return frames .*got \(2, 8, 16\)"):
        stations.constraint(lambda z: z).noisy.residual(torch.zeros(2, 4, 8, 16))
    with pytest.raises(ConstraintError, match="no member has finite values"):
        stations.fit(torch.full((2, 4, 1, 8, 16), torch.nan))


def test_values_that_are_near_the_range_are_taken():
    rows = {**GOOD, "value": [185.0, 355.0]}
    assert len(Stations(rows, variables=["t2m"], like=LIKE, **GRID)) == 2
