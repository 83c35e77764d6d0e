"""Which samplers a problem gets, and why."""

from dataclasses import replace

import pytest
import torch

import feasibly
from feasibly import PPR, Ancestral, Bounds, Composite, Equality, TruncatedPPR
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.oracles import Gaussian
from feasibly.samplers import METHODS, CalibratedPPR, Rejection
from feasibly.schedules import LogLogit

D = 16
PRIOR = Gaussian(torch.zeros(D), torch.eye(D), LogLogit())
BOX = Bounds(-2.0, 2.0, tolerance=1e-6)
LINEAR = feasibly.Linear(torch.eye(D)[:3], torch.zeros(3), tolerance=1e-6)


def first(m):
    """The first m coordinates are to be 0.3."""
    return Equality(lambda x: x[:, :m] - 0.3, tolerance=1e-6)


def plan(constraint, **options):
    return feasibly.plan(PRIOR, constraint, (D,), **options)


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
    "last": WarmLBFGS(steps=48),
}


def test_up_to_eight_residuals_are_projected_on_late_and_more_from_high_noise_down():
    for m, settings in ((1, FEW), (8, FEW), (9, MANY), (16, MANY)):
        constraint = first(m)
        attempts = plan(constraint).attempts
        assert len(attempts) == 4
        assert all(sampler is attempts[0] for sampler in attempts)
        assert same(attempts[0], ppr(constraint, **settings))


def test_the_reason_is_a_sentence_with_the_number_of_residuals():
    assert plan(first(1)).reason == (
        "The constraint has one residual: PPR projects late, by Gauss-Newton."
    )
    assert plan(first(12)).reason == (
        "The constraint has 12 residuals: PPR projects from high noise down, by L-BFGS."
    )


def test_fast_takes_fewer_iterations_and_nothing_else():
    (few, *_), (many, *_) = plan(first(1), fast=True).attempts, plan(first(9), fast=True).attempts
    assert same(few, ppr(few.constraint, **FEW | {"minimize": GaussNewton(steps=1)}))
    fewer = {"minimize": WarmLBFGS(steps=11), "last": WarmLBFGS(steps=33)}
    assert same(many, ppr(many.constraint, **MANY | fewer))


@pytest.mark.parametrize("m", [1, 12])
def test_fast_asks_for_fewer_gradients_and_still_lands(m):
    curved = Equality(lambda x: x[:, :m] + x[:, :m] ** 3 - 0.3, tolerance=1e-10)
    settings = {"dtype": torch.float64, "options": {"steps": 24}}
    quick, full = (
        feasibly.sample(PRIOR, curved, 4, (D,), fast=fast, **settings) for fast in (True, False)
    )
    assert quick.feasible.all()
    assert quick.evaluations.backward < full.evaluations.backward


def test_inequalities_sample_the_prior_first_and_are_projected_on_in_the_end():
    chosen = plan(BOX)
    prior, truncated = chosen.attempts[0], chosen.attempts[-1]
    assert [type(sampler) for sampler in chosen.attempts] == [Ancestral] * 4 + [TruncatedPPR] * 2
    assert {id(sampler) for sampler in chosen.attempts} == {id(prior), id(truncated)}
    assert same(prior, Ancestral(PRIOR, BOX, steps=64))
    assert same(truncated, TruncatedPPR(PRIOR, BOX, repeats=1, **MANY))
    # one inequality is found by Gauss-Newton, and from high noise down all the same
    (*_, one) = plan(feasibly.Inequality(lambda x: x[:, :1], tolerance=1e-6)).attempts
    assert (one.steps, one.sigma_max, one.minimize) == (64, 10.0, GaussNewton(steps=2))
    assert "inequality" in chosen.reason


def test_inequalities_beside_equalities_are_projected_on_in_the_last_attempts():
    line = first(2)
    both = Composite([line, BOX])
    chosen = plan(both)
    assert [type(sampler) for sampler in chosen.attempts] == [PPR] * 4
    early, late = chosen.attempts[0], chosen.attempts[-1]
    assert [id(s) for s in chosen.attempts] == [id(early)] * 2 + [id(late)] * 2
    assert late.constraint is both
    x = torch.ones(3, D)
    torch.testing.assert_close(early.constraint.residual(x), both.equalities.residual(x))
    # they differ in the constraint alone, and are chosen for all residuals
    assert same(replace(early, constraint=both), late)
    assert same(late, ppr(both, **MANY))
    assert "inequalities too" in chosen.reason


def test_the_number_of_attempts_is_split_as_the_policys_own():
    for attempts, priors in ((1, 0), (2, 0), (3, 1), (7, 5)):
        kinds = [type(s) for s in plan(BOX, attempts=attempts).attempts]
        assert kinds == [Ancestral] * priors + [TruncatedPPR] * (attempts - priors)
        both = Composite([first(2), BOX])
        found = [s.constraint is both for s in plan(both, attempts=attempts).attempts]
        assert found == [False] * priors + [True] * (attempts - priors)
        assert len(plan(first(2), attempts=attempts).attempts) == attempts


def test_without_a_constraint_the_prior_is_sampled():
    chosen = plan(None, options={"steps": 12})
    assert chosen.reason == "There is no constraint to satisfy."
    (sampler,) = chosen.attempts
    assert same(sampler, Ancestral(PRIOR, steps=12))
    assert len(plan(None, attempts=2).attempts) == 2


def test_an_option_takes_the_place_of_the_policys_and_leaves_the_others():
    given = {"steps": 5, "eta": 0.5, "repeats": 3, "sigma_max": 2.0, "output": "denoised"}
    (sampler, *_) = plan(first(9), options=given).attempts
    assert same(sampler, PPR(PRIOR, sampler.constraint, **MANY | given))
    # a minimizer that is given is taken as it is, to the last projection
    (sampler, *_) = plan(first(9), options={"minimize": LBFGS(steps=4)}).attempts
    assert (sampler.minimize, sampler.last, sampler.steps) == (LBFGS(steps=4), None, 64)
    (sampler, *_) = plan(first(9), options={"last": LBFGS(steps=4)}).attempts
    assert (sampler.minimize, sampler.last) == (WarmLBFGS(steps=16), LBFGS(steps=4))
    # those of a prior's run are the prior's as well
    given = {"steps": 9, "spacing": "time", "eta": 0.0, "output": "state"}
    prior, *_, last = plan(BOX, options=given).attempts
    for sampler in (prior, last):
        assert {name: getattr(sampler, name) for name in given} == given


def test_ppr_by_name_is_the_policys():
    constraint = first(3)
    chosen, auto = plan(constraint, method="ppr"), plan(constraint)
    assert len(chosen.attempts) == len(auto.attempts)
    assert all(map(same, chosen.attempts, auto.attempts))
    assert chosen.reason == auto.reason


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
    assert sampler.minimize == WarmLBFGS(steps=48)
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
    again = feasibly.sampling.run(chosen.attempts, 3, (D,), seed=4, chunk=2)
    assert torch.equal(result.samples, again.samples)
    assert result.method == again.method
    assert result.reason == chosen.reason
    assert again.reason == ""
    assert str(chosen.reason) in str(result)


def test_an_unknown_method_is_refused_with_the_names_of_all():
    words = "^There is no method 'pr'; choose 'auto' or one of ppr, truncated, calibrated, rej"
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), method="pr")
    words = r"^PPR is a class; give its name in quotes, or a sampler, such as PPR\(denoiser, con"
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), method=PPR)


@pytest.mark.parametrize("name", ["zeta", "denoiser", "constraint", "problem"])
def test_an_unknown_option_is_refused_with_the_names_of_all(name):
    words = (
        rf"^PPR has no option '{name}'; its options are eta, last, minimize, output, repeats, "
        "sigma_max, spacing, steps"
    )
    with pytest.raises(ValueError, match=words):
        feasibly.sample(PRIOR, first(1), 2, (D,), options={name: 1})


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
        ({"attempts": 0}, r"sample\(attempts=...\) takes whole numbers, at least 1, got 0"),
        ({"attempts": 2.5}, r"sample\(attempts=...\) takes whole numbers, at least 1, got 2.5"),
        ({"options": {"minimize": 3}}, r"PPR\(minimize=...\) takes a minimizer"),
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
