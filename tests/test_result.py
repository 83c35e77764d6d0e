import math
from dataclasses import fields, replace

import pytest
import torch

from feasibly.messages import doubts
from feasibly.network import Evaluations
from feasibly.result import Result, Snapshot, Weights


def snapshot(**changes):
    values = {
        "attempt": 0,
        "members": 4,
        "step": 8,
        "steps": 32,
        "sigma": 0.3,
        "forward": 9,
        "backward": 3,
        "median": 1e-7,
        "worst": 2e-3,
        "feasible": 0.75,
        "failed": 1,
        "seconds": 4.0,
    }
    return Snapshot(**values | changes)


def result(first=0, members=4, dtype=torch.float32, tolerance=4e-6, **changes):
    """A run whose first member failed and whose second is infeasible."""
    generator = torch.Generator().manual_seed(first)
    samples = torch.randn(members, 3, 2, generator=generator, dtype=dtype)
    samples[0] = torch.nan
    violation = torch.full((members,), 1e-8, dtype=dtype)
    violation[:2] = torch.tensor([math.inf, 0.125])
    made = Result(
        samples=samples,
        violation=violation,
        feasible=violation <= 4e-6,
        members=list(range(first, first + members)),
        seed=7,
        tolerance=tolerance,
        evaluations=Evaluations(10, 5, 40, 20, 1.5),
        trace=[snapshot(), snapshot(step=9, median=math.nan)],
        seconds=6.0,
        method="PPR(steps=32) with Sphere(tolerance=4e-06)",
        reason="The constraint has one residual.",
        warnings=["One of 4 members is infeasible."],
        statistics={"begun": 4.0},
    )
    return replace(made, **changes)


def assert_same(a, b):
    for field in fields(Result):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        else:
            # NaN differs from itself, and Python writes numbers exactly
            assert type(left) is type(right)
            assert repr(left) == repr(right), field.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tolerance", [4e-6, math.inf], ids=["constrained", "unconstrained"])
def test_a_saved_result_is_read_back_equal_in_every_field(tmp_path, dtype, tolerance):
    made = result(dtype=dtype, tolerance=tolerance)
    made.save(tmp_path / "samples.safetensors")
    assert_same(Result.load(tmp_path / "samples.safetensors"), made)


@pytest.mark.parametrize("name", ["samples.npz", "samples"])
def test_a_file_of_another_format_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name} must end in \.safetensors"):
        result().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_joined_parts_keep_their_members_in_order_and_add_their_costs():
    a = result(first=0)
    b = result(
        first=4,
        members=3,
        evaluations=Evaluations(1, 2, 3, 4, 0.5),
        seconds=2.0,
        warnings=[*a.warnings, "Another."],
        statistics={"begun": 3.0, "kept at no try": 1.0},
    )
    joined = Result.join([a, b])
    for name in ("samples", "violation", "feasible"):
        whole = getattr(joined, name)
        torch.testing.assert_close(whole[:4], getattr(a, name), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(whole[4:], getattr(b, name), rtol=0, atol=0, equal_nan=True)
    assert joined.members == list(range(7))
    assert joined.evaluations == Evaluations(11, 7, 43, 24, 2.0)
    assert joined.seconds == 8.0
    assert len(joined.trace) == 4
    assert joined.warnings == [*a.warnings, "Another."]
    assert joined.statistics == {"begun": 7.0, "kept at no try": 1.0}
    for name in ("seed", "tolerance", "method", "reason"):
        assert getattr(joined, name) == getattr(a, name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_member_with_one_bad_number_is_not_finite(value):
    samples = torch.zeros(3, 2, 2)
    samples[1, 0, 1] = value
    assert result(samples=samples).finite.tolist() == [True, False, True]


def test_the_summary_names_method_reason_feasible_members_evaluations_and_seeds():
    text = str(result(first=12))
    for words in (
        "PPR with Sphere\nThe constraint has one residual.\n2 of 4 samples feasible",
        "median 0.05, worst 1.8e+02",  # of the finite ones, in units of the limit
        "10 forward and 5 backward network evaluations per sample",
        "75% of it outside the network",
        "seed 7, samples 12 to 15",
        "Warning: One of 4 members is infeasible.",
    ):
        assert words in text
    assert "attempt" not in text
    failed = result(samples=torch.full((4, 2), math.nan), evaluations=Evaluations(), seconds=0.0)
    assert "no finite sample" in str(failed)


def test_the_summary_names_methods_and_leaves_their_options_to_the_method():
    method = "Ancestral(steps=64), then up to 2 times PPR(last=GaussNewton(steps=50)) with Linear"
    first, *_ = str(result(method=method)).splitlines()
    assert first == "Ancestral, then PPR with Linear, up to 2 attempts"


def test_a_result_becomes_a_dataset_by_members():
    pytest.importorskip("xarray")
    made = result(first=4, oddness=torch.tensor([math.nan, 2.0, 0.5, 0.1]))
    found = made.to_xarray(["time", "x"])
    assert found["samples"].dims == ("member", "time", "x")
    assert found.sel(member=6)["plausible"].item() is True
    assert found["feasible"].values.tolist() == made.feasible.tolist()
    assert result().to_xarray()["samples"].dims == ("member", "axis_0", "axis_1")
    with pytest.raises(ValueError, match="got 1, and there are 2"):
        made.to_xarray(["x"])


def test_a_dataset_says_how_members_fit_each_observation():
    pytest.importorskip("xarray")
    one, other = torch.tensor([0.9, 1.1, 1.0, 1.2]), torch.tensor([2.0, 2.1, 1.9, 2.2])
    made = result(first=4, chi_square={"wind": one, "heat": other})
    found = made.to_xarray()["chi_square"]
    assert found.dims == ("member", "observation")
    assert found.sel(observation="heat", member=5).item() == pytest.approx(2.1)


def weights(members, ess, **changes):
    values = {"particles": 2, "pareto_k": 0.3, "log_evidence": -1.0, "error": 0.1}
    return Weights(members=list(members), ess=ess, **values | changes)


def test_samples_that_are_drawn_again_count_once():
    """Those of a later attempt are some of an earlier population."""
    again = [weights([0, 2], 2.0, log_evidence=9.0, pareto_k=math.inf)]
    made = result(populations=[weights(range(3), 2.5), *again])
    assert made.ess == 2.5 + 1
    assert made.log_evidence == (-1.0, 0.1)
    assert made.pareto_k == math.inf
    assert "k-hat inf (above 0.7 for 2 samples), effective sample size 2," in str(made)


def test_the_standard_error_of_populations_of_unlike_sizes_is_that_of_their_samples():
    """Of independent samples. The mean over 2000 squares has a relative standard error of
    (2 / 2000)^(1/2)."""
    sizes, found = (15, 5), []
    x = torch.randn(2000, 20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for samples in x:
        made = replace(
            result(members=20, dtype=torch.float64),
            samples=samples,
            populations=[weights(range(15), 9.0), weights(range(15, 20), 5.0)],
        )
        found.append(made.standard_error(lambda x: x[:, 0]).item() ** 2)
    expected = 1 / sum(sizes)
    assert sum(found) / len(found) == pytest.approx(expected, rel=4 * math.sqrt(2 / 2000))


def test_weights_are_read_back_as_they_were_and_forged_ones_are_refused(tmp_path):
    path = tmp_path / "samples.safetensors"
    made = result(populations=[weights(range(4), 1.0, pareto_k=math.inf, log_evidence=-math.inf)])
    made.save(path)
    assert_same(Result.load(path), made)
    result(populations=[weights(range(4), "many")]).save(path)
    with pytest.raises(ValueError, match="cannot be read as a result"):
        Result.load(path)


def test_members_of_a_second_attempt_are_counted_over_all_of_its_chunks():
    """Whether chunks make one attempt after another or all together; one fails at once."""
    steps = [
        (0, 1, 4),
        (0, 2, 4),
        (0, 1, 4),
        (0, 2, 4),
        (1, 1, 3),
        (1, 2, 3),
        (1, 1, 2),
        (1, 1, 1),
    ]
    steps += [(2, 1, 3), (0, 1, 4), (1, 1, 1)]
    trace = [snapshot(attempt=a, step=k, members=n) for a, k, n in steps]
    made = result(members=12, trace=trace)
    assert "7 of 12 samples took more than one attempt" in made.summary()


@pytest.mark.parametrize(
    ("n", "ess", "populations", "warns"),
    [
        (1024, 99, 1, True),
        (1024, 101, 1, False),
        (64, 31, 1, True),
        (64, 33, 1, False),
        (64, 20, 16, False),
        (64, 5, 16, True),
    ],
)
def test_a_run_warns_of_a_small_effective_sample_size(n, ess, populations, warns):
    """Many populations make up for each one's."""
    told = list(doubts([Weights(list(range(n)), 4, 0.5, ess, 0.0, 0.0)] * populations))
    assert len(told) == warns
    if warns:
        assert f"size is {ess * populations} for {n * populations}" in told[0]
        assert "particles=16" in told[0]


@pytest.mark.parametrize(("bad", "warns"), [(1, False), (2, False), (3, True)])
def test_a_run_warns_of_k_hat_if_a_tenth_of_its_samples_have_it(bad, warns):
    some = [Weights([k], 4, math.inf if k < bad else 0.1, 1.0, 0.0, 0.0) for k in range(20)]
    told = list(doubts(some))
    assert ["k-hat is infinite" in one and f"Therefore {bad} of 20" in one for one in told] == [
        True
    ] * warns
