"""Audits of samplers whose faults are known, on normals with a fixed sum."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import pytest
import torch

import feasibly
from feasibly import members as batch
from feasibly.audits import Candidate, examine
from feasibly.audits.result import recommend
from feasibly.audits.truths import from_data, from_prior, nearest
from feasibly.calibration import Estimate
from feasibly.constraints import Composite, Equality, Inequality, Linear
from feasibly.oracles import Gaussian
from feasibly.problem import Problem
from feasibly.samplers import Method
from feasibly.samplers.base import Step
from feasibly.schedules import LogLogit

D = 4
NORMAL = Gaussian(torch.zeros(D), torch.eye(D), LogLogit())
SUM = Linear(torch.ones(1, D).double(), torch.zeros(1).double(), tolerance=1e-6)
SMALL = {"truths": 32, "members": 3, "near": 1, "monitor": False, "dtype": torch.float64}


@dataclass(frozen=True, repr=False, eq=False)
class Exact(Method):
    """Samples normals with a given sum exactly, or with a spread that is `width` of the right."""

    steps: int = 1
    output: str = "state"
    width: float = 1.0
    shift: float = 0.0

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        x = randn(x_t)
        middle = x.mean(dim=1, keepdim=True)
        right = middle - self.constraint.residual(x) / D
        x = right + self.width * (x - middle)
        x[:, 0] += self.shift
        x[:, 1] -= self.shift
        return Step(x, x)


@pytest.fixture
def quick(monkeypatch):
    """Truths of few steps, where it does not matter whether they are right."""
    monkeypatch.setattr("feasibly.audits.truths.STEPS", 16)


def audit(*methods, constraint=SUM, **settings):
    return feasibly.audit(NORMAL, constraint, (D,), methods=methods, **(SMALL | settings))


def conditional(seed, truths=64, members=7, width=1.0, size=30):
    """Normals, and normals of the same mean, all at once."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(truths, size, generator=generator, dtype=torch.float64)
    e = torch.randn(truths, members, size, generator=generator, dtype=torch.float64)
    return x, x.mean(dim=1)[:, None, None] + width * (e - e.mean(dim=2, keepdim=True))


@pytest.mark.slow
def test_an_exact_sampler_is_found_at_fault_as_rarely_as_is_said():
    """In 40 examinations at a level of 0.2. More than 17 faults are found in one of 1000 runs with
    other seeds if the level is exact; Holm's method is below it."""
    seen = [examine(*conditional(k, 24, 3, size=5), level=0.2, seed=k) for k in range(40)]
    assert sum(one.faulty for one in seen) <= 17
    # each family by itself is uniform: fewer than 8 or more than 32 of 40 below a half in one of
    # 10,000 runs, for each of 6 families
    for family in range(6):
        assert 8 <= sum(one.findings[family].p <= 0.5 for one in seen) <= 32


@pytest.mark.slow
def test_what_the_tolerance_allows_is_no_fault():
    """In 20 examinations at a level of 0.2. More than 10 faults are found in one of 1000 runs with
    other seeds. Members miss the sum by 0.1, about a tenth of what it varies by from truth to
    truth."""
    found = 0
    for k in range(20):
        x, members = conditional(k, 24, 3, size=5)
        missed = 0.1 * torch.randn(24, 3, 1, generator=torch.Generator().manual_seed(k)).double()
        seen = examine(x, members + missed / 5, settled=members, level=0.2, seed=k)
        found += seen.faulty
        assert "mean" not in seen.ranks
        assert "principal direction 4" in seen.ranks
        assert "principal direction 5" not in seen.ranks
    assert found <= 10
    x, members = conditional(0, 100, 7, size=5)  # if nobody says so, it is one
    missed = torch.randn(100, 7, 1, generator=torch.Generator().manual_seed(0)) / 50
    assert examine(x, members + missed).faulty
    assert not examine(x, members + missed, settled=members).faulty


@pytest.mark.parametrize("missed", [0.0, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_isolated_solutions_of_unequal_weights_are_no_fault(missed):
    """In 10 examinations at a level of 0.05. More than 3 faults are found in one of 1000 runs
    with other seeds. In most rows all entries are in one mode, or equal."""
    found = 0
    for k in range(10):
        generator = torch.Generator().manual_seed(k)
        size = 1 + torch.rand(64, 1, 1, generator=generator).double()
        x = size * (2.0 * (torch.rand(64, 8, 1, generator=generator) < 0.9) - 1)
        members = x[:, 1:] * (1 + missed * torch.rand(64, 7, 1, generator=generator))
        settled = x[:, 1:] * (1 + 1e-9 * torch.randn(64, 7, 1, generator=generator).double())
        found += examine(x[:, 0], members, settled=settled, seed=k).faulty
    assert found <= 3


def test_what_a_loose_tolerance_allows_hides_no_fault_elsewhere():
    """Half of the elements are known, and missed by a tenth; the others are off centre."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1, 32, generator=generator).double()
    free = torch.randn(64, 7, 16, generator=generator).double() + 1.0
    settled = torch.cat([x[..., :16].expand(-1, 7, -1), free], dim=2)
    missed = settled.clone()
    missed[..., :16] += 0.1 * torch.randn(64, 7, 16, generator=generator)
    seen = examine(x[:, 0], missed, settled=settled)
    assert "off centre" in seen.verdict
    assert sum("principal" in name for name in seen.ranks) == 16


def test_an_examination_of_what_does_not_vary_says_so():
    x = torch.randn(20, 3, dtype=torch.float64)
    members = x[:, None] + 1e-3 * torch.randn(20, 4, 3).double()
    seen = examine(x, members, settled=x[:, None].expand(-1, 4, -1))
    assert seen.verdict.startswith("nothing to test")
    assert not seen.faulty


def test_words_have_the_sign_of_the_test_where_rows_differ_in_scale():
    """Members are too narrow in all rows; of such rows the pooled moments may say the contrary."""
    x, members = conditional(3, width=0.5, size=5)
    scale = (3 * torch.randn(64, 1, generator=torch.Generator().manual_seed(1))).exp()
    seen = examine(scale * x, scale[:, None] * members)
    assert "too narrow" in seen.verdict
    assert "wide" not in seen.verdict


@pytest.mark.slow
def test_the_sentence_without_a_fault_names_what_is_found_in_four_of_five():
    """A shift of the stated size along the only direction is found in fewer than 6 of 12 audits
    in 4 of 1000 runs with other seeds, if it is found in four of five."""
    found = 0
    for k in range(12):
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(64, 8, 1, generator=generator).double()
        sentence = examine(x[:, 0], x[:, 1:], seed=k).verdict
        if "no miscalibration" in sentence:
            size = float(sentence.split("of the spread, ")[1].split(" ")[0])
        found += examine(x[:, 0], x[:, 1:] + size, seed=k).faulty
    assert 0.4 < size < 0.8
    assert found >= 6


def test_members_that_are_odd_to_the_denoiser_are_found():
    x, members = conditional(0)
    odd = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
    assert not examine(x, members, oddness=odd).faulty
    odd[:, 1:] *= 3
    seen = examine(x, members, oddness=odd)
    assert [f.family for f in seen.findings if f.found] == ["support"]
    assert seen.verdict == "samples look less like data to the denoiser than truths do"
    odd[:, 1:] /= 9
    assert "more like data" in examine(x, members, oddness=odd).verdict


def test_a_spread_of_0_73_is_found_at_64_truths_with_7_members():
    seen = examine(*conditional(1, width=0.73))
    spread = seen.findings[0]
    assert (spread.family, spread.found) == ("spread", True)
    assert spread.p < 1e-6
    assert seen.ratio.value == pytest.approx(0.73, abs=4 * seen.ratio.error)
    assert seen.verdict.startswith("too narrow by 2")
    exact = examine(*conditional(1))
    assert exact.verdict.startswith("no miscalibration found; with this many truths, errors below")
    assert exact.energy.value < seen.energy.value


def test_an_audit_recommends_what_is_right_and_sample_takes_it(capsys):
    right, narrow = Exact(), Exact(width=0.6)
    settings = {"truths": 64, "members": 7, "near": 2, "progress": True}
    found = audit(narrow, right, "ppr", **settings)
    assert [c.name for c in found.candidates] == ["Exact", "Exact 2", "ppr"]
    assert found["Exact"].examination.findings[0].p < 1e-6
    assert found["Exact"].verdict.startswith("too narrow by ")
    ratio = found["Exact"].examination.ratio
    assert ratio.value == pytest.approx(0.6, abs=4 * ratio.error)
    assert not found["Exact 2"].examination.faulty
    assert (found.recommended, found.best) == ("Exact 2", right)
    assert 0 <= found.regret < 0.2
    assert found["Exact"].feasible == found["Exact 2"].feasible == 1
    assert found["Exact 2"].evaluations == 0  # it asks no network
    assert "64 truths with 7 samples each take" in capsys.readouterr().err
    assert "Use Exact 2." in str(found)
    assert "is the lowest, with 95 %" in replace(found, regret=0.0).recommendation
    cheap = replace(found, recommended="ppr", cheaper="Exact 2").recommendation
    assert "Exact 2 takes 0 evaluations per sample instead of " in cheap
    result = feasibly.sample(NORMAL, SUM, 5, (D,), method=found.best, monitor=False)
    assert result.feasible.all()


def test_members_off_centre_are_found():
    found = audit(Exact(shift=1.0), truths=64)
    assert "off centre by" in found["Exact"].verdict
    assert found.recommendation.startswith(
        "Exact comes closest, but it is miscalibrated. Do not use"
    )


@pytest.mark.parametrize(
    "kind", [pytest.param(feasibly.CalibratedPPR, marks=pytest.mark.slow), feasibly.PPR]
)
def test_members_do_not_depend_on_the_batch_size_or_the_store(kind, tmp_path, quick):
    method, name = kind(steps=6), kind.__name__
    few = {"truths": 16, "members": 3}
    whole = audit(method, **few)[name].members
    assert whole.shape == (16, 3, D)
    by_tens = audit(method, batch_size=10, **few)[name].members
    torch.testing.assert_close(by_tens, whole, rtol=1e-6, atol=1e-6)
    stored = audit(method, batch_size=20, path=tmp_path, **few)
    torch.testing.assert_close(stored[name].members, whole, rtol=1e-6, atol=1e-6)
    # a member that is lost is sampled again, and no other
    store = feasibly.ensemble.Store(tmp_path / f"0-{name}.zarr")
    kept = (store.records / "40.json").stat().st_mtime_ns
    (store.records / "41.json").unlink()
    again = audit(method, batch_size=7, path=tmp_path, **few)
    torch.testing.assert_close(again[name].members, whole, rtol=1e-6, atol=1e-6)
    assert (store.records / "40.json").stat().st_mtime_ns == kept
    with pytest.raises(feasibly.StoreError):
        audit(method, path=tmp_path, seed=1, **few)


def test_each_truth_satisfies_its_own_statement_and_each_member_that_of_its_truth(quick):
    found = audit("ppr", truths=16)
    sums = found.truths.sum(dim=1)
    assert sums.std() > 1
    gaps = found["ppr"].members.sum(dim=2) - sums[:, None]
    assert gaps.abs().max() <= 1e-3


class Alone(Exact):
    """Notes the members of its runs, and takes those of one truth only."""

    one_target = True
    runs: ClassVar[list] = []

    def begin(self, noise):
        self.runs.append(noise.members)
        return super().begin(noise)


def test_a_sampler_of_one_target_makes_a_run_for_each_truth(tmp_path, quick):
    Alone.runs.clear()
    found = audit(Alone(), truths=16, members=2, path=tmp_path)
    gaps = found["Alone"].members.sum(dim=2) - found.truths.sum(dim=1)[:, None]
    assert gaps.abs().max() <= 1e-3
    assert Alone.runs == [(2 * k, 2 * k + 1) for k in range(16)]


@pytest.mark.slow
def test_truths_near_the_constraint_are_those_of_the_least_residuals():
    x = torch.tensor([[3.0], [-0.1], [0.2], [-5.0]])
    residual = Equality(lambda x: x, tolerance=1e-6)
    assert torch.equal(nearest(residual, x, 2), x[1:3])
    spread = [audit(Exact(), near=near).truths.sum(dim=1).std() for near in (1, 4)]
    assert spread[1] < spread[0] / 2


@pytest.mark.slow
def test_truths_satisfy_inequalities_which_members_meet_too(quick):
    positive = Inequality(lambda x: -x[:, :1], tolerance=1e-8)
    few = {"truths": 16, "members": 2}
    both = Composite([SUM, positive])
    found = audit(feasibly.PPR(steps=8), constraint=both, **few)
    for x in (found.truths, found["PPR"].members.flatten(end_dim=1)):
        assert (x[:, 0] > -2e-3).all()
    for method, why in (("eci", "in closed form"), ("calibrated", "is for equalities")):
        with pytest.raises(ValueError, match=why):
            audit("auto", method, constraint=positive, **few)
    rare = Inequality(lambda x: 6 - x[:, :1], tolerance=1e-8)
    with pytest.raises(feasibly.SamplingError, match="satisfy the inequalities"):
        from_prior(Problem(NORMAL, rare, (D,)), 16, 1, seed=0)


def test_a_budget_leaves_fewer_truths_and_says_so(quick):
    each = 3 * sum(feasibly.PPR().bind(Problem(NORMAL, SUM, (D,))).budget(1))
    found = audit("ppr", budget=20 * each + 1)
    assert len(found.truths) == 20
    assert "allows only 20 of 32 truths" in str(found)
    with pytest.raises(ValueError, match=rf"needs at least 16, which take {16 * each}"):
        audit("ppr", budget=16 * each - 1)


@pytest.mark.slow
def test_data_tell_a_fault_of_the_model_from_one_of_the_sampler():
    """The model's standard deviation is 1, and that of the data 1.5."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(400, D, generator=generator, dtype=torch.float64)
    settings = {"truths": 64, "members": 7}
    wide = audit(Exact(), data=1.5 * data, **settings)
    assert wide["Exact"].examination.faulty
    assert "too narrow by 3" in wide.model.verdict
    assert "may be the model's" in wide.notes[-1]
    same = audit(Exact(width=0.6), data=data, **settings)
    assert same["Exact"].examination.faulty
    assert not same.model.examination.faulty
    assert "more likely due to the methods" in same.notes[-1]
    with pytest.raises(ValueError, match="shape"):
        from_data(data[:, :2], SUM, 16, 0, data[:1])
    with pytest.raises(feasibly.SamplingError, match="needs at least 16 truths"):
        audit(Exact(), data=data[:9])


@pytest.mark.slow
def test_a_summary_of_the_user_is_tested_unless_the_constraint_fixes_it():
    statistics = {"sum": lambda x: x.sum(dim=1), "ends": lambda x: x[:, [0, -1]]}
    seen = audit(Exact(shift=2.0), statistics=statistics, truths=64)["Exact"].examination
    assert {"ends 0", "ends 1"} <= set(seen.ranks)
    assert "sum" not in seen.ranks
    assert "mean" not in seen.ranks
    summaries = {f.family: f for f in seen.findings}["summaries"]
    assert summaries.found
    assert summaries.fault == "the ends 0 is off centre"
    with pytest.raises(ValueError, match="'bad' returned shape \\(3, 4\\) for 64 samples"):
        audit(Exact(), statistics={"bad": lambda x: x[:3]})


def test_candidates_and_the_model_share_the_level(monkeypatch, quick):
    levels = []

    def spy(*arguments, level, **settings):
        levels.append(level)
        return examine(*arguments, level=level, **settings)

    monkeypatch.setattr("feasibly.audits.run.examine", spy)
    audit(Exact(), Exact(width=0.5), data=torch.randn(99, D), level=0.06)
    assert levels == pytest.approx([0.02] * 3)


@pytest.mark.slow
def test_an_audit_says_what_sample_would_warn_of_and_that_a_target_is_unlike_its_truths(quick):
    loose = Equality(lambda x: x[:, :1], tolerance=1e2)
    assert "constrains little" in " ".join(audit("ppr", constraint=loose, monitor=True).notes)
    for target, unlike in ((1.0, False), (40.0, True)):
        far = Equality(lambda x, y=target: x.sum(dim=1) - y, tolerance=1e-6)
        assert ("Your target is unlike" in " ".join(audit("ppr", constraint=far).notes)) == unlike


@pytest.mark.slow
def test_a_recommended_method_whose_members_are_infeasible_is_said_to_be(quick):
    found = audit("dps")
    assert "only 0.0% of its samples are feasible" in found.recommendation
    assert found["dps"].faulty
    assert not audit(Exact())["Exact"].faulty


@pytest.mark.slow
def test_equal_candidates_are_audited_once(quick):
    found = audit("dps", feasibly.DPS(), feasibly.DPS(steps=8), Exact(), Exact())
    assert [c.name for c in found.candidates] == ["dps", "DPS", "Exact"]
    assert "DPS is the same as dps" in found.notes[0]
    assert "same as Exact" in found.notes[1]


@cache
def examined(width):
    return examine(*conditional(1, 16, 2, size=3, width=width))


def candidate(name, energy, noise, evaluations, feasible=1.0, faulty=False):
    """A candidate with the given scores, and a fault or none."""
    seen = examined(0.02 if faulty else 1.0)
    assert seen.faulty == faulty
    scores = torch.full((100,), energy).double()
    scores += noise * torch.randn(100, generator=torch.Generator().manual_seed(len(name)))
    seen = replace(seen, scores=scores, energy=Estimate(scores.mean().item(), 0.0))
    return Candidate(name, name, examination=seen, feasible=feasible, evaluations=evaluations)


def test_the_recommendation_is_feasible_scores_well_and_is_sound_in_this_order():
    best = candidate("a", 1.0, 0.0, 500)
    worse = candidate("bb", 1.1, 0.0, 10)
    for both in ([best, worse], [worse, best]):
        assert recommend(both)[::2] == (best, None)
    like = candidate("bb", 1.0, 0.2, 10)
    assert recommend([best, like])[::2] == (best, like)  # the first, and one that is cheaper
    chosen, regret, cheaper = recommend([like, best])
    assert chosen is like
    assert cheaper is None
    gap = like.examination.scores - 1
    assert regret == pytest.approx((gap.mean() + 1.645 * gap.std() / 10).item(), rel=1e-6)
    for other in (
        candidate("cc", 1.0, 0.2, 10, faulty=True),
        candidate("cc", 0.5, 0.0, 10, feasible=0.9),
        Candidate("cc", "cc", failure="no"),
    ):
        for both in ([best, other], [other, best]):
            assert recommend(both)[::2] == (best, None)
    assert recommend([Candidate("cc", "cc", failure="no")])[0] is None
    few = candidate("dd", 2.0, 0.0, 10, feasible=0.5)
    assert recommend([few, candidate("cc", 0.5, 0.0, 10, feasible=0.4)])[0] is few


def test_a_score_that_is_surely_less_counts_more_than_a_fault():
    sound = candidate("bb", 1.1, 0.2, 10)
    assert recommend([candidate("a", 1.0, 0.0, 500, faulty=True), sound])[0].name == "a"
    # all have faults: the least score
    faulty = [candidate(name, 1.0, 0.2, 10, faulty=True) for name in ("a", "bb")]
    least = min(faulty, key=lambda one: one.examination.energy.value)
    for both in (faulty, faulty[::-1]):
        assert recommend(both)[0] is least


def test_members_that_failed_leave_out_their_truth():
    x, members = conditional(0, 20, 3)
    members[3, 1] = math.nan
    seen = examine(x, members)
    assert seen.scores.isnan().nonzero().tolist() == [[3]]
    assert "1 truth with non-finite samples left out" in seen.verdict
    with pytest.raises(ValueError, match="8 truths"):
        examine(x[:5], members[:5])


class Conditional(torch.nn.Module):
    """Has conditions of its own for each member."""

    def __init__(self):
        super().__init__()
        self.schedule = NORMAL.schedule

    def forward(self, x_t, t):
        ids = batch.current()
        return NORMAL(x_t, t).mean + (0 if ids is None else ids[:, None] % 2)


def test_a_denoiser_with_conditions_of_its_own_for_members_is_refused():
    with pytest.raises(feasibly.DenoiserError, match="the same conditions for all"):
        feasibly.audit(Conditional(), SUM, (D,), methods=("ppr",), truths=16, members=2)


@pytest.mark.slow
def test_the_page_says_what_each_picture_means(tmp_path, quick):
    found = audit(Exact(width=0.5))
    found.save_html(tmp_path / "new" / "audit.html")
    text = (tmp_path / "new" / "audit.html").read_text()
    assert text.count("<img") == 2
    for words in (
        "a U means that the samples are too narrow",
        "should follow the diagonal",
        "too narrow by",
    ):
        assert words in text
    assert json.dumps(found.table())  # plain text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"truths": 15}, "at least 16"),
        ({"members": 1}, "at least 2"),
        ({"level": 0.0}, "between 0 and 1"),
        ({"level": "0.05"}, "takes a number"),
        ({"budget": "many"}, "budget=...\\) takes a whole number"),
        ({"seed": 2**40}, "seed=...\\) takes a whole number"),
        ({"methods": None}, "list of methods or their names"),
        ({"statistics": len}, "takes a dict"),
        ({"statistics": {"a": 3}}, "dict of functions"),
        ({"constraint": None}, "takes a constraint"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("nothing",)}, "no method 'nothing'"),
    ],
)
def test_wrong_arguments_are_refused(settings, words):
    arguments = {"constraint": SUM, "methods": ("ppr",)} | SMALL | settings
    with pytest.raises(ValueError, match=words):
        feasibly.audit(NORMAL, arguments.pop("constraint"), (D,), **arguments)
