"""The list of studies, and what each of them says."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from experiments import studies
from experiments.records import BASE, DEFAULT, TRUTH
from experiments.samplers import ppr
from experiments.studies import MEASUREMENTS, STUDIES
from experiments.studies.ablation import NoRenoise
from experiments.tests.conftest import sampled
from feasibly import LevelSet
from feasibly.constraints import GaussianRandomField
from feasibly.oracles import Checkerboard
from feasibly.problem import Problem
from feasibly.problems.data2d import Lines
from feasibly.schedules import LogLogit

ROOM = Path(studies.__file__).parent
PROBLEMS = {
    "data2d",
    "lines",
    "curves",
    "oracles",
    "exact",
    "heat",
    "solutions",
    "ks",
    "weather",
    "equations",
}


def test_every_study_of_the_folder_is_in_the_list():
    named = {name.replace("-", "_") for name in (s.name for s in (*STUDIES, *MEASUREMENTS))}
    assert named == {path.stem for path in ROOM.glob("*.py")} - {"__init__"} | {
        "inside",
        "linear",
        "peers",
        "rare",
    }


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_study_asks_one_question_and_its_settings_are_of_its_samplers(study):
    assert study.question.endswith("?")
    assert set(study.on) <= PROBLEMS
    for comparison in study.on.values():
        labels = comparison.samplers.keys()
        assert labels & {DEFAULT, BASE}
        assert TRUTH not in labels
        assert comparison.protocol.keys() | comparison.only.keys() <= labels


def test_a_variant_takes_over_the_settings_and_the_attempts_of_the_default():
    problem = Problem(Checkerboard(4, LogLogit()), LevelSet(GaussianRandomField(seed=0)), (2,))
    own, variant = (ppr(problem, kind=kind, repeats=3).kernels for kind in (None, NoRenoise))
    assert [type(one) for one in variant] == [NoRenoise] * len(own)
    assert len({id(one) for one in variant}) == 1
    names = [f.name for f in fields(own[0]) if f.name != "problem"]
    mine, other = ([getattr(one, name) for name in names] for one in (own[0], variant[0]))
    assert mine == other
    assert variant[0].repeats == 3


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_samplers_of_every_study_give_finite_samples():
    """One for each method, minimizer and output of Data2D and lines; others differ in numbers."""
    oracle = Checkerboard(4, LogLogit())
    curve, line = LevelSet(GaussianRandomField(seed=0)), Lines("banana").constraint(0)
    seen = set()
    for study in STUDIES:
        for problem in study.on.keys() & {"data2d", "lines"}:
            for label, make in study.on[problem].samplers.items():
                constraint = line if problem == "lines" else curve
                if "ideal kernel" in label or (
                    label.startswith(("CDIM", "ECI")) and constraint is curve
                ):
                    continue  # for a finite data set, and for linear constraints
                kernel = make(Problem(oracle, constraint, (2,))).kernels[0]
                minimize = type(getattr(kernel, "minimize", None))
                kind = (type(kernel), minimize, kernel.output)
                if kind in seen:
                    continue
                seen.add(kind)
                few = replace(kernel, steps=3)  # as many as reach every noise level
                samples = sampled(few, 4).samples
                assert samples.isfinite().all(), (study.name, problem, label)
    assert len(seen) > 20
