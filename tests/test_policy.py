"""Which kernels the default takes for each kind of problem, and what it says and refuses."""

import pickle
import re
from dataclasses import replace
from itertools import groupby

import pytest
import torch

import feasibly
from feasibly import PPR, SMC, Bounds, Composite, Equality, Inequality, Linear, Observation
from feasibly.constraints import Decoded, EachMember
from feasibly.members import calling
from feasibly.oracles import Empirical, Gaussian, GaussianMixture
from feasibly.policy import RULES, Case
from feasibly.problem import inspect
from feasibly.samplers import METHODS, Ancestral, TunedPPR
from feasibly.samplers.levels import Levels
from feasibly.schedules import VE, LogLogit
from tests.helpers import on

D = 130
ROWS = torch.eye(D)
NORMAL = Gaussian(torch.zeros(D), ROWS, LogLogit())
MODES = GaussianMixture(
    torch.ones(2) / 2, torch.zeros(2, D), torch.stack([ROWS, ROWS / 4]), LogLogit()
)
"""Data that are not normal: a narrow mode within a wide one."""

POINTS = Empirical(torch.randn(64, D, generator=torch.Generator().manual_seed(0)), LogLogit())
"""Data that do not fill their space."""

BOX = Bounds(-2.5, 2.5, tolerance=1e-6)


def first(m, value=0.3, **options):
    """The first m elements are known by a residual that is not quite affine."""
    options = options or {"tolerance": 1e-6}
    return Equality(lambda x: (x[:, :m] - value) * (1 + 0.01 * x[:, :m]), **options)


def linear(m, **options):
    return Linear(ROWS[:m], torch.full((m,), 0.3), **(options or {"tolerance": 1e-6}))


def above(value, element=0):
    return Inequality(lambda x: value - x[:, element : element + 1], tolerance=1e-6)


def of(function, m=13, level=0.3):
    """A function of the first m elements has a level."""
    return Equality(lambda x: function(x[:, :m]) - level, tolerance=1e-6)


def squared(k):
    """The last k values are squares."""
    return lambda x: torch.cat([x[:, :-k], x[:, -k:].square()], dim=1)


def plan(constraint, denoiser=NORMAL, shape=(D,), **options):
    return feasibly.plan(denoiser, constraint, shape, **options)


def kinds(chosen):
    """The kinds of kernels that attempts take, in order and each once."""
    names = (type(kernel).__name__ for kernel in chosen.kernels)
    return " ".join(name for name, _ in groupby(names))


def rule_of(chosen):
    """The number of the rule that was taken."""
    problem, monitor = chosen.kernels[-1].problem, chosen.monitor
    case = Case(problem, inspect(problem), monitor and monitor.survey)
    with calling([0], "cpu"):
        return next(k for k, rule in enumerate(RULES) if rule.when(case))


NOISY_SQUARES = Observation(lambda x: x[:, :13].square(), torch.ones(13), noise=0.1)
EACH = EachMember(first(1), torch.zeros(2, 1))
TABLE = {
    # name: the denoiser, the constraint, the kernels, and the number of the rule
    "none": (MODES, None, "Ancestral", 0),
    "one value": (NORMAL, first(1), "SMC", 3),
    "12 values": (NORMAL, first(12), "SMC", 3),
    "a target for each": (NORMAL, EACH, "SMC", 3),
    "few linear values": (MODES, linear(12), "SMC", 3),
    "values and bounds": (NORMAL, Composite([first(2), BOX]), "SMC", 3),
    "normal data, one linear value": (NORMAL, linear(1), "CalibratedPPR PPR", 1),
    "normal data, linear values": (NORMAL, linear(20), "CalibratedPPR PPR", 1),
    "an inequality of half of the data": (NORMAL, above(0.0), "Ancestral SMC", 2),
    "bounds": (NORMAL, BOX, "Ancestral SMC", 2),
    "a rare inequality": (NORMAL, above(3.0), "SMC", 3),
    "128 values of modes": (MODES, linear(128), "SMC", 4),
    "128 noisy values of modes": (MODES, linear(128, noise=0.3), "SMC", 4),
    "129 values of modes": (MODES, linear(129), "CalibratedPPR PPR", 6),
    "129 noisy values of modes": (MODES, linear(129, noise=0.3), "CalibratedPPR", 6),
    "values behind a decoder": (MODES, Decoded(first(13), lambda z: z), "CalibratedPPR PPR", 6),
    "13 values": (NORMAL, first(13), "CalibratedPPR PPR", 6),
    "13 values and bounds": (NORMAL, Composite([first(13), BOX]), "SMC", 4),
    "values of single points, and bounds": (
        POINTS,
        Composite([first(13), BOX]),
        "CalibratedPPR PPR",
        6,
    ),
    "129 linear values and bounds": (
        NORMAL,
        Composite([linear(129), BOX]),
        "CalibratedPPR PPR",
        6,
    ),
    "many values and bounds": (NORMAL, Composite([first(129), BOX]), "CalibratedPPR PPR", 6),
    "noisy values of normal data": (NORMAL, linear(13, noise=0.1), "CalibratedPPR", 1),
    "noisy squares": (NORMAL, NOISY_SQUARES, "SMC", 4),
    "sines": (NORMAL, of(lambda x: (2 * x).sin()), "SMC", 4),
    "sines whose derivatives are large": (NORMAL, of(torch.sin, 128, 0.1), "PPR", 5),
    "many sines": (NORMAL, of(lambda x: (2 * x).sin(), 129), "PPR", 5),
    "squares": (NORMAL, of(torch.square, 129), "PPR", 5),
    "four squares of 13": (NORMAL, of(squared(4)), "SMC", 4),
    "one square of 13": (NORMAL, of(squared(1)), "CalibratedPPR PPR", 6),
    "cubes of one branch": (NORMAL, of(lambda x: x + x**3), "CalibratedPPR PPR", 6),
    "squares and bounds": (NORMAL, Composite([of(torch.square, 129), BOX]), "PPR", 5),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_default_chooses_by_the_kind_of_problem_and_says_why(name):
    denoiser, constraint, expected, rule = TABLE[name]
    number = "".join(re.findall(r"^\d+", name))
    chosen = plan(constraint, denoiser)
    assert (kinds(chosen), rule_of(chosen)) == (expected, rule)
    assert number == "" or number in chosen.reason
    # the documented rules name what runs
    takes = RULES[rule].takes.replace("unconditional", "`Ancestral`").replace("Tuned", "")
    assert set(expected.split()) <= set(re.findall(r"`(\w+)`", takes))
    for sentence in re.split(r"(?<=\.) ", chosen.reason):
        assert re.fullmatch(r"[A-Z].*[A-Za-z]\.", sentence)
    nonlinear = constraint is not None and rule == 6 and not chosen.kernels[0].constraint.linear
    assert ("linearised" in chosen.reason) == nonlinear
    if constraint is not None and not constraint.differs:  # the last attempt is judged by it
        judged = chosen.kernels[-1].constraint
        x = torch.randn(64, D, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(judged.violation(x), constraint.violation(x))


def test_every_rule_is_taken_by_a_problem_of_the_table():
    assert {rule for *_, rule in TABLE.values()} == set(range(len(RULES)))


@pytest.mark.parametrize(("scale", "gap", "thick"), [(1.0, 0.05, 0.01), (100.0, 0.3, 0.07)])
def test_data_on_two_sheets_are_not_taken_as_exactly_normal(scale, gap, thick):
    """Their distance is a small part of the data's scale."""
    cov = torch.diag(torch.tensor([thick, *[scale] * 31]).double().square())
    mu = torch.zeros(2, 32).double()
    mu[:, 0] = torch.tensor([gap, -gap])
    schedule = LogLogit(1e-3 * thick, 1e2 * scale)
    prior = GaussianMixture(torch.tensor([0.8, 0.2]), mu, cov.expand(2, 32, 32), schedule)
    law = Linear(torch.eye(32)[31:], torch.zeros(1), tolerance=1e-6)
    assert kinds(plan(law, prior, (32,))) == "SMC"


def test_exactly_normal_data_take_few_steps_under_linear_values_only():
    def work(constraint, denoiser):
        forward, backward = plan(constraint, denoiser, monitor=False).expected
        return forward + 2 * backward

    few = work(linear(20), NORMAL)
    assert few < work(first(20), NORMAL) / 2
    assert few < work(linear(33), MODES) / 2


def wide(unit, size=D):
    """Normal data of another standard deviation, which the denoiser knows."""
    prior = Gaussian(torch.zeros(size), unit**2 * torch.eye(size), VE(1e-3 * unit, 1e2 * unit))
    prior.data_moments = torch.tensor(0.0), torch.tensor(unit)
    return prior


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda u: Equality(lambda x: (x[:, :2] / u - 0.3) * (1 + 0.01 * x[:, :2] / u), 1e-10),
        lambda u: Equality(lambda x: (x[:, :13] / u - 0.3) * (1 + 0.01 * x[:, :13] / u), 1e-10),
    ],
    ids=["particles", "posterior samples"],
)
def test_samples_are_in_units_of_the_data(make):
    def drawn(unit):
        prior = wide(unit, 16)
        made = plan(make(unit), prior, (16,), dtype=torch.float64)
        settings = {"dtype": torch.float64, "monitor": False, "attempts": 1}
        found = feasibly.sample(prior, make(unit), 2, (16,), **settings)
        return found.samples / unit, kinds(made)

    (one, chosen), (other, scaled) = drawn(1.0), drawn(0.01)
    assert chosen == scaled
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_inequality_that_never_acts_changes_no_sample():
    never = Composite([first(129), Bounds(-1e3, 1e3, 1e-8)])
    one, other = (
        feasibly.sample(NORMAL, constraint, 4, (D,), monitor=False, seed=1).samples
        for constraint in (first(129), never)
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_are_as_many_as_asked_for_and_the_last_two_meet_inequalities(attempts):
    """A single attempt is at all of the constraint."""
    both = Composite([first(129), BOX])
    for constraint in (None, first(129), both, BOX):
        met = [
            one.constraint is not None
            and one.constraint.inequalities is not None
            and not isinstance(one, Ancestral)
            for one in plan(constraint, attempts=attempts).kernels
        ]
        late = min(attempts, 2)
        inside = constraint is not None and constraint.inequalities is not None
        assert met == [False] * (attempts - late) + [inside] * late


def test_tuned_ppr_projects_late_on_few_residuals_and_from_high_noise_down_on_many():
    few, many = (plan(first(m), method="ppr-tuned").kernels[0] for m in (8, 9))
    assert few.sigma_max < many.sigma_max
    assert few.steps < many.steps
    assert type(few.minimize) is not type(many.minimize)
    for kernel in (few, many):
        assert type(kernel) is PPR
    assert plan(first(9), method=TunedPPR(steps=5)).kernels[0] == replace(many, steps=5)


@pytest.mark.parametrize("name", METHODS)
def test_a_named_method_is_taken_as_it_is(name):
    chosen, kind = plan(linear(3), method=name, monitor=False), METHODS[name]
    assert {type(one) for one in chosen.kernels} == {PPR if kind is TunedPPR else kind}
    assert len(chosen.kernels) == kind.attempts
    assert chosen.reason == ""
    chosen = plan(linear(3), method=kind(), attempts=3, monitor=False)
    assert len(chosen.kernels) == 3


@pytest.mark.parametrize(
    ("denoiser", "constraint"),
    [(NORMAL, first(1)), (NORMAL, first(20)), (wide(30.0), Composite([first(2), BOX]))],
    ids=["one value", "many values", "wide data and inequalities"],
)
def test_ppr_is_changed_by_nothing(denoiser, constraint):
    for method, options in (("ppr", PPR()), (PPR(), PPR()), (PPR(steps=9), PPR(steps=9))):
        (kernel,) = plan(constraint, denoiser, method=method).kernels
        assert kernel == options
        assert kernel.constraint is constraint


def test_the_options_of_a_users_smc_are_fitted_to_the_survey():
    """Levels are rounded to two digits, which may differ by one in the last."""

    def chosen(unit, **options):
        law = Equality(lambda x: (x[:, :1] / unit - 0.3) * (1 + 0.01 * x[:, :1] / unit), 1e-6)
        return plan(law, wide(unit), method=SMC(particles=3, **options)).kernels[0]

    one, other = chosen(1.0), chosen(100.0)
    assert other.levels == pytest.approx([100 * level for level in one.levels], rel=0.1)
    assert one.levels.spread == pytest.approx(1.0, abs=0.2)  # four standard errors
    assert replace(other, levels=None) == replace(one, levels=None) == SMC(particles=3)
    given = Levels(begun=9.0, weighted=5.0)
    assert chosen(100.0, levels=given).levels == given


def test_what_is_sampled_is_what_is_planned_and_the_result_shows_the_reason():
    result, chosen = feasibly.sample(NORMAL, BOX, 3, (D,), monitor=False), plan(BOX)
    assert result.reason == chosen.reason != ""
    assert chosen.reason in str(result)
    for kind in kinds(chosen).split():
        assert f"{kind}(" in result.method


def remarks(constraint, unit=1.0, ends=(1e-3, 1e2), prior=None, **options):
    prior = prior or Gaussian(torch.zeros(16), unit**2 * torch.eye(16), VE(*ends))
    return plan(constraint, prior, (16,), **options).remarks


@pytest.mark.parametrize(
    ("ends", "unit", "word"),
    [
        ((1e-3, 1e2), 1.0, None),
        ((0.15, 7.0), 1.0, None),
        ((0.3, 1e2), 1.0, "down to 0.3"),
        ((1e-3, 3.5), 1.0, "up to 3.5"),
        ((1e-3, 1e2), 30.0, "up to 100"),
        ((1e-3, 1e2), 15.0, None),
        ((1e-3, 1e2), 0.003, "down to 0.001"),
    ],
    ids=str,
)
def test_a_schedule_must_reach_five_times_above_and_below_the_datas_scale(ends, unit, word):
    """The spread of 64 x 16 numbers is within 15 % of the unit by more than six deviations."""
    law = Equality(lambda x: (x[:, :1] / unit - 0.3) * (1 + 0.1 * x[:, :1] / unit), 1e-4)
    found = remarks(law, unit, ends)
    assert len(found) == (word is not None)
    assert all(word in sentence for sentence in found)


def scaled(size, tolerance):
    """The first element, in other units."""
    return Equality(lambda x: size * (x[:, :1] - 0.3) * (1 + 0.1 * x[:, :1]), tolerance=tolerance)


def thousands(tolerance):
    """A sum that is rounded by some 1e-3 in float32, and its violation by 1e-6 or less."""
    return Equality(
        lambda x: (1000 + x).sum(dim=1) - 16000 + 0.1 * x[:, 0].square(), tolerance=tolerance
    )


MET, UNITS, ROUNDING = (
    "constrains little",
    "so small that rounding matters",
    "Rounding|rounding alone",
)
GOOD = scaled(1.0, 1e-6)


@pytest.mark.parametrize(
    ("law", "word"),
    [
        (GOOD, None),
        (scaled(1.0, 100.0), MET),
        (scaled(1e-5, 1e-16), UNITS),
        (scaled(1e5, 1e4), None),
        (scaled(1e-3, 1e-12), None),
        (above(-1.0), None),  # an inequality is met often
        (thousands(1e-12), ROUNDING),
        (thousands(1e-4), None),
        # parts of a composite are judged by themselves
        (Composite([GOOD, Composite([scaled(1.0, 100.0), above(0.0)])]), MET),
        (Composite([GOOD, GOOD], weights=[1e12, 1e-12]), None),
        (Composite([scaled(1.0, 1e-11), above(0.0)]), None),
    ],
    ids=range(11),
)
def test_an_equality_that_asks_for_nothing_or_is_in_other_units_is_told(law, word):
    found = remarks(law)
    assert len(found) == (word is not None)
    assert all(re.search(word, sentence) for sentence in found)
    if word == ROUNDING:
        assert not remarks(law, dtype=torch.float64)


def test_a_constraint_between_modes_is_said_to_be_far_and_mode_weights_to_be_uncertain():
    law = Equality(lambda x: (x[:, :1] - 0.3) * (1 + 0.01 * x[:, :1]), tolerance=1e-6)
    mu = torch.full((1, 16), 4.0)
    modes = GaussianMixture(
        torch.ones(2) / 2, torch.cat([mu, -mu]), torch.eye(16).expand(2, 16, 16), LogLogit()
    )
    assert any("near the constraint" in one for one in remarks(law, prior=modes))
    assert not remarks(law)
    (said,) = plan(linear(129), MODES).remarks
    assert "not normal" in said
    assert plan(linear(128), MODES).remarks == plan(first(129)).remarks == ()


def unseen(x_t, t):
    pytest.fail("the network was evaluated")


unseen.schedule = NORMAL.schedule
ONE = first(1)


@pytest.mark.parametrize(
    ("denoiser", "constraint", "settings", "error", "word"),
    [
        (unseen, ONE, {"method": "pr"}, ValueError, "ppr, ppr-tuned, truncated"),
        (unseen, ONE, {"method": PPR}, ValueError, "class"),
        (unseen, ONE, {"method": on(PPR(), NORMAL, ONE, (D,))}, ValueError, "bound"),
        (unseen, ONE, {"steps": 3}, TypeError, "steps"),
        (unseen, lambda x: x, {}, ValueError, "function"),
        (unseen, Bounds, {}, ValueError, "class"),
        (ONE, unseen, {}, ValueError, "order"),
    ],
    ids=range(7),
)
def test_what_does_not_fit_is_refused(denoiser, constraint, settings, error, word):
    with pytest.raises(error, match=word):
        feasibly.sample(denoiser, constraint, 2, (D,), **settings)


def test_a_plan_is_pickled_with_its_rule():
    made = feasibly.plan(NORMAL, Linear(torch.eye(D)[:1], torch.zeros(1), 1e-6), (D,))
    copied = pickle.loads(pickle.dumps(made))
    assert copied.rule is made.rule
    assert repr(copied.kernels) == repr(made.kernels)
