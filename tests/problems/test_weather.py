import pytest
import torch

from feasibly.denoisers import Denoiser
from feasibly.metrics import area_weights
from feasibly.minimizers import LBFGS
from feasibly.nn import SphereAutoencoder
from feasibly.problems import weather
from feasibly.problems.weather import LATITUDE, OBSERVATIONS, Weather
from feasibly.schedules import LogLogit


class White(Denoiser):
    """The prior of independent standard normal latents."""

    def mean(self, x, sigma):
        return x / (1 + sigma**2)


AREA = area_weights(LATITUDE).double()


@pytest.fixture(scope="module")
def days():
    """Smooth fields in place of the solver's."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(16, 24, 3, 4, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse.flatten(0, 1), size=(32, 64), mode="bicubic")
    scale = torch.tensor([1700.0, 15.0, 15.0])[:, None, None]
    return scale * smooth.unflatten(0, (16, 24))


@pytest.fixture(scope="module")
def autoencoder(days):
    torch.manual_seed(0)
    model = SphereAutoencoder(channels=(16, 16, 16)).eval().requires_grad_(False)
    model.fit_fields(days[:, 0])
    model.fit_latents(days[:, 0])
    return model


@pytest.fixture
def make(autoencoder, days, monkeypatch):
    monkeypatch.setattr(weather, "fresh_days", lambda block, members: days[list(members)] + block)
    prior = White(LogLogit(1e-3, 1e2, spread=2.0))

    def of(name):
        return Weather(name, prior, autoencoder)

    return of


def test_references_are_whole_days_for_the_state_and_decoded_ones_else(make, days, autoencoder):
    assert torch.equal(make("state").reference(3), days[3])
    assert torch.equal(make("state").reference(17), days[1] + 1), "the second block"
    expected = autoencoder.decode(autoencoder.encode(days[3]))
    torch.testing.assert_close(make("wind").reference(3), expected)


@pytest.mark.parametrize("name", [n for n in OBSERVATIONS if n != "state"])
def test_what_a_decoded_reference_shows_can_be_met(make, days, autoencoder, name):
    problem = make(name)
    reference = problem.reference(2)
    constraint = problem.constraint(reference, 2)
    z = autoencoder.encode(days[2])[None]
    assert constraint.is_feasible(z).all()
    other = autoencoder.encode(days[5])[None]
    assert not constraint.is_feasible(other).any()
    hours = problem.observed
    moved = z.clone()
    unseen = [h for h in range(24) if h not in hours]
    moved[:, unseen] += 1
    assert constraint.is_feasible(moved).all(), "other hours are not observed"


def test_observations_are_what_their_names_say(make, autoencoder, days):
    x = days[:2, :3]  # two members of three hours
    problem = make("state")
    units = autoencoder.standardize(x)
    torch.testing.assert_close(problem.values("state", 0)(x), units)
    wind = problem.values("wind", 7)(x)
    points = problem.points("wind", 7)
    speed = (x[:, :, 1] ** 2 + x[:, :, 2] ** 2).sqrt()[..., points]
    torch.testing.assert_close(wind * autoencoder.scale[1].item(), speed)
    sine = problem.values("sine", 7)(x)
    torch.testing.assert_close(sine, (2 * units[..., problem.points("sine", 7)]).sin())
    zonal = problem.values("zonal", 0)(x)
    torch.testing.assert_close(zonal, units.mean(dim=-1))
    mass = problem.values("mass", 0)(x)
    mean = (x[:, :, 0].double() * AREA).mean(dim=(-1, -2)) / autoencoder.scale[0].item()
    torch.testing.assert_close(mass.double(), mean, atol=1e-5, rtol=1e-4)


def test_observed_points_belong_to_the_reference_and_cover_the_sphere_evenly(make):
    problem = make("wind")
    masks = torch.stack([problem.points("wind", k) for k in range(64)])
    assert (masks.sum(dim=(1, 2)) == 205).all()
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[3], problem.points("wind", 3))
    rows = masks.sum(dim=(0, 2)).double()
    polar, tropical = rows[[0, 1, 30, 31]].sum(), rows[14:18].sum()
    assert polar < 0.3 * tropical  # by area 0.12; the draws are without replacement


@pytest.mark.slow
def test_the_floor_is_below_what_the_encoder_reaches_and_another_start_goes_no_lower(
    make, autoencoder, monkeypatch
):
    monkeypatch.setattr(weather, "FLOOR_STEPS", 200)  # more do not lower it by a ten-thousandth
    problem = make("state")
    reference = problem.reference(1)
    floor = problem.floor(reference)
    noon = reference[12][None]

    def violation(z):
        return (
            autoencoder.standardize(autoencoder.decode(z) - noon + autoencoder.climate)
            .square()
            .sum()
        )

    encoded = autoencoder.encode(noon)
    assert 0 < floor < 0.999 * violation(encoded).item()
    constraint = problem.constraint(reference)
    assert constraint.tolerance == pytest.approx(floor + 1e-4 * 3 * 32 * 64)
    start = torch.randn(1, 24, 16, 4, 8, generator=torch.Generator().manual_seed(5))
    found = LBFGS(200, max_step=None)(
        lambda z: (constraint.residual(z), z), start
    )  # the only hour that counts is noon
    assert found.value.item() >= 0.999 * floor
    assert found.value.item() <= constraint.tolerance, "and a start that is far off gets there"


def test_the_mixed_constraint_holds_only_if_all_of_it_does(make, autoencoder, days):
    problem = make("mixed")
    reference = problem.reference(2)
    constraint = problem.constraint(reference, 2)
    z = autoencoder.encode(days[2])[None]
    assert constraint.is_feasible(z).all()
    wild = z.clone()
    wild[:, 5] *= 3  # an hour that no station sees
    assert not constraint.is_feasible(wild).any()
    bounds = constraint.constraints[2]
    assert bounds.violation(wild) > 100 * bounds.tolerance, "its wind is beyond the strongest"


def test_scores_are_means_over_the_sphere_by_variable_and_hour(make, autoencoder, days):
    problem = make("wind")
    z = torch.stack([autoencoder.encode(day) for day in days[:4]])
    feasible = torch.tensor([True, True, True, False])
    scores = problem.scores(z, feasible, days[5])
    x = autoencoder.decode(z).double()
    assert scores["feasible"] == 0.75
    error = x - days[5].double()
    mse = (error.square() * AREA).mean(dim=(0, 3, 4)).T
    torch.testing.assert_close(
        torch.tensor(scores["mse"], dtype=torch.float64), mse, rtol=1e-4, atol=0
    )
    mean = ((x.mean(dim=0) - days[5].double()).square() * AREA).mean(dim=(2, 3)).T
    torch.testing.assert_close(
        torch.tensor(scores["mean_se"], dtype=torch.float64), mean, rtol=1e-4, atol=0
    )
    variance = (x.var(dim=0) * AREA).mean(dim=(2, 3)).T
    torch.testing.assert_close(
        torch.tensor(scores["variance"], dtype=torch.float64), variance, rtol=1e-4, atol=0
    )
    assert len(scores["ranks"][0]) == 5
    z[1] = torch.nan
    assert problem.scores(z, feasible, days[5])["mse"] != scores["mse"]
    z[2:] = torch.nan
    assert problem.scores(z, feasible, days[5]) == {"feasible": 0.75}


def test_unknown_observations_are_refused():
    with pytest.raises(ValueError, match="no observation 'rain'"):
        Weather("rain")
