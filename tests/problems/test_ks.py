import math

import pytest
import torch

from feasibly import problems
from feasibly.metrics import crps, rmse, skill, spread
from feasibly.oracles import Gaussian
from feasibly.problems import ks_solver
from feasibly.problems.ks import (
    KS,
    OBSERVATIONS,
    RMS,
    SUPPORT,
    energy_spectrum,
    log_spectral_distance,
    residual,
    spectrum_distance,
)
from feasibly.schedules import LogLogit


@pytest.fixture(scope="module")
def trajectories():
    """Four solved trajectories of 64 x 64 points after a shorter transient."""
    start = ks_solver.initial_conditions(4, torch.Generator().manual_seed(0), points=64)
    frames = ks_solver.bdf1(start, 812)
    return (frames[:, 300::8] / RMS).float()


@pytest.fixture(scope="module")
def problem():
    nothing = torch.nn.Identity()  # no test asks the prior
    return {name: KS(name, nothing) for name in OBSERVATIONS}


def test_observations_see_the_papers_frames(problem, trajectories):
    x, y = trajectories[:2]
    diff = {frame: (torch.sin(x[frame]) - torch.sin(y[frame])) for frame in (0, 32, 63)}
    c = {name: p.constraint(y).violation(x[None]).item() for name, p in problem.items()}
    assert c["sine-1"] == pytest.approx(diff[0].square().sum().item())
    assert c["linear-1"] == pytest.approx((x[0] - y[0]).square().sum().item())
    # 0, 64 and 127 of 128 frames are 0, 31.5 -> 32 and 63 of 64
    assert c["sine-3"] == pytest.approx(sum(d.square().sum().item() for d in diff.values()))


def test_the_reference_is_feasible_and_so_is_another_solution_of_the_sine(problem, trajectories):
    y = trajectories[0]
    for p in problem.values():
        assert p.constraint(y).is_feasible(y[None]).all()
    folded = torch.where(y > 0.5, math.pi - y, y)[None]
    assert problem["sine-3"].constraint(y).is_feasible(folded).all()
    assert not problem["linear-1"].constraint(y).is_feasible(folded).any()


def test_a_reference_is_a_function_of_its_number_alone(monkeypatch):
    monkeypatch.setitem(SUPPORT, 8, SUPPORT[64])
    p = KS("sine-1", Gaussian(torch.zeros(64), torch.eye(64), LogLogit()), size=8)
    first, second = p.reference(0), p.reference(1)
    assert first.shape == (8, 8)
    assert torch.equal(first, p.reference(0))
    assert not torch.equal(first, second)


def test_the_residual_is_worked_out_by_hand_for_a_steady_wave():
    # u = a cos(k x) / RMS, at rest: N = (k^4 - k^2) a cos(k x) - a^2 k sin(k x) cos(k x)
    k, a = 2 * math.pi * 5 / 64, 0.7
    u = (a / RMS) * torch.cos(k * torch.arange(64.0))[None, None].expand(1, 64, 64)
    square = ((k**4 - k**2) * a) ** 2 / 2 + (a**2 * k / 2) ** 2 / 2
    assert residual(u).item() == pytest.approx(square**0.5, rel=1e-5)


def test_the_energy_of_a_wave_is_in_its_mode():
    u = 3 * torch.cos(2 * math.pi * 5 * torch.arange(64) / 64 + 1).expand(2, 8, 64)
    energy = energy_spectrum(u)
    assert energy.shape == (33,)
    assert energy[5].item() == pytest.approx(9 / 4)
    energy[5] = 0
    assert energy.max() < 1e-12


def test_the_spectrum_distance_is_the_worst_relative_difference(trajectories):
    x = trajectories.double()
    assert spectrum_distance(x, x) == 0
    assert spectrum_distance(2 * x, x) == pytest.approx(3)
    x_hat = torch.fft.rfft(x)
    x_hat[..., 7] *= 1.2
    assert spectrum_distance(torch.fft.irfft(x_hat, n=64), x) == pytest.approx(0.44)
    x_hat[..., 25] *= 3  # beyond the modes that count
    assert spectrum_distance(torch.fft.irfft(x_hat, n=64), x) == pytest.approx(0.44)


def test_the_log_spectral_distance_averages_over_modes(trajectories):
    x = trajectories.double()
    assert log_spectral_distance(x, x) == 0
    assert log_spectral_distance(2 * x, x) == pytest.approx(math.log(4))
    x_hat = torch.fft.rfft(x)
    x_hat[..., 7] *= 3
    expected = math.log(9) / 20**0.5
    assert log_spectral_distance(torch.fft.irfft(x_hat, n=64), x) == pytest.approx(expected)


def test_an_unknown_observation_or_size_is_refused():
    with pytest.raises(ValueError, match="'cosine'"):
        KS("cosine")
    with pytest.raises(ValueError, match=r"no bounds of samples for size=32, only for \[64\]"):
        KS("sine-1", torch.nn.Identity(), size=32)


def test_solutions_are_in_the_support_and_what_a_sine_lets_through_is_not(problem, trajectories):
    p = problem["sine-3"]
    assert p.in_support(trajectories).all()
    blown = trajectories.clone()
    blown[:, 10, 3] += 2 * math.pi
    assert not p.in_support(blown).any()
    spliced = torch.cat((trajectories[:2, :32], trajectories[2:, 32:]), dim=1)
    assert not p.in_support(spliced).any()
    assert not p.in_support(1.5 * trajectories).any()


def test_scores_are_those_of_the_metrics_before_their_roots(problem, trajectories):
    p, y = problem["sine-3"], trajectories[0]
    noise = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(0))
    x = y + 0.01 * noise
    feasible = torch.tensor([True, True, False, True, True])
    scores = p.scores(x, feasible, y)
    case = x[None].double(), y[None].double()
    for name, score in (("mse", rmse), ("mean_se", skill)):
        assert scores[name] == pytest.approx((score(*case) ** 2).tolist(), rel=1e-4)
    assert scores["variance"] == pytest.approx((spread(case[0]) ** 2).tolist(), rel=1e-4)
    assert scores["crps"] == pytest.approx(crps(*case).tolist(), rel=1e-4)
    assert sum(scores["ranks"]) == pytest.approx(1, abs=1e-3)
    assert scores["feasible"] == 0.8
    r = residual(x.double())
    assert scores["residual_feasible"] == pytest.approx(r[feasible].mean().item())
    assert scores["residual"] == pytest.approx(r.mean().item())


def test_a_member_that_is_not_finite_counts_as_failed_and_spoils_no_score(problem, trajectories):
    p, y = problem["sine-3"], trajectories[0]
    x = torch.cat((trajectories, torch.full((1, 64, 64), torch.nan)))
    feasible = p.constraint(y).is_feasible(x)
    scores, others = p.scores(x, feasible, y), p.scores(x[:4], feasible[:4], y)
    assert scores["feasible"] == scores["joint"] == 0.2
    assert scores["on_manifold"] == 0.8
    assert all(scores[k] == others[k] for k in ("mse", "crps", "max_norm", "residual"))
    nothing = p.scores(torch.full_like(x, torch.nan), torch.zeros(5, dtype=torch.bool), y)
    assert nothing == {"feasible": 0, "on_manifold": 0, "joint": 0}


def test_feasible_members_that_left_the_data_are_named_with_the_reason(problem, trajectories):
    p, y = problem["sine-3"], trajectories[0]
    blown = y.clone()
    blown[32, 3] += 2 * math.pi  # which no sine can see
    x = torch.stack((y, blown, trajectories[1] + 5))
    feasible = p.constraint(y).is_feasible(x)
    assert feasible.tolist() == [True, True, False]
    assert not p.in_support(x)[1:].any()
    failures = p.failures(x, feasible)
    assert list(failures) == [1]
    for reason in ("range", "change", "residual"):
        assert f"{reason} " in failures[1]
    assert "> 2.8" in failures[1]


def test_the_axes_of_the_shipped_trajectories_are_known():
    layout = problems.layout("ks", (64, 64))
    assert layout is not None
    layout.check((64, 64))
    assert [axis.name for axis in layout.axes] == ["time", "x"]
    assert [axis.values[1] for axis in layout.axes] == pytest.approx([0.8, 1.0])


@pytest.mark.parametrize(("prior", "shape"), [("banana", (2,)), ("ks", (2,)), ("a:b", (64, 64))])
def test_other_axes_are_only_numbered(prior, shape):
    assert problems.layout(prior, shape) is None
