"""Which samplers a problem gets, and why."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import feasibly
from feasibly import PPR, Ancestral, Bounds, Composite, Equality, Inequality, TruncatedPPR
from feasibly.constraints import Decoded, EachMember
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.policy import choose, remarks
from feasibly.samplers import METHODS, CalibratedPPR, Particles, Rejection
from feasibly.samplers.particles import Levels
from feasibly.sampling import inspect
from feasibly.schedules import VE, LogLogit

D = 16
PRIOR = Gaussian(torch.zeros(D), torch.eye(D), LogLogit())
BOX = Bounds(-2.0, 2.0, tolerance=1e-6)
LINEAR = feasibly.Linear(torch.eye(D)[:3], torch.zeros(3), tolerance=1e-6)


def first(m, value=0.3):
    """The first m coordinates are to be 0.3, by a residual that is not quite affine."""
    return Equality(lambda x: (x[:, :m] - value) * (1 + 0.01 * x[:, :m]), tolerance=1e-6)


FIRST = first(1)
INSPECTED = inspect(PRIOR, FIRST, (D,))


def above(value):
    """The first coordinate is to be more than a value."""
    return Inequality(lambda x: value - x[:, :1], tolerance=1e-6)


def plan(constraint, **options):
    return feasibly.plan(PRIOR, constraint, (D,), **options)


def by_name(constraint, **options):
    return plan(constraint, method="ppr", **options)


def kinds(chosen):
    return [type(sampler) for sampler in chosen.attempts]


def same(sampler, other):
    """Whether two samplers are of one class and have the same parameters."""
    return (repr(sampler), sampler.constraint) == (repr(other), other.constraint)


def ppr(constraint, **options):
    return PPR(PRIOR, constraint, repeats=1, **options)


FEW = {"steps": 32, "sigma_max": 0.75, "minimize": GaussNewton(steps=2)}
MANY = {
    "steps": 64,
    "sigma_max": 10.0,
    "minimize": WarmLBFGS(steps=16),
    "last": WarmLBFGS(steps=160),
}


def test_more_values_are_weighted_where_data_are_not_normal():
    spread = torch.stack([torch.eye(48), torch.eye(48) / 4])
    prior = GaussianMixture(torch.ones(2) / 2, torch.zeros(2, 48), spread, LogLogit())
    rows = torch.eye(48)
    for noise in ({"noise": 0.3}, {"tolerance": 1e-6}):
        for m, weighted in ((13, True), (32, True), (33, False)):
            chosen = feasibly.plan(prior, feasibly.Linear(rows[:m], rows[0, :m], **noise), (48,))
            assert (kinds(chosen) == [Particles] * 4) == weighted
            assert not weighted or chosen.attempts[0].normal
            said = [one for one in chosen.remarks if "Data are not normal" in one]
            assert len(said) == (not weighted)
    decoded = Decoded(first(13), lambda z: z)
    assert kinds(feasibly.plan(prior, decoded, (48,)))[0] is CalibratedPPR
    law = feasibly.Linear(rows[:13], rows[0, :13], tolerance=1e-6)
    assert not feasibly.plan(prior, law, (48,), method="particles").attempts[0].normal
    assert not feasibly.plan(prior, law, (48,), options={"eta": 0.5}).attempts[0].normal


@pytest.mark.parametrize(("curved", "said"), [(0.01, 0), (0.05, 1)])
def test_a_mode_of_a_few_elements_brings_the_warning_of_data_that_are_not_normal(curved, said):
    survey = replace(plan(first(16)).survey, bent=0.006, thin=0.0, curved=curved)
    problem = inspect(PRIOR, first(16), (D,))
    chosen = choose(PRIOR, first(16), problem, survey=survey)
    assert kinds(chosen)[0] is CalibratedPPR
    assert sum("Data are not normal" in one for one in chosen.remarks) == said


def test_up_to_twelve_equalities_are_weighted_and_more_are_met_by_posterior_samples():
    for m in (1, 12):
        chosen = plan(first(m))
        assert kinds(chosen) == [Particles] * 4
        assert len({id(sampler) for sampler in chosen.attempts}) == 1
    many = plan(first(13))
    assert kinds(many) == [CalibratedPPR] + [PPR] * 3
    posterior, late = many.attempts[0], many.attempts[-1]
    assert posterior.spacing == "noise"
    chosen = {name: getattr(posterior, name) for name in ("steps", "top", "sparse")}
    chosen |= {"spacing": "noise", "minimize": MANY["last"]}
    assert same(posterior, CalibratedPPR(PRIOR, late.constraint, **chosen))
    assert same(late, ppr(late.constraint, **MANY))


@pytest.mark.parametrize(("affine", "sparse"), [(0.5, 0.5), (0.02, 0.1)])
def test_steps_are_left_out_where_the_denoiser_is_affine_under_linear_values(affine, sparse):
    """Above a tenth of the data's scale, and under linear values only."""
    spread = torch.stack([torch.eye(48), torch.eye(48) / 4])
    prior = GaussianMixture(torch.ones(2) / 2, torch.zeros(2, 48), spread, LogLogit())
    law = feasibly.Linear(torch.eye(48)[:33], torch.full((33,), 0.3), tolerance=1e-6)
    survey = feasibly.plan(prior, law, (48,)).survey
    survey = replace(survey, unit=1.0, affine=affine)

    def chosen(constraint, **options):
        problem = inspect(prior, constraint, (48,))
        return choose(prior, constraint, problem, survey=survey, **options).attempts[0]

    mixed = Composite([law, Bounds(-9.0, 9.0, tolerance=1e-6)])
    assert [chosen(one).sparse for one in (law, mixed)] == [sparse] * 2
    assert chosen(first(33)).sparse == 0.1
    assert chosen(law, steps=20).sparse == 0.0, "a user's steps are all taken"
    assert chosen(law, steps=20, sparse=0.3).sparse == 0.3


@pytest.mark.parametrize(("dimension", "longer"), [(2.6, 8), (3.1, 2), (40.0, 2)])
def test_linear_values_take_the_work_that_the_dimension_of_data_asks_for(dimension, longer):
    """Long steps where data are on a surface of two dimensions up to the level `affine`."""
    spread = torch.stack([torch.eye(48), torch.eye(48) / 4])
    prior = GaussianMixture(torch.ones(2) / 2, torch.zeros(2, 48), spread, LogLogit())
    law = feasibly.Linear(torch.eye(48)[:33], torch.full((33,), 0.3), tolerance=1e-6)
    survey = feasibly.plan(prior, law, (48,)).survey
    found = ((9.0, 0.2), (3.0, 1.4), (1.234, 1.6), (0.6, dimension), (0.02, 1.0))
    survey = replace(survey, unit=1.0, affine=0.6, dimensions=found)

    def chosen(constraint, **options):
        problem = inspect(prior, constraint, (48,))
        return choose(prior, constraint, problem, survey=survey, **options).attempts[0]

    known = ((3.0, 1), (1.2, 2), (0.6, round(dimension)))
    mixed = Composite([law, Bounds(-9.0, 9.0, tolerance=1e-6)])
    known, floor = (known, 1e-2) if longer == 8 else ((), 1e-4)
    for one in (law, mixed):
        found = chosen(one)
        assert (found.dimensions, found.longer, found.floor) == (known, longer, floor)
    noisy = feasibly.Linear(torch.eye(48)[:33], torch.full((33,), 0.3), noise=0.1)
    for one in (first(33), noisy):
        found = chosen(one)
        assert (found.dimensions, found.longer, found.floor) == ((), 2, 1e-2)
    for options in ({"steps": 20}, {"sparse": 0.3}, {"products": 0}):
        assert chosen(law, **options).longer == 2
    assert chosen(law).products == (1 if longer == 8 else 2)
    for options in ({"steps": 20}, {"products": 0}):
        assert (chosen(law, **options).dimensions, chosen(law, **options).floor) == (known, floor)
    assert chosen(law, products=3).products == 3
    with pytest.raises(ValueError, match="products="):
        chosen(law, products="two")
    assert chosen(law, iterations=3).iterations == 3
    assert chosen(law, dimensions=()).dimensions == ()


@pytest.mark.parametrize("wide", [1.0, 8.0])
@pytest.mark.parametrize(("fast", "steps"), [(False, 36), (True, 24)])
def test_posterior_samples_leave_out_levels_that_hide_the_widest_direction(wide, fast, steps):
    """And keep the distance between levels. One seed in a hundred has a survey of 64 samples that
    misses the bounds on their widest direction."""
    prior = Gaussian(torch.zeros(D), torch.diag(torch.tensor([wide**2] + [1.0] * 15)), LogLogit())
    sampler = feasibly.plan(prior, first(13), (D,), fast=fast).attempts[0]
    assert type(sampler) is CalibratedPPR
    assert 5 * wide * 0.75 < sampler.top < 5 * max(wide * 1.3, 1.6)
    assert 0.05 * min(wide, 2) < sampler.sparse < 0.15 * wide
    levels = torch.tensor([sampler.noise_level(t) for t in sampler.times()]).double().log()
    usual = (levels[0] - levels[-1]).item() / steps
    lengths = -levels.diff()[1:]
    fine = levels[1:-1] < math.log(sampler.sparse)
    assert lengths[~fine].max().item() < usual * 1.001
    assert lengths[fine].max().item() < 2 * usual * 1.001
    assert lengths.sum().item() / (sampler.steps - 2) > usual, "a step less is too few"
    for top, more in ((math.inf, 0), (50.0, 1)):  # above the schedule, and inside
        given = {"top": top, "sparse": 0.0}
        whole = feasibly.plan(prior, first(13), (D,), fast=fast, options=given).attempts[0]
        length = min(levels[0].item(), math.log(top)) - levels[-1].item()
        assert whole.steps == math.ceil(length / usual - 1e-6) + more
    given = {"spacing": "time"}
    assert feasibly.plan(prior, first(13), (D,), options=given).attempts[0].top == math.inf


X = torch.randn(64, D, generator=torch.Generator().manual_seed(0))


def seen(x, unit=1.0, ends=(1e-3, 1e2), informed=2.0, bent=0.0):
    """A survey of given samples."""
    flat = {
        "bent": bent,
        "thin": 0.0,
        "curved": 0.0,
        "moments": None,
        "settles": False,
        "unmoved": "",
    }
    return SimpleNamespace(samples=x, unit=unit, ends=ends, informed=informed, affine=unit, **flat)


def two_sided(share=0.5, of=64):
    """A survey of samples whose first coordinate is 1 for some, and -1 for the others."""
    x = X.clone()[:of]
    x[:, 0] = -1.0
    x[: round(share * of), 0] = 1.0
    return seen(x)


def levels(constraint=FIRST, survey=None, **options):
    chosen = choose(PRIOR, constraint, INSPECTED, survey=survey, **options)
    return chosen.attempts[-1].levels


@pytest.mark.parametrize("informed", [0.01, 0.6, 2.0, 7.77, math.inf])
@pytest.mark.parametrize("unit", [1.0, 0.25])
def test_particles_are_weighted_from_twice_the_level_at_which_a_value_is_told(informed, unit):
    """And from the data's scale at least. They part at twice as much noise."""
    found = levels(survey=replace(plan(FIRST).survey, informed=informed, unit=unit))
    weighted = max(2 * informed, unit)
    assert (found.begun, found.weighted) == pytest.approx((2 * weighted, weighted), rel=0.06)
    assert found.every == 2


def test_far_constraints_are_weighted_from_higher_noise():
    """By as many times as samples are standard deviations from the value that is farthest. Half
    of them are at 1, and half at -1."""

    def near(value, unit=1.0):
        return Equality(lambda x: unit * (x[:, :1] - value), tolerance=1e-6)

    survey = two_sided()
    std = survey.samples[:, 0].std().item()
    for law, distance in (
        (near(0.0), 1.0),
        (near(0.9), 1.0),
        (near(6.0), 6 / std),
        (near(-6.0, unit=1e3), 6 / std),
        (Composite([near(0.0), near(3.0)]), 3 / std),
        (above(0.0), 1.0),
        (above(6.0), 6 / std),
        (Bounds(2.0, 9.0, tolerance=1e-6), None),
        (Equality(lambda x: 0 * x[:, :1] + 1, tolerance=1e-6), 1.0),  # a flat one
    ):
        mean, width = survey.samples.mean(dim=0), survey.samples.std(dim=0)
        distance = distance or ((2 - mean) / width).max().item()
        found = levels(law, survey)
        assert found.weighted == pytest.approx(2 * survey.informed * distance, rel=0.06)
        assert found.begun == pytest.approx(2 * found.weighted, rel=0.06)
    each = plan(EachMember(FIRST, torch.full((2, 1), 6.0)))
    usual = max(2 * each.survey.informed, each.survey.unit)
    assert each.attempts[0].levels.weighted == pytest.approx(usual, rel=0.06), "others may be near"


def test_samples_are_drawn_at_the_end_if_there_are_inequalities():
    for constraint, drawn in ((FIRST, 0.05), (Composite([FIRST, BOX]), 0), (above(3.0), 0)):
        sampler = plan(constraint).attempts[0]
        assert sampler.levels.drawn == pytest.approx(drawn, rel=0.1)
        assert sampler.levels.spread == pytest.approx(1.0, abs=0.2)  # four standard errors
        assert sampler.minimize == GaussNewton(steps=50, max_distance=None)


def test_levels_are_in_units_of_the_data():
    """Rounded to two digits, which may differ by one in the last."""

    def chosen(unit, constraint):
        prior = Gaussian(torch.zeros(D), unit**2 * torch.eye(D), VE(1e-3 * unit, 1e2 * unit))
        return feasibly.plan(prior, constraint, (D,)).attempts[0]

    one, other = chosen(1.0, first(1)), chosen(100.0, first(1, value=30.0))
    scaled = Levels(*(100 * level for level in one.levels[:4]), one.levels.every)
    assert other.levels == pytest.approx(scaled, rel=0.1)
    assert same(replace(other, levels=one.levels), replace(one, constraint=other.constraint))


def test_without_a_survey_particles_are_weighted_everywhere():
    constraint = first(2, value=4.0)
    chosen = choose(PRIOR, constraint, inspect(PRIOR, constraint, (D,)))
    assert same(chosen.attempts[0], Particles(PRIOR, constraint))
    assert levels(above(3.0)) == Levels(drawn=0.0)


def test_fast_lets_importance_weights_have_a_larger_error():
    usual, quick = (plan(FIRST, fast=fast).attempts[0] for fast in (False, True))
    assert quick.error > usual.error
    assert same(replace(quick, error=usual.error), usual)
    with pytest.raises(ValueError, match="fast=True chooses 'error' of Particles"):
        plan(FIRST, fast=True, options={"error": 0.1})


def values(function, m=13, level=0.3):
    """A function of the first m coordinates is given."""
    return Equality(lambda x: function(x[:, :m]) - level, tolerance=1e-6)


def alternating(x):
    """Every second value is a square."""
    even = torch.arange(x.shape[1]) % 2 == 0
    return torch.where(even, x.square(), x)


@pytest.mark.parametrize(
    ("function", "turns"),
    [
        (lambda x: (2 * x).sin(), True),
        (torch.square, True),
        (alternating, True),
        (lambda x: alternating(x.roll(1, 1)), True),
        (lambda x: torch.cat([x[:, 4:], x[:, :4].square()], dim=1), True),  # four of thirteen
        (lambda x: x, False),
        (lambda x: x + x**3, False),  # strongly bent, and of one branch
        (torch.sinh, False),
        (lambda x: torch.cat([x[:, 1:], x[:, :1].square()], dim=1), False),  # one of thirteen
    ],
    ids=range(9),
)
def test_many_values_whose_gradients_turn_are_left_to_ppr(function, turns):
    chosen = plan(values(function))
    assert (kinds(chosen) == [PPR] * 4) == turns
    assert ("Gradients of the residual turn" in chosen.reason) == turns
    if turns:
        late = {**MANY, "share": 0.03, "sigma_share": 0.5, "sparse": 0.1}
        assert same(chosen.attempts[0], ppr(chosen.attempts[0].constraint, **late))
    assert turns or kinds(chosen)[0] is CalibratedPPR
    # a run without the monitor takes the same, at the price of the unconditional samples
    assert kinds(plan(values(function), monitor=False)) == kinds(chosen)


def test_where_gradients_turn_noise_and_inequalities_count_as_elsewhere():
    noisy = feasibly.Observation(lambda x: x[:, :13].square(), torch.ones(13), noise=0.1)
    assert set(kinds(plan(noisy))) == {CalibratedPPR}
    inside = plan(Composite([values(torch.square), BOX]))
    assert kinds(inside) == [PPR] * 6
    assert [one.constraint.inequalities is None for one in inside.attempts] == [True] * 4 + [
        False
    ] * 2


def test_an_early_stop_is_in_units_of_the_data():
    prior = Gaussian(torch.zeros(D), 100 * torch.eye(D), LogLogit(1e-2, 1e3, spread=2.0))
    sine = Equality(lambda x: (x[:, :13] / 5).sin() - 0.1, tolerance=1e-6)
    one = feasibly.plan(prior, sine, (D,)).attempts[0]
    assert one.sigma_share == pytest.approx(5, rel=0.2)
    assert one.sparse == pytest.approx(1, rel=0.2)
    assert one.sigma_max == pytest.approx(100, rel=0.2)


def test_projections_stop_from_higher_noise_down_where_estimates_tell_branches():
    """The gradient of a square turns where the sign of the value does."""
    squares = values(torch.square)
    survey, problem = replace(plan(squares).survey, unit=0.4), inspect(PRIOR, squares, (D,))

    def found(other, **options):
        told = replace(survey, estimates=torch.stack([torch.ones_like(other), other]))
        first = choose(PRIOR, squares, problem, survey=told, **options).attempts[0]
        return first.sigma_share, first.sparse, first.longer

    usual, clear = (0.5, 0.1, 2), (0.4, 0.4, 3)
    one = torch.ones(4, D)
    some = one.clone()
    some[0, 0] = -1
    assert found(2 * one) == clear
    assert found(some) == clear, "one of 52 gradients turns"
    assert found(some[:2]) == usual, "one of 26 does"
    assert found(0 * one) == found(math.nan * one) == usual, "they tell nothing"
    assert found(one, sparse=0.1) == (0.4, 0.1, 2)
    assert found(one, steps=32) == (0.4, 0.0, 2)


def test_fast_takes_fewer_steps_and_no_fewer_iterations_where_gradients_turn():
    usual, quick = (plan(values(torch.square), fast=fast).attempts for fast in (False, True))
    assert usual[0].steps == 64
    for one, other in zip(usual, quick, strict=True):
        assert same(other, replace(one, constraint=other.constraint, steps=48))
    with pytest.raises(ValueError, match="fast=True chooses 'steps' of PPR"):
        plan(values(torch.square), fast=True, options={"steps": 48})
    minimize = LBFGS()  # which is no choice of fast
    assert plan(values(torch.square), fast=True, options={"minimize": minimize}).attempts


def test_options_of_posterior_samples_ask_for_these_also_where_gradients_turn():
    sine = values(torch.sin, level=0.1)
    for options in ({"products": 4}, {"iterations": 3}):
        assert kinds(plan(sine, options=options))[0] is CalibratedPPR
    chosen = plan(sine, options={"steps": 20, "repeats": 2}, attempts=2)
    assert [(sampler.steps, sampler.repeats) for sampler in chosen.attempts] == [(20, 2)] * 2
    given = plan(sine, options={"minimize": LBFGS()})
    assert (given.attempts[0].minimize, given.attempts[0].last) == (LBFGS(), None)


def test_an_inequality_that_is_often_satisfied_is_left_to_the_prior_first():
    near = plan(above(0.0))
    tries = near.attempts.index(near.attempts[-1])
    assert kinds(near) == [Ancestral] * tries + [Particles] * 2
    assert 4 <= tries <= 10  # half of the samples are inside: 3 / 0.5, as 64 of them tell it
    assert len({id(sampler) for sampler in near.attempts}) == 2
    assert same(near.attempts[0], Ancestral(PRIOR, near.attempts[0].constraint))
    assert kinds(plan(above(3.0))) == [Particles] * 4
    assert kinds(plan(BOX))[0] is Ancestral
    # options of both reach the prior too, so that all members have the same output
    given = {"steps": 30, "output": "state", "eta": 0.5}
    prior, *_, last = plan(above(0.0), options=given).attempts
    for sampler in (prior, last):
        assert {name: getattr(sampler, name) for name in given} == given
    # an equality beside it, or particles by name, and the prior is of no use
    assert kinds(plan(Composite([first(1), above(0.0)]))) == [Particles] * 4
    given = plan(above(0.0), options={"particles": 5})
    assert kinds(given) == [Particles] * 4
    assert given.attempts[0].particles == 5


def test_of_more_than_twelve_equalities_posterior_samples_inside_of_inequalities_are_kept():
    both = Composite([first(13), BOX])
    chosen = plan(both)
    assert kinds(chosen) == [CalibratedPPR] * 4 + [PPR] * 2
    assert [s.constraint is both for s in chosen.attempts] == [False] * 4 + [True] * 2
    assert "inside of the inequalities" in chosen.reason
    # an inequality that never acts changes nothing
    never = Composite([first(13), Bounds(-1e3, 1e3, 1e-8)])
    one, other = (
        feasibly.sample(PRIOR, constraint, 4, (D,), monitor=False, seed=1).samples
        for constraint in (first(13), never)
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("m", [1, 8, 20])
@pytest.mark.parametrize("far", [0.0, 4.0])
def test_exactly_normal_data_take_few_steps_under_linear_values(m, far):
    """And other steps if anything says that they may not be normal."""
    size = D + 8
    law = feasibly.Linear(torch.eye(size)[:m], torch.full((m,), far), tolerance=1e-6)
    prior = Gaussian(torch.zeros(size), torch.eye(size), LogLogit(1e-3, 1e2))
    problem = inspect(prior, law, (size,))
    survey = feasibly.plan(prior, law, (size,)).survey

    def first_of(constraint=law, survey=survey, **options):
        return choose(prior, constraint, problem, survey=survey, **options).attempts[0]

    def few(sampler):
        steps = 15 if isinstance(sampler, CalibratedPPR) else 30
        return sampler.steps <= steps or getattr(sampler, "products", 2) != 2

    assert few(first_of())
    assert first_of(survey=None).steps > 30
    found = first_of()
    assert isinstance(found, CalibratedPPR)
    assert (found.steps, found.products, found.floor) == (4, None, 1e-5)  # levels 16 times lower
    assert found.top == pytest.approx(0.3 * survey.unit, rel=0.02)
    assert first_of(fast=True, products=5).products == 5
    noisy = feasibly.Linear(torch.eye(size)[:m], torch.full((m,), far), noise=0.1)
    assert (first_of(noisy).steps, first_of(noisy).iterations) == (4, 64)
    bounds = Bounds(-9.0, 9.0, tolerance=1e-6)
    if m == 20:
        assert first_of(Composite([law, bounds])).steps == 4
    for other in (
        replace(survey, curved=1e-6),  # of one element
        replace(survey, ends=(0.3, 1e2)),  # levels that do not reach the data's scale
        replace(survey, ends=(1e-3, 3.0)),
        None,
    ):
        assert not few(first_of(survey=other))
    assert not few(first_of(Equality(law.residual, tolerance=1e-6)))
    assert few(first_of(Composite([law, noisy])))
    assert getattr(first_of(spacing="time"), "top", math.inf) == math.inf
    if m == 1:
        assert first_of(particles=3).particles == 3


@pytest.mark.parametrize(("scale", "gap", "thick"), [(1.0, 0.05, 0.01), (100.0, 0.3, 0.07)])
def test_data_on_two_sheets_are_not_taken_as_exactly_normal(scale, gap, thick):
    """Their distance is a small part of the data's scale."""
    cov = torch.diag(torch.tensor([thick, *[scale] * 31]).double().square())
    mu = torch.zeros(2, 32).double()
    mu[:, 0] = torch.tensor([gap, -gap])
    schedule = LogLogit(1e-3 * thick, 1e2 * scale)
    prior = GaussianMixture(torch.tensor([0.8, 0.2]), mu, cov.expand(2, 32, 32), schedule)
    law = feasibly.Linear(torch.eye(32)[31:], torch.zeros(1), tolerance=1e-6)
    assert isinstance(feasibly.plan(prior, law, (32,)).attempts[0], Particles)


@pytest.mark.parametrize(
    ("inside", "of"), [(64, 64), (40, 64), (26, 64), (25, 64), (8, 64), (2, 4), (1, 2)]
)
@pytest.mark.parametrize("steps", [None, 8])
def test_the_prior_is_tried_thrice_for_a_sample_inside_where_that_is_cheaper(inside, of, steps):
    """A try costs the prior's steps, and saves the work of particles for the share that is inside.
    One sample inside tells little."""
    law, options = above(0.5), {} if steps is None else {"steps": steps}
    survey, problem = two_sided(inside / of, of), inspect(PRIOR, law, (D,))
    chosen = choose(PRIOR, law, problem, survey=survey, **options)
    forward, backward = chosen.attempts[-1].expected(1)
    cheap = inside / of * (forward + 2 * backward) >= (steps or 64)
    tries = math.ceil(3 * of / inside) if cheap and inside > 1 else 0
    assert kinds(chosen) == [Ancestral] * tries + [Particles] * (2 if tries else 4)


def test_without_a_survey_the_prior_is_tried_four_times():
    law = above(0.5)
    chosen = choose(PRIOR, law, inspect(PRIOR, law, (D,)))
    assert kinds(chosen) == [Ancestral] * 4 + [Particles] * 2


@pytest.mark.parametrize(
    ("ends", "unit", "fits"),
    [
        ((1e-3, 1e2), 1.0, True),
        ((0.199, 5.01), 1.0, True),
        ((0.201, 1e2), 1.0, False),
        ((1e-3, 4.99), 1.0, False),
        ((1e-3, 1e2), 21.0, False),
        ((1e-3, 1e2), 19.0, True),
        ((1e-3, 1e2), 0.004, False),
        ((1e-3, 1e2), 0.006, True),
    ],
    ids=str,
)
def test_a_schedule_must_reach_five_times_above_and_below_the_datas_scale(ends, unit, fits):
    x = (unit * X / X.var(dim=0).mean().sqrt())[:, None]
    law = Equality(lambda x: x[:, 0, :1] / unit - 0.3, tolerance=1e-4)
    found = list(remarks(law, seen(x, unit, ends)))
    assert len(found) == (not fits)
    for sentence in found:
        assert f"unconditional samples vary by {unit:.3g}." in sentence
        assert any(
            f"the schedule go {way}" in sentence
            for way in (f"down to {ends[0]:.3g}", f"up to {ends[1]:.3g}")
        )


def test_elements_that_differ_by_chance_alone_do_not_count():
    """The spreads of 64 samples are from 0.78 to 1.25."""
    assert not list(remarks(first(1), seen(X / X.std(), ends=(0.199, 5.01))))


def test_a_constraint_between_modes_is_said_to_be_far_from_the_data():
    modes = torch.cat([X[:32] + 4, X[32:] - 4])
    for x, bent, far in ((X, 1.0, False), (modes, 1.0, True), (modes, 1e-3, False)):
        found = " ".join(remarks(first(1), seen(x, bent=bent)))
        assert ("Hardly any unconditional sample is near" in found) == far, "normal data have none"


def scaled(size, tolerance):
    """The first element, in other units."""
    return Equality(lambda x: size * (x[:, :1] - 0.3), tolerance=tolerance)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (scaled(1.0, 1e-6), None),
        (scaled(1.0, 100.0), "100% of unconditional samples satisfy .* already"),
        (scaled(1e-5, 1e-16), "typically .*e-06 for .* far below one, rounding counts"),
        (scaled(1e5, 1e4), None),
        (scaled(1e-3, 1e-12), None),
        (scaled(1e3, 1.0), None),
        (above(-1.0), None),  # an inequality is met often
    ],
    ids=range(7),
)
def test_an_equality_that_asks_for_nothing_or_is_in_other_units_is_told(law, words):
    found = list(remarks(law, seen(X)))
    assert len(found) == (words is not None)
    if words:
        assert re.search(words, found[0])


def test_a_tolerance_below_the_rounding_of_float32_is_told():
    """The sum of 16 elements of about 1000 is rounded by some 1e-3, and its violation by 1e-6 or
    less, but not in float64."""

    def law(tolerance):
        return Equality(lambda x: (1000 + x).sum(dim=1) - 16000, tolerance=tolerance)

    def told(tolerance, x=X):
        return list(remarks(law(tolerance), seen(x)))

    (sentence,) = told(1e-12)
    assert re.match(r"The tolerance of .* is 1e-12, and rounding alone gives a vio", sentence)
    size = float(re.search(r"violation of ([\d.e-]+) in float32", sentence)[1])
    exact = law(1e-12)
    apart = (exact.residual(X.double()) - exact.residual(X)).square().median().item()
    assert 1e-9 < size < 1e-5
    assert size == pytest.approx(apart, rel=0.05)
    assert told(0.9 * size)
    assert not told(1.1 * size)
    assert not told(1e-12, X.double())

    def single(x):
        assert x.dtype == torch.float32
        return (1000 + x).sum(dim=1) - 16000

    unknown = Equality(single, tolerance=1e-12)
    assert not list(remarks(unknown, seen(X))), "a function of float32 alone"


def test_parts_of_a_composite_are_judged_by_themselves():
    """And not by its weights, by which one is in units far from one here, and one is never met."""
    good, loose = scaled(1.0, 1e-6), scaled(1.0, 100.0)
    assert not list(remarks(Composite([good, good], weights=[1e12, 1e-12]), seen(X)))
    assert not list(remarks(Composite([scaled(1.0, 1e-11), above(0.0)]), seen(X)))
    (sentence,) = remarks(Composite([good, Composite([loose, above(0.0)])]), seen(X))
    assert repr(loose) in sentence
    both = Composite([scaled(1e6, 1.0), scaled(1e-6, 1e-18)], weights=[1e-12, 1e12])
    assert len(list(remarks(both, seen(X)))) == 1


ALL = {
    "one": first(1),
    "few": first(12),
    "far": first(3, value=4.0),
    "many": first(13),
    "near": BOX,
    "rare": above(3.0),
    "mixed": Composite([first(2), BOX]),
    "mixed, many": Composite([first(13), BOX]),
    "none": None,
}


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, "auto") for name in ALL] + [(name, "ppr") for name in ALL if name != "none"],
)
def test_a_reason_is_in_short_sentences(name, method):
    reason = plan(ALL[name], method=method).reason
    for sentence in re.split(r"(?<=\.) ", reason):
        assert re.fullmatch(r"[A-Z].*[A-Za-z]\.", sentence)
        assert 4 <= len(sentence.split()) <= 25


def test_a_reason_has_the_number_of_values():
    words = "samples are drawn by importance weights from 2 particles each, or more where k-hat "
    assert plan(first(1)).reason == f"The constraint is on one scalar: {words}asks for them."
    assert plan(first(3)).reason == f"The constraint is on 3 values: {words}asks for them."
    assert "13 equalities" in plan(first(13)).reason
    each = plan(EachMember(FIRST, torch.ones(2, 1))).reason
    assert each.endswith("from 12 particles each, as each has its own target.")


def test_fast_takes_fewer_iterations_of_ppr():
    *_, late = plan(first(13), fast=True).attempts
    constraint = late.constraint
    fewer = {"minimize": WarmLBFGS(steps=11), "last": WarmLBFGS(steps=110)}
    assert same(late, ppr(constraint, **MANY | fewer))


def test_options_go_to_the_first_sampler_of_its_kind():
    given = {"steps": 5, "eta": 0.5, "output": "denoised"}
    for m, kind, own in ((1, Particles, "particles"), (13, CalibratedPPR, "products")):
        usual, sampler = (plan(first(m), options=o).attempts[0] for o in ({}, given))
        assert type(sampler) is kind
        asked = given | ({"sparse": 0.0} if kind is CalibratedPPR else {})
        assert same(sampler, replace(usual, constraint=sampler.constraint, **asked))
        assert getattr(plan(first(m), options={own: 3}).attempts[0], own) == 3
    # those that take over have their own
    late, usual = (plan(first(13), options=o).attempts[-1] for o in (given, {}))
    assert same(late, replace(usual, constraint=late.constraint))


def test_the_number_of_attempts_is_split_between_kinds():
    for attempts, priors in ((1, 0), (2, 0), (3, 1), (7, 5)):
        split = [Ancestral] * priors + [Particles] * (attempts - priors)
        assert kinds(plan(BOX, attempts=attempts)) == split
        assert kinds(plan(first(2), attempts=attempts)) == [Particles] * attempts
        early = 1
        split = [CalibratedPPR] * early + [PPR] * (attempts - early)
        assert kinds(plan(first(13), attempts=attempts)) == split


def test_ppr_projects_on_up_to_eight_residuals_late_and_on_more_from_high_noise_down():
    for m, settings in ((1, FEW), (8, FEW), (9, MANY), (16, MANY)):
        constraint = first(m)
        attempts = by_name(constraint).attempts
        assert len(attempts) == 4
        assert all(sampler is attempts[0] for sampler in attempts)
        assert same(attempts[0], ppr(constraint, **settings))


def test_the_reason_for_ppr_is_a_sentence_with_the_number_of_residuals():
    assert by_name(first(1)).reason == (
        "The constraint has one residual: PPR projects late, by Gauss-Newton."
    )
    assert by_name(first(12)).reason == (
        "The constraint has 12 residuals: PPR projects from high noise down, by L-BFGS."
    )


def test_fast_takes_fewer_iterations_of_ppr_and_nothing_else():
    few, many = (by_name(first(m), fast=True).attempts[0] for m in (1, 9))
    assert same(few, ppr(few.constraint, **FEW | {"minimize": GaussNewton(steps=1)}))
    fewer = {"minimize": WarmLBFGS(steps=11), "last": WarmLBFGS(steps=110)}
    assert same(many, ppr(many.constraint, **MANY | fewer))


@pytest.mark.parametrize(("m", "method"), [(14, "auto"), (1, "ppr"), (14, "ppr")])
def test_fast_asks_for_fewer_gradients_and_still_lands(m, method):
    curved = Equality(lambda x: x[:, :m] + x[:, :m] ** 3 - 0.3, tolerance=1e-10)
    settings = {"dtype": torch.float64, "options": {"steps": 24}, "method": method}
    if method == "auto":
        del settings["options"]  # the steps are what fast chooses
    quick, full = (
        feasibly.sample(PRIOR, curved, 4, (D,), fast=fast, **settings) for fast in (True, False)
    )
    assert quick.feasible.all()
    assert quick.evaluations.member_backward < full.evaluations.member_backward


def test_ppr_of_inequalities_samples_the_prior_first_and_projects_in_the_end():
    chosen = by_name(BOX)
    prior, truncated = chosen.attempts[0], chosen.attempts[-1]
    assert kinds(chosen) == [Ancestral] * 4 + [TruncatedPPR] * 2
    assert {id(sampler) for sampler in chosen.attempts} == {id(prior), id(truncated)}
    assert same(prior, Ancestral(PRIOR, BOX, steps=64))
    assert same(truncated, TruncatedPPR(PRIOR, BOX, repeats=1, **MANY))
    # one inequality is found by Gauss-Newton, and from high noise down all the same
    (*_, one) = by_name(Inequality(lambda x: x[:, :1], tolerance=1e-6)).attempts
    assert (one.steps, one.sigma_max, one.minimize) == (64, 10.0, GaussNewton(steps=2))
    assert "inequality" in chosen.reason


def test_inequalities_beside_equalities_are_projected_on_in_the_last_attempts():
    line = first(2)
    both = Composite([line, BOX])
    chosen = by_name(both)
    assert kinds(chosen) == [PPR] * 4
    early, late = chosen.attempts[0], chosen.attempts[-1]
    assert [id(s) for s in chosen.attempts] == [id(early)] * 2 + [id(late)] * 2
    assert late.constraint is both
    x = torch.ones(3, D)
    torch.testing.assert_close(early.constraint.residual(x), both.equalities.residual(x))
    # they differ in the constraint alone, and are chosen for all residuals
    assert same(replace(early, constraint=both), late)
    assert same(late, ppr(both, **MANY))
    assert "inequalities too" in chosen.reason


def test_the_number_of_pprs_attempts_is_split_as_the_policys_own():
    for attempts, priors in ((1, 0), (2, 0), (3, 1), (7, 5)):
        split = [Ancestral] * priors + [TruncatedPPR] * (attempts - priors)
        assert kinds(by_name(BOX, attempts=attempts)) == split
        both = Composite([first(2), BOX])
        found = [s.constraint is both for s in by_name(both, attempts=attempts).attempts]
        assert found == [False] * priors + [True] * (attempts - priors)
        assert len(by_name(first(2), attempts=attempts).attempts) == attempts


def test_without_a_constraint_the_prior_is_sampled():
    chosen = plan(None, options={"steps": 12})
    assert chosen.reason == "There is no constraint to satisfy."
    (sampler,) = chosen.attempts
    assert same(sampler, Ancestral(PRIOR, steps=12))
    assert len(plan(None, attempts=2).attempts) == 2


def test_an_option_of_ppr_takes_the_place_of_the_policys_and_leaves_the_others():
    given = {"steps": 5, "eta": 0.5, "repeats": 3, "sigma_max": 2.0, "output": "denoised"}
    (sampler, *_) = by_name(first(9), options=given).attempts
    assert same(sampler, PPR(PRIOR, sampler.constraint, **MANY | given))
    # a minimizer that is given is taken as it is, to the last projection
    (sampler, *_) = by_name(first(9), options={"minimize": LBFGS(steps=4)}).attempts
    assert (sampler.minimize, sampler.last, sampler.steps) == (LBFGS(steps=4), None, 64)
    (sampler, *_) = by_name(first(9), options={"last": LBFGS(steps=4)}).attempts
    assert (sampler.minimize, sampler.last) == (WarmLBFGS(steps=16), LBFGS(steps=4))
    # those of a prior's run are the prior's as well
    given = {"steps": 9, "spacing": "time", "eta": 0.0, "output": "state"}
    prior, *_, last = by_name(BOX, options=given).attempts
    for sampler in (prior, last):
        assert {name: getattr(sampler, name) for name in given} == given


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ppr"])
def test_a_named_method_has_its_own_settings_and_one_attempt(name):
    constraint = first(3) if name != "cdim" else LINEAR
    chosen = plan(constraint, method=name, options={"steps": 7})
    (sampler, *_), kind = chosen.attempts, METHODS[name]
    assert type(sampler) is kind
    assert chosen.reason == ""
    if issubclass(kind, CalibratedPPR):
        assert len(chosen.attempts) == 4
        assert same(sampler, kind(PRIOR, constraint, steps=7, minimize=GaussNewton(steps=2)))
    else:
        assert len(chosen.attempts) == 1
        assert same(sampler, kind(PRIOR, constraint, steps=7))
    assert len(plan(constraint, method=name, attempts=3).attempts) == 3


def test_calibrated_ppr_takes_the_longer_last_minimizer_for_many_residuals():
    (sampler, *_) = plan(first(12), method="calibrated").attempts
    assert sampler.minimize == WarmLBFGS(steps=160)
    given = {"minimize": LBFGS(steps=3)}
    (sampler, *_) = plan(first(12), method="calibrated", options=given).attempts
    assert sampler.minimize == LBFGS(steps=3)
    assert len(plan(first(12), method="calibrated", attempts=2).attempts) == 2


def test_a_sampler_is_taken_as_it_is():
    constraint = first(3)
    sampler = Rejection(PRIOR, constraint, steps=9)
    chosen = plan(constraint, method=sampler, attempts=2)
    assert chosen.attempts == (sampler, sampler)
    assert chosen.reason == ""
    assert plan(constraint, method=sampler).attempts == (sampler,)


def test_what_is_sampled_is_what_is_planned():
    constraint, settings = first(9), {"options": {"steps": 6}, "attempts": 2}
    result = feasibly.sample(PRIOR, constraint, 3, (D,), seed=4, chunk=2, **settings)
    chosen = plan(constraint, **settings)
    again = feasibly.sampling.run(chosen.attempts, 3, (D,), seed=4, chunk=2, monitor=chosen.survey)
    assert torch.equal(result.samples, again.samples)
    assert torch.equal(result.oddness, again.oddness)
    assert result.method == again.method
    assert result.reason == chosen.reason
    assert again.reason == ""
    assert str(chosen.reason) in str(result)


def test_an_unknown_method_is_refused_with_the_names_of_all():
    words = "^There is no method 'pr'; choose 'auto' or one of ppr, truncated, calibrated, par"
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), method="pr")
    words = r"^PPR is a class; give its name in quotes, or a sampler, such as PPR\(denoiser, con"
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), method=PPR)


@pytest.mark.parametrize("name", ["zeta", "denoiser", "constraint", "batch"])
def test_an_unknown_option_is_refused_with_the_names_of_all(name):
    particles = "error, eta, levels, minimize, normal, output, particles, spacing, steps"
    ppr = (
        "eta, last, longer, minimize, output, repeats, share, sigma_max, sigma_share, spacing, "
        "sparse, steps"
    )
    for m, method, kind, options in (
        (1, "auto", "Particles", particles),
        (1, "ppr", "PPR", ppr),
        (13, "auto", "CalibratedPPR", ""),
    ):
        words = rf"^{kind} has no option '{name}'; its options are {options}"
        with pytest.raises(ValueError, match=words):
            feasibly.sample(PRIOR, first(m), 2, (D,), method=method, options={name: 1})


@pytest.mark.parametrize("name", ["method", "attempts", "fast"])
def test_an_argument_in_the_place_of_an_option_is_told_so(name):
    words = f"^'{name}' is an argument of sample.., and no option of a method"
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), options={name: 1})


def test_an_option_in_the_place_of_a_setting_is_told_where_to_go():
    calls = 0

    def denoiser(x_t, t):
        nonlocal calls
        calls += 1
        return PRIOR(x_t, t).mean

    denoiser.schedule = PRIOR.schedule
    words = r"^sample\(\) has no argument 'steps'; an option of the method is given as options="
    with pytest.raises(TypeError, match=words):
        feasibly.sample(denoiser, first(1), 2, (D,), steps=3)
    assert calls == 0, "before the network is evaluated"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "dps", "options": {"tries": 1}}, "DPS has no option 'tries'"),
        ({"method": "dps", "fast": True}, "fast=True is an option of 'auto' and 'ppr', not of 'd"),
        ({"attempts": 0}, r"sample\(attempts=...\) takes a whole number of at least 1, got 0"),
        ({"attempts": 2.5}, r"sample\(attempts=...\) takes a whole number or None, got 2.5"),
        ({"options": {"minimize": 3}}, r"Particles\(minimize=...\) takes a minimizer"),
        ({"method": "sampler", "options": {"steps": 3}}, "has its options already; .*replace"),
        ({"method": "sampler", "fast": True}, "has its options already"),
        ({"method": "another"}, "has the constraint None, and sample.. was given another"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_words(arguments, words):
    constraint = first(1)
    samplers = {"sampler": PPR(PRIOR, constraint), "another": Ancestral(PRIOR)}
    method = arguments.get("method", "auto")
    arguments = arguments | {"method": samplers.get(method, method)}
    with pytest.raises(ValueError, match=f"{words}"):
        feasibly.sample(PRIOR, constraint, 2, (D,), **arguments)


def test_arguments_that_are_swapped_or_no_constraint_are_named():
    with pytest.raises(ValueError, match="where the denoiser belongs; the order is sample"):
        feasibly.sample(first(1), PRIOR, 2, (D,))
    with pytest.raises(ValueError, match="got function; state a function"):
        feasibly.plan(PRIOR, lambda x: x, (D,))
    with pytest.raises(ValueError, match="got the class Bounds; make an instance of it"):
        feasibly.plan(PRIOR, Bounds, (D,))
