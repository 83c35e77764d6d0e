"""Rejection against exact conditional distributions.

Statistics are of N samples with fixed seeds, so that a test is missed by a change of the code and
not by chance; bounds are five standard errors or more of what is exact, and so a fresh seed would
miss one in some 10^6.
"""

import math
import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch

from feasibly import CalibrationWarning, SamplingError, members
from feasibly.constraints import Equality, Linear, log_volume
from feasibly.minimizers import GaussNewton
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.problem import DryRun
from feasibly.randomness import MemberNoise
from feasibly.samplers import Rejection
from feasibly.samplers.answers import answers
from feasibly.samplers.rejection import Pilot
from feasibly.schedules import VP, LogLogit, Rectified
from tests.helpers import on, sampled

N = 1024
FAST = {"minimize": GaussNewton()}  # enough for one residual
MEANS = torch.tensor([[-1.5, 0.4], [0.0, -0.5], [1.5, 0.4]]).double()
WEIGHTS = torch.tensor([0.25, 0.5, 0.25]).double()
STD = 0.3
NORMAL = torch.tensor([0.1, 1.0]).double()


def mixture(schedule):
    return GaussianMixture(WEIGHTS, MEANS, STD**2 * torch.eye(2).expand(3, 2, 2), schedule)


def line(offset):
    return Equality(lambda x: (x @ NORMAL.to(x) - offset)[:, None], tolerance=1e-8)


def mode_weights(offset):
    """The exact weights of the components on a line n . x = offset."""
    distance = (MEANS @ NORMAL - offset) / NORMAL.norm()
    return (WEIGHTS.log() - distance.square() / (2 * STD**2)).softmax(dim=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "steps", "offset", "largest"),
    [(LogLogit(), 48, 0.1, 0.07), (VP(), 48, 0.0, 0.07), (Rectified(), 8, 0.0, 0.2)],
    ids=["exploding", "preserving", "few low levels"],
)
def test_mode_weights_of_a_mixture_on_a_line(schedule, steps, offset, largest):
    """A total variation of 0.014 is the noise of N samples. With 8 steps no level but the last is
    below `level`; the constraint acts all the same, and mode weights are those of a coarse
    unconditional sample."""
    kernel = on(Rejection(steps=steps, tries=32, **FAST), mixture(schedule), line(offset))
    result = sampled(kernel, N, (2,), attempts=2)
    assert result.feasible.double().mean() > 0.99
    nearest = (result.samples[:, None] - MEANS).norm(dim=-1).argmin(dim=1)
    shares = torch.bincount(nearest, minlength=3) / N
    assert (shares - mode_weights(offset)).abs().sum() / 2 < largest


ROUND = Gaussian(torch.tensor([0.6, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 0.36]]), LogLogit())


def circle_density(theta):
    x, y = theta.cos(), theta.sin()
    return torch.exp(-((x - 0.6) ** 2) / 2 - y**2 / (2 * 0.36))


def mean_cosines(p, theta, n=3):
    p = p / p.sum()
    return torch.stack([(p * (k * theta).cos()).sum() for k in range(1, n + 1)])


@pytest.mark.slow
def test_a_circle_has_the_density_of_the_tube_and_that_of_the_surface_by_log_volume():
    """The residual is steep where x is large, so that the two densities differ."""

    def steep(x):
        return torch.exp(0.8 * x[:, :1]) * (x.norm(dim=1, keepdim=True) - 1)

    constraint = Equality(steep, tolerance=1e-8)
    # enough steps for the unconditional part, which DDPM makes, and tries for what is rare
    kernel = on(Rejection(steps=96, tries=48, **FAST), ROUND, constraint)
    result = sampled(kernel, N, (2,), attempts=4)
    assert result.feasible.double().mean() > 0.995

    angle = torch.atan2(result.samples[:, 1], result.samples[:, 0]).double()
    theta = torch.arange(4096).double() / 4096 * 2 * math.pi
    surface = circle_density(theta)
    tube = surface / torch.exp(0.8 * theta.cos())
    even = torch.full_like(angle, 1 / len(angle))
    weights = log_volume(constraint, result.samples).double().softmax(dim=0)
    # the first cosines differ by 0.46, and the standard errors are 0.023 and 0.029
    assert (mean_cosines(even, angle) - mean_cosines(tube, theta)).abs().max() < 0.1
    assert (mean_cosines(weights, angle) - mean_cosines(surface, theta)).abs().max() < 0.13
    assert (mean_cosines(tube, theta) - mean_cosines(surface, theta)).abs().max() > 0.4


@dataclass(frozen=True)
class Known(Rejection):
    """Has a likelihood of 3 on the right and of 1 on the left, and notes what it is asked."""

    asked: list = field(default_factory=list, repr=False)

    def log_likelihood(self, x_t, t):
        self.asked.append((members.current(), x_t[:, 0].clone()))
        return torch.where(x_t[:, 0] > 0, math.log(3.0), 0.0).to(x_t)


def begin(tries, n=4096):
    """Begins members whose likelihoods are known, and the pilot's is 4."""
    prior = Gaussian(torch.zeros(8), torch.eye(8), LogLogit())
    noise = MemberNoise(0, range(n), (8,))
    constraint = Equality(lambda x: x[:, :1], 1e-8)
    kernel = on(Known(steps=6, tries=tries), prior, constraint, (8,))
    answer = answers(kernel, noise)[0][:1]
    pilot = Pilot(repr(kernel), math.log(4.0), answer, answer[:, :1])
    with torch.no_grad(), members.calling(range(n)):
        start = replace(kernel, pilot=pilot).begin(noise)
    return start, kernel.asked


def test_a_try_is_kept_with_its_likelihood_relative_to_the_pilots():
    _, asked = begin(tries=2)
    (_, x), (again, _) = asked
    for side, expected in ((x > 0, 3 / 4), (x <= 0, 1 / 4)):
        n = int(side.sum())
        kept = 1 - side[again].double().sum().item() / n
        # five standard errors, missed once in 1.7 million
        assert kept == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / n))


def test_of_a_member_kept_at_no_try_one_is_chosen_by_likelihood_alone():
    """Each try is chosen in proportion to its likelihood, whatever chance said of keeping it.
    The sums below have a mean of zero and a variance that is known; five standard deviations are
    missed once in 1.7 million, for each of six sums."""
    tries = 3
    start, asked = begin(tries)
    _, longer = begin(tries + 1)  # by which those are known that were kept at none of three
    unkept = longer[tries][0]
    assert start.statistics["kept at no try"] == len(unkept) > 400
    x = torch.full((tries, len(start.x)), torch.nan)
    for k, (ids, found) in enumerate(asked):
        x[k, ids] = found
    x = x[:, unkept]
    h = torch.where(x > 0, 3.0, 1.0).double()
    weights = h / h.sum(dim=0)
    chosen = (x == start.x[unkept, 0]).double()
    assert (chosen.sum(dim=0) == 1).all()
    for k in range(tries):
        for side in (x[k] > 0, x[k] <= 0):
            w, c = weights[k][side], chosen[k][side]
            assert abs((c - w).sum()) < 5 * (w * (1 - w)).sum().sqrt()


def test_members_that_are_kept_are_resampled_no_more():
    start, asked = begin(tries=3)
    sizes = [len(ids) for ids, _ in asked]
    assert sizes == sorted(sizes, reverse=True)
    first, second = (set(ids.tolist()) for ids, _ in asked[:2])
    kept = sorted(first - second)
    assert torch.equal(start.x[kept, 0], asked[0][1][kept])


def test_it_warns_of_members_that_were_kept_at_no_try():
    prior, plane = three(3)  # few samples of the prior are near three residuals at once
    kernel = on(Rejection(steps=24, tries=4, **FAST), prior, plane)
    with pytest.warns(
        CalibrationWarning, match=r"\d+ of 64 samples were accepted in none of 4 tries"
    ):
        sampled(kernel, 64, (3,))
    prior, plane = three(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        sampled(on(Rejection(level=0.5, **FAST), prior, plane), 64, (3,))


def three(m):
    """A normal in space with m coordinates fixed, away from the mean."""
    prior = Gaussian(torch.zeros(3), torch.eye(3), LogLogit())
    return prior, Linear(torch.eye(3)[:m], torch.full((m,), 0.5), tolerance=1e-8)


@pytest.mark.parametrize(
    "options", [{"tries": 0}, {"tries": 2.5}, {"level": 1e-4}, {"level": None}], ids=str
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=rf"Rejection\({next(iter(options))}="):
        on(Rejection(**options), ROUND, line(0.0))


def test_many_residuals_are_refused():
    prior = Gaussian(torch.zeros(6), torch.eye(6), LogLogit())
    constraint = Equality(lambda x: x[:, :5], tolerance=1e-8)
    with pytest.raises(ValueError, match=r"few do with 5 residual components; use CalibratedPPR"):
        sampled(on(Rejection(), prior, constraint), 2, (6,))


@pytest.mark.slow
def test_it_warns_where_a_rare_mode_is_likelier_than_what_the_pilot_saw():
    """A cluster of weight 0.002 is rarely among 256 samples, and has the constraint to itself."""
    means = torch.tensor([[0.0, 0.0], [1.2, 0.0]]).double()
    prior = GaussianMixture(
        torch.tensor([0.998, 0.002]), means, 0.04 * torch.eye(2).expand(2, 2, 2), LogLogit()
    )
    constraint = Equality(lambda x: x[:, :1] - 1.2, tolerance=1e-8)
    kernel = on(Rejection(steps=12, tries=64, **FAST), prior, constraint)
    with pytest.warns(CalibrationWarning) as caught:
        result = sampled(kernel, 64, (2,))
    assert any("beyond the largest of 256 unconditional samples" in str(w.message) for w in caught)
    assert [str(w.message) for w in caught] == result.warnings


class Shifted(Gaussian):
    """A prior whose mean is each member's own condition."""

    def mean(self, x, sigma):
        shift = members.current().to(x)[:, None]
        return super().mean(x - shift, sigma) + shift


@pytest.mark.slow
def test_members_with_conditions_of_their_own_are_refused():
    prior = Shifted(torch.zeros(2), torch.eye(2), LogLogit())
    constraint = Equality(lambda x: x[:, :1], tolerance=1e-8)
    kernel = on(Rejection(steps=6, **FAST), prior, constraint)
    for chunk in (None, 1):
        with pytest.raises(SamplingError, match="one prior for all samples"):
            sampled(kernel, 3, (2,), batch_size=chunk)


def test_the_pilot_keeps_to_the_chunk_and_is_counted_once():
    largest = 0

    class Watched(Gaussian):
        def mean(self, x, sigma):
            nonlocal largest
            largest = max(largest, len(x))
            return super().mean(x, sigma)

    constraint = Equality(lambda x: x[:, :1], tolerance=1e-8)
    prior = Watched(torch.zeros(2), torch.eye(2), LogLogit())
    kernel = on(Rejection(steps=8, level=0.5, tries=2, **FAST), prior, constraint)
    spent = sampled(kernel, 8, (2,), batch_size=4).evaluations
    assert largest == 4
    above = sum(kernel.noise_level(t) > 0.5 for t in kernel.times())
    forward, backward = kernel.budget()
    pilot = 256 * (above + 1)
    assert pilot < spent.member_forward <= pilot + 1 + 8 * forward
    assert spent.forward <= 2 * forward + pilot // 4 + 1
    assert spent.backward <= 2 * backward + 256 // 4


def seen(constraint):
    x_0 = MemberNoise(0, [0, 1], (2,))().expand(2, 2)
    return DryRun(x_0, constraint.residual(x_0))


@pytest.mark.parametrize(
    "options",
    [{"sparse": 0.8}, {"dimensions": ((0.5, 2),)}, {"tries": 1, "level": 2.0}],
    ids=["sparse", "dimensions", "one try, high"],
)
def test_a_member_that_is_kept_at_no_try_takes_the_budget(options):
    """No state is as likely as the pilot's highest."""
    constraint = Linear(torch.eye(2), torch.zeros(2), tolerance=1e-8)
    settings = {"steps": 12, "level": 0.5, "tries": 3, "iterations": 2, "output": "state"}
    kernel = on(Rejection(minimize=GaussNewton(steps=1), **settings | options), ROUND, constraint)
    noise, spent = MemberNoise(0, [0, 1], (2,)), Evaluations()
    prepared = kernel.prepare(seen(constraint))
    prepared = replace(prepared, pilot=replace(prepared.pilot, log_bar=1e9))
    with counted(spent):
        x, times, memory, *_ = prepared.begin(noise)
        for t, s in pairwise(times):
            x, _, memory = prepared.step(x, t, s, noise, memory)
    forward, backward = prepared.budget(2)
    assert spent.forward == forward
    # a solver that has converged ends earlier
    assert 0.85 * backward <= spent.backward <= backward


def test_a_step_before_the_pilot_is_refused():
    noise = MemberNoise(0, [0], (2,))
    kernel = on(Rejection(steps=8, level=0.5, **FAST), ROUND, line(0.0))
    with pytest.raises(ValueError, match="no pilot for its settings; call"):
        kernel.begin(noise)
    prepared = kernel.prepare(seen(line(0.0)))
    assert kernel.pilot is None
    assert prepared.prepare(seen(line(0.0))) is prepared
