"""What a public function cannot take is refused in words of our own, before any evaluation."""

import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

import feasibly
from feasibly import constraints, ensemble, schedules
from feasibly.arguments import typed
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.policy import Plan
from feasibly.problem import Problem
from feasibly.samplers import DPS, PPR, SMC

SCHEDULE = schedules.LogLogit()
LINE = feasibly.Equality(lambda x: x[:, :1], tolerance=1e-6)


class Untouched(torch.nn.Module):
    """A denoiser that must not be called."""

    schedule = SCHEDULE

    def forward(self, x_t, t):
        pytest.fail("the network was evaluated")


NET = Untouched()


PROBLEM = Problem(NET, LINE, (2,))
KERNEL = PPR().bind(PROBLEM)
PLAN = Plan((KERNEL,))


def sample(n=4, shape=(2,), **options):
    return feasibly.sample(NET, LINE, n, shape, **options)


def plan(shape=(2,), **options):
    return feasibly.plan(NET, LINE, shape, **options)


def run(kernels=(KERNEL,), members=4, **options):
    return feasibly.run.run(kernels, members, **options)


def fill(plan=PLAN, path="never.zarr", n=4, **options):
    return ensemble.run(plan, path, n, **options)


def check(shape=(2,), **options):
    return feasibly.check(NET, LINE, shape, **options)


def audit(**options):
    return feasibly.audit(NET, LINE, (2,), **options)


def estimate(kernel=KERNEL, **options):
    return ensemble.estimate(kernel, **options)


FLAG, NUMBER, TEXT, FUNCTION = ("no", 1, None), ("1", None, True), (3, None), (3, "f")
COUNT = ("1", 1.5, True, 0, -1)
TABLE = [
    (sample, "n", (2**40, True, -1, 0, 2.5, "4", None, {}, [1, 1], [-1], [0.5], 2**31)),
    (sample, "shape", ((2**40,), 2, "2", (0,), (2.5,), None, {}, (2**70,))),
    (sample, "method", (3, "foo", PPR, None, ["ppr"], KERNEL)),
    (sample, "error", ("1", 0, -1.0)),
    (sample, "attempts", COUNT),
    (sample, "monitor", ("x", 1, None)),
    (sample, "dtype", ("float32", torch.float16, torch.int32, None)),
    (sample, "device", ("foo", 3.5, "meta", "cuda:99")),
    (sample, "seed", ("1", 1.5, True, -1, 2**32, None)),
    (sample, "batch_size", ("auto", *COUNT)),
    (sample, "callback", FUNCTION),
    (plan, "shape", (2, "2", (0,))),
    (plan, "method", (3, "foo", PPR)),
    (plan, "monitor", (3, "x", None)),
    (plan, "batch_size", ("auto", *COUNT)),
    (run, "kernels", (KERNEL, 3, None, [], [PPR()])),
    (run, "members", (2**40, True, -1, 0, 2.5, "4", None, [1, 1], [-1])),
    (run, "seed", ("1", 1.5, True, -1, 2**32)),
    (run, "observe", FUNCTION),
    (run, "monitor", ("x", True, 3)),
    (run, "reason", TEXT),
    (fill, "plan", (NET, KERNEL, 3, "ppr", [], None)),
    (fill, "path", (3, None)),
    (fill, "n", (2**40, True, 0, "4", None, [0, 1])),
    (fill, "seed", ("1", 1.5, True, -1, 2**32)),
    (fill, "batch_size", ("all", True, 0, 1.5, None)),
    (fill, "infeasible", ("no", None, 3)),
    (fill, "population", COUNT),
    (fill, "layout", ("x", 3)),
    (fill, "source", ("x", 3, {"denoiser": 1})),
    (fill, "workers", ("a", 1.5, True, 0)),
    (fill, "sharing", ("a", 1.5, True, 0)),
    (fill, "rank", ("a", 1.5, True, -1, 1)),
    (fill, "callback", FUNCTION),
    (fill, "progress", FUNCTION),
    (fill, "planned", FUNCTION),
    (check, "shape", (2, "2", (0,))),
    (check, "seed", ("1", -1, 1.5, 2**32)),
    (check, "dtype", ("float32", torch.int8)),
    (check, "data", ("x", 3, [1.0], torch.ones(3))),
    *(
        (audit, name, values)
        for name, values in {
            "methods": (3, [3], ["foo"]),
            "truths": COUNT,
            "members": COUNT,
            "near": COUNT,
            "budget": COUNT,
            "level": ("a", 0, 1, None, True),
            "statistics": (3, {"a": 3}, "mean"),
            "seed": ("1", -1, 2**32),
            "batch_size": COUNT,
            "monitor": FLAG,
            "dtype": ("float32",),
            "device": ("foo",),
            "path": (3,),
            "progress": FUNCTION,
        }.items()
    ),
    (estimate, "kernel", (3, None, [], PPR())),
    (estimate, "members", COUNT),
    (estimate, "population", ("1", 1.5, True, None)),
    (lambda **o: Problem(NET, LINE, **({"shape": (2,)} | o)), "shape", (2, "2", (0,), None)),
    (lambda **o: Problem(NET, LINE, (2,), **o), "batch_size", COUNT),
    (lambda **o: Problem(NET, LINE, (2,), **o), "device", ("foo", 3.5)),
    *(
        (kind, name, values)
        for kind, name, values in (
            (PPR, "steps", COUNT),
            (PPR, "spacing", (3, "even", None)),
            (PPR, "eta", ("1", None, 2.0, -1)),
            (PPR, "output", (3, "mean")),
            (PPR, "minimize", (3, "LBFGS", LBFGS, None)),
            (PPR, "sigma_max", ("1", None)),
            (SMC, "particles", COUNT),
            (DPS, "zeta", ("1", None)),
        )
    ),
    *(
        (LBFGS, name, values)
        for name, values in {
            "steps": ("1", 1.5, True, 0),
            "max_step": ("1", -1.0, True),
            "memory": ("1", 1.5, 0),
            "line_search": FLAG,
        }.items()
    ),
    (GaussNewton, "damping", ("1", None, -1.0)),
    (lambda **o: LINE.in_units(**({"std": 1.0} | o)), "mean", ("0", None)),
    (lambda **o: LINE.in_units(**({"mean": 0.0} | o)), "std", ("1", 0.0, None)),
    (lambda **o: feasibly.Equality(**({"tolerance": 1e-6} | o)), "function", FUNCTION),
    (lambda **o: feasibly.Scalar(**({"tolerance": 1e-6} | o)), "function", FUNCTION),
    (lambda **o: feasibly.Inequality(**({"tolerance": 1e-6} | o)), "g", FUNCTION),
    (lambda **o: feasibly.Equality(lambda x: x, **o), "tolerance", (*NUMBER, 0, -1.0)),
    (lambda **o: feasibly.Bounds(**({"upper": 1, "tolerance": 1e-6} | o)), "lower", ("0", 2, "a")),
    (lambda **o: feasibly.Bounds(**({"lower": 0, "tolerance": 1e-6} | o)), "upper", ("1", -1, {})),
    (lambda **o: feasibly.Bounds(None, tolerance=1e-6, **o), "upper", (None, torch.inf)),
    (lambda **o: feasibly.Composite(**o), "constraints", (3, [], [3], "ab", None)),
    (lambda **o: feasibly.Observation(lambda x: x, 0.0, **o), "noise", ("a", True, -1.0)),
    (lambda **o: feasibly.Linear(y=[0.0], tolerance=1e-6, **o), "A", ("a", None, 3)),
    (lambda **o: constraints.LevelSet(**({"tolerance": 1e-6} | o)), "f", (3, None)),
    (schedules.VP, "beta_1", (*NUMBER, 0.0)),
    (schedules.EDM, "rho", NUMBER),
    (schedules.VE, "sigma_min", (*NUMBER, 0, -1)),
    (lambda **o: feasibly.Chunked(NET, **o), "chunk", COUNT),
    (lambda **o: feasibly.Chunked(NET, **o), "recompute", FLAG),
]


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(function, name, value) for function, name, values in TABLE for value in values],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_what_cannot_be_taken_is_refused_before_the_network_is_asked(
    function, name, value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError)) as caught:
        function(**{name: value})
    raising = Path(traceback.extract_tb(caught.value.__traceback__)[-1].filename)
    assert raising.is_relative_to(Path(feasibly.__file__).parent), raising
    assert len(str(caught.value)) < 400
    assert "unexpected keyword" not in str(caught.value)  # else the argument is not tested
    assert list(tmp_path.iterdir()) == []  # no unusable store is left behind


@pytest.mark.parametrize(
    "schedule",
    [lambda t: 3, lambda t: (1, 2), lambda t: (t, t, t), lambda t: None, lambda t: (t, t[None])],
    ids=["number", "numbers", "three", "nothing", "shapes"],
)
def test_a_schedule_that_returns_something_else_is_refused(schedule):
    net = Untouched()
    net.schedule = schedule
    with pytest.raises(feasibly.DenoiserError, match="schedule must return two tensors"):
        feasibly.sample(net, LINE, 2, (2,))


def test_numbers_of_other_libraries_are_taken():
    @typed
    def taken(count: int, number: float | None, flag: bool):
        return count, number, flag

    assert taken(np.int64(3), np.float32(0.5), True) == (3, 0.5, True)
    assert taken(torch.tensor(3), torch.tensor(0.5), False) == (3, 0.5, False)
    assert taken(3, None, flag=True) == (3, None, True)
    assert type(taken(np.int64(3), 1, True)[0]) is int
    with pytest.raises(TypeError, match=r"taken\(\): missing a required argument: 'flag'"):
        taken(3, None)


def test_members_by_the_billion_take_no_memory():
    with pytest.raises(ValueError, match=r"Sampling 2,000,000,000 of shape \(2,\)"):
        sample(n=2_000_000_000)
