import math

import pytest
import torch

from feasibly.problems import shallow_water
from feasibly.problems.shallow_water import (
    DAY,
    GRAVITY,
    HOUR,
    OMEGA,
    RADIUS,
    Planet,
    ShallowWater,
    initial_conditions,
    simulate,
)
from feasibly.problems.sphere import Gaussian, equiangular


def start(sphere, n=1, seed=0, degrees=15):
    """States in balance, with jets and eddies up to a degree."""
    x = initial_conditions(n, torch.Generator().manual_seed(seed), Planet(), sphere)
    zeta = x[:, 0].clone()
    zeta[:, degrees + 1 :] = 0
    return ShallowWater(sphere).balance(zeta, Planet.geopotential)


def run(equations, x, hours, dt):
    for _ in range(round(hours * HOUR / dt)):
        x = equations.step(x, dt)
    return x


def size(x):
    """The norm of states without the mean of the geopotential."""
    x = x.clone()
    x[..., 2, 0, 0] = 0
    return torch.linalg.vector_norm(x, dim=(-2, -1))


def mean(sphere, field):
    return (field.mean(dim=-1) * sphere.weights).sum(dim=-1)


@pytest.mark.slow
def test_solid_rotation_about_a_tilted_axis_is_steady():
    """Williamson's second case, at 45 degrees: there all terms are at work, and must cancel."""
    sphere, u_0, alpha = Gaussian(21, 32, RADIUS), 2 * math.pi * RADIUS / (12 * DAY), math.pi / 4
    phi, longitude = sphere.latitudes.deg2rad()[:, None], sphere.longitudes.deg2rad()
    axis = phi.sin() * math.cos(alpha) - longitude.cos() * phi.cos() * math.sin(alpha)
    geopotential = 2.94e4 - (RADIUS * OMEGA * u_0 + u_0**2 / 2) * axis**2
    equations = ShallowWater(sphere)
    equations.coriolis = 2 * OMEGA * axis
    zeta = sphere.analysis(2 * u_0 / RADIUS * axis)
    x = torch.stack((zeta, 0 * zeta, sphere.analysis(geopotential)))[None]
    balanced = equations.balance(zeta, x[0, 2, 0, 0].item())
    torch.testing.assert_close(balanced, x[0], rtol=0, atol=1e-7)
    drift = size(run(equations, x, 24, 1200.0) - x) / size(x)[:, [0, 0, 2]]
    assert drift.max() < 1e-10
    equations.coriolis = 2 * OMEGA * phi.sin()
    assert (size(run(equations, x, 24, 1200.0) - x)[:, 0] > 0.01 * size(x)[:, 0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("l", [1, 12])
def test_gravity_waves_have_their_frequency(l):
    sphere, depth = Gaussian(15, 24, RADIUS), 5e4
    equations = ShallowWater(sphere)
    equations.coriolis = 0.0
    x = torch.zeros(1, 3, 16, 16, dtype=torch.complex128)
    x[0, 2, 0, 0], x[0, 2, l, 1] = depth, 1e-3
    period = 2 * math.pi * RADIUS / math.sqrt(depth * l * (l + 1))
    for _ in range(240):
        x = equations.step(x, period / 200)
    expected = 1e-3 * math.cos(2 * math.pi * 240 / 200)
    assert x[0, 2, l, 1].real.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_mass_energy_and_potential_enstrophy_are_conserved():
    """In a day without damping, of a flow that the truncation resolves."""
    sphere = Gaussian(42, 64, RADIUS)
    equations, x = ShallowWater(sphere), start(sphere, degrees=8)

    def invariants(x):
        zeta, delta, phi = x.unbind(1)
        u, v = sphere.wind(zeta, delta)
        Phi, eta = sphere.synthesis(phi), sphere.synthesis(zeta) + equations.coriolis
        # the potential energy of the mean is a constant, which would hide a loss
        energy = Phi * (u**2 + v**2) + (Phi - Planet.geopotential) ** 2
        return [mean(sphere, f).item() for f in (Phi, energy, eta**2 / Phi)]

    end = run(equations, x, 24, 600.0)
    assert (size(end - x)[:, 0] > 0.3 * size(x)[:, 0]).all(), "the flow does evolve"
    (mass, energy, enstrophy), after = invariants(x), invariants(end)
    assert after[0] == pytest.approx(mass, rel=1e-12)
    assert after[1] == pytest.approx(energy, rel=2e-8)
    assert after[2] == pytest.approx(enstrophy, rel=2e-8)


def test_the_jets_are_steady_but_for_diffusion():
    sphere, planet = Gaussian(31, 48, RADIUS), Planet()
    jets = initial_conditions(1, torch.Generator(), planet, sphere)[:, 0]
    jets[:, :, 1:] = 0
    x = start(sphere)
    equations = ShallowWater.of(planet, sphere)
    target = equations.source * planet.relaxation
    u, v = sphere.wind(target[0], target[1])
    assert u.max().item() == pytest.approx(60, abs=1)
    assert sphere.latitudes[u[:, 0].argmax()].abs().item() == pytest.approx(45, abs=2)
    assert v.abs().max() < 1e-10
    diffused = (sphere.laplacian / sphere.laplacian[-1]) ** 4 / planet.diffusion * target
    left = equations.tendency(target[None])[0] + diffused
    assert (size(left) <= 1e-9 * size(target)[[0, 0, 2]] / HOUR).all()
    assert (size(equations.tendency(x))[:, 0] > 0.1 * size(x)[:, 0] / DAY).all()


def test_eddies_are_fed_in_the_band_alone():
    sphere = Gaussian(21, 32, RADIUS)
    fed, unfed = (ShallowWater.of(Planet(growth=g), sphere) for g in (1 / DAY, 0.0))
    x = start(sphere)
    difference = (fed.tendency(x) - unfed.tendency(x))[0]
    expected = torch.zeros_like(difference)
    expected[0, 8:15, 1:] = x[0, 0, 8:15, 1:] / DAY
    torch.testing.assert_close(difference, expected, rtol=0, atol=1e-17)
    assert expected.abs().max() > 1e-12


def test_a_member_alone_is_the_member_in_a_batch():
    sphere = Gaussian(21, 32, RADIUS)
    equations, x = ShallowWater.of(Planet(), sphere), start(sphere, n=5)
    batch = run(equations, x, 12, 1800.0)
    for i in (0, 3):
        alone = run(equations, x[i : i + 1], 12, 1800.0)
        assert (size(alone - batch[i]) <= 1e-11 * size(batch[i])).all()


def test_initial_conditions_are_the_same_at_all_resolutions():
    coarse, fine = (start(Gaussian(T, n, RADIUS)) for T, n in ((21, 32), (42, 64)))
    torch.testing.assert_close(coarse[:, 0, :16, 1:16], fine[:, 0, :16, 1:16], rtol=0, atol=1e-18)
    v = Gaussian(42, 64, RADIUS).wind(fine[:, 0], fine[:, 1])[1]
    assert 5 < v.std() < 20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(shallow_water, "BLOCK", 2)
    monkeypatch.setattr(shallow_water, "SPIN_UP", 0)


def test_a_block_is_determined_by_its_number_and_the_seed(small):
    a, same, next_one, other = (
        simulate(*key, 3, "T21") for key in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert a.shape == (2, 3, 3, 32, 64)
    assert a.dtype == torch.float32
    assert torch.equal(a, same)
    assert not torch.equal(a, next_one)
    assert not torch.equal(a, other)
    assert not torch.equal(a[0], a[1])
    torch.testing.assert_close(simulate(0, 0, 3, "T21", members=[1]), a[1:], rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("resolution", ["T21", "T42"])
def test_the_output_is_the_state_hour_by_hour(small, resolution):
    """In physical units, without the degrees beyond the grid's."""
    weather = simulate(0, 5, 3, resolution)
    truncation, nlat, dt = shallow_water.RESOLUTIONS[resolution]
    sphere, generator = Gaussian(truncation, nlat, RADIUS), torch.Generator()
    x = initial_conditions(2, generator.manual_seed(5 * 2**31), Planet(), sphere)
    x = run(ShallowWater.of(Planet(), sphere), x, 2, dt)
    L = min(truncation, 31) + 1
    x = x[..., :L, :L]
    grid = equiangular(L - 1, 32, RADIUS)
    u, v = grid.wind(x[:, 0], x[:, 1])
    expected = torch.stack((grid.synthesis(x[:, 2]), u, v), dim=1).float()
    torch.testing.assert_close(weather[:, 2], expected, rtol=1e-6, atol=1e-4)
    area = grid.latitudes.deg2rad().cos()
    height = (weather[:, :, 0].mean(dim=-1) @ (area / area.sum()).float()) / GRAVITY
    assert height.mean().item() == pytest.approx(5500, abs=5)


def test_a_planet_whose_wind_outruns_the_time_step_is_named(small):
    with pytest.raises(
        ArithmeticError, match=r"Member \d of block 3 .* hour \d+\. .* 1800 s at T21"
    ):
        simulate(3, 0, 48, "T21", Planet(jet=2000.0))


def test_bad_arguments_are_named(small):
    with pytest.raises(ValueError, match=r"resolution=.* must be one of \['T21', .* got 'T63'"):
        simulate(0, 0, resolution="T63")
    with pytest.raises(ValueError, match=r"hours=\.\.\.\) must be at least 1, got 0"):
        simulate(0, 0, hours=0)
