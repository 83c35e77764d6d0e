"""The ensemble scores of `feasibly.metrics`."""

import numpy as np
import pytest
import torch
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from scores.probability import crps_for_ensemble

from feasibly.metrics import (
    area_weights,
    crps,
    max_norm,
    rank_histogram,
    rmse,
    skill,
    spread,
    spread_skill_ratio,
)

SCORES = {"rmse": rmse, "skill": skill, "crps": crps, "ratio": spread_skill_ratio}


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def case(cases=3, members=5, times=4, points=6, seed=0):
    return normal(cases, members, times, points, seed=seed), normal(cases, times, points, seed=99)


def hand():
    """One case, two members, one time, two points."""
    return torch.tensor([[[[1.0, 0.0]], [[3.0, 4.0]]]]), torch.tensor([[[1.0, 2.0]]])


@pytest.mark.parametrize(
    ("score", "value"),
    [
        (rmse, ((0 + 4 + 4 + 4) / 4) ** 0.5),
        (skill, ((1 + 0) / 2) ** 0.5),  # means 2 and 2
        (lambda x, y: spread(x), ((2 + 8) / 2) ** 0.5),
        (spread_skill_ratio, (3 / 2) ** 0.5 * (5 / 0.5) ** 0.5),
        # per point: mean error (1, 2) minus the members' distance (2, 4) over 2
        (crps, 0.0),
    ],
    ids=["rmse", "skill", "spread", "ratio", "crps"],
)
def test_two_members_on_two_points_score_what_is_worked_out_by_hand(score, value):
    x, y = hand()
    assert score(x, y).tolist() == [pytest.approx(value)]


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 7), cases=st.integers(1, 3), seed=st.integers(0, 1000))
def test_the_crps_is_that_of_the_scores_package(members, cases, seed):
    x, y = case(cases, members, seed=seed)
    oracle = crps_for_ensemble(
        xarray.DataArray(x.numpy(), dims=("case", "member", "time", "x")),
        xarray.DataArray(y.numpy(), dims=("case", "time", "x")),
        "member",
        method="fair",
        preserve_dims=["time"],
    )
    np.testing.assert_allclose(crps(x, y).numpy(), oracle.to_numpy(), rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 9), seed=st.integers(0, 1000))
def test_the_error_of_members_is_that_of_their_mean_plus_their_variance(members, seed):
    x, y = case(members=members, seed=seed)
    expected = skill(x, y) ** 2 + (members - 1) / members * spread(x) ** 2
    torch.testing.assert_close(rmse(x, y) ** 2, expected)


def test_cases_are_averaged_before_the_root():
    x, y = case(cases=2)
    one, other = rmse(x[:1], y[:1]), rmse(x[1:], y[1:])
    torch.testing.assert_close(rmse(x, y), ((one**2 + other**2) / 2).sqrt())


def test_ranks_count_the_members_below():
    x, y = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1), torch.tensor([[[2.5]]])
    assert rank_histogram(x, y).tolist() == [0, 0, 1, 0]


def test_max_norm_is_one_for_the_reference_and_grows_with_a_jump():
    y = normal(2, 6, 10)
    x = torch.stack((y, -y), dim=1)
    torch.testing.assert_close(max_norm(x, y), torch.ones(2, 2, dtype=y.dtype))
    largest = y.diff(dim=1).abs().amax(dim=(1, 2))
    x[0, 1, 3:, 4] += 50
    expected = (50 + (y[0, 3, 4] - y[0, 2, 4]).neg()) / largest[0]
    torch.testing.assert_close(max_norm(x, y)[0, 1], expected)
    assert max_norm(x, y)[0, 0] == 1


@pytest.mark.parametrize("score", [*SCORES.values(), rank_histogram, max_norm])
def test_shapes_that_do_not_fit_are_refused(score):
    x, y = case()
    with pytest.raises(ValueError, match=r"\(K, M, T, \*\)"):
        score(x, y[:2])


@pytest.mark.parametrize("score", [crps, spread_skill_ratio])
def test_a_spread_needs_two_members(score):
    x, y = case(members=1)
    with pytest.raises(ValueError, match="at least 2 members, got 1"):
        score(x, y)


def on_the_sphere(latitudes, cases=3, members=5, times=4, longitudes=6):
    shape = (latitudes, longitudes)
    x = normal(cases, members, times, *shape)
    return x, normal(cases, times, *shape, seed=99)


def test_areas_are_those_of_the_cells_of_the_sphere():
    centred = torch.linspace(-90 + 2.8125, 90 - 2.8125, 32, dtype=torch.float64)
    weights = area_weights(centred)
    assert weights.shape == (32, 1)
    expected = centred.deg2rad().cos()[:, None]
    torch.testing.assert_close(weights, expected / expected.mean())
    torch.testing.assert_close(area_weights(centred.flip(0)), weights)
    with_poles = area_weights(torch.linspace(90, -90, 5, dtype=torch.float64))
    s, t = np.sin(np.deg2rad([67.5, 22.5]))
    np.testing.assert_allclose(
        with_poles[:, 0], 2.5 * np.array([1 - s, s - t, 2 * t, s - t, 1 - s])
    )


@pytest.mark.parametrize("latitude", [[0.0, 10.0, 5.0], [0.0, 0.0], [0.0, 95.0]])
def test_latitudes_out_of_order_are_refused(latitude):
    with pytest.raises(ValueError, match="ascending or descending"):
        area_weights(torch.tensor(latitude))


def test_weighted_scores_are_those_of_weatherbench2_worked_in_another_way():
    """Its formulas (Rasp et al., 2024, Section 4), with xarray's weighted means; `scores` for the
    CRPS."""
    latitude = torch.linspace(-80, 80, 9, dtype=torch.float64)
    x, y = on_the_sphere(9)
    dims = ("case", "member", "time", "lat", "lon")
    fc = xarray.DataArray(x.numpy(), dims=dims)
    ob = xarray.DataArray(y.numpy(), dims=("case", "time", "lat", "lon"))
    bounds = np.deg2rad(np.r_[-90, (latitude[1:] + latitude[:-1]) / 2, 90])
    area = xarray.DataArray(np.diff(np.sin(bounds)), dims="lat")

    def mean(v):
        return v.weighted(area).mean(("lat", "lon")).mean("case")

    weights = area_weights(latitude)
    expected = {
        rmse: np.sqrt(mean(((fc - ob) ** 2).mean("member"))),
        skill: np.sqrt(mean((fc.mean("member") - ob) ** 2)),
        crps: mean(crps_for_ensemble(fc, ob, "member", method="fair", preserve_dims="all")),
    }
    for score, value in expected.items():
        np.testing.assert_allclose(score(x, y, weights), value, rtol=1e-12)
        assert not np.allclose(score(x, y), value, rtol=1e-3)
    variance = np.sqrt(mean(fc.var("member", ddof=1)))
    np.testing.assert_allclose(spread(x, weights), variance, rtol=1e-12)
    ratio = np.sqrt(6 / 5) * variance / expected[skill]
    np.testing.assert_allclose(spread_skill_ratio(x, y, weights), ratio, rtol=1e-12)
