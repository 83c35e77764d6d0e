import json
import math
import re

import pytest
import torch

from experiments import records
from experiments.__main__ import enter
from experiments.benches.exact_problems import HELD_OUT, PROBLEMS
from experiments.studies import referee

NAME = "gaussian-2d-cond1-1r-5std-vp"
SETTING = {"label": "mine", "posterior": NAME}


def judged(sample):
    return referee.measure(SETTING, {"mine": sample})[0]


def test_problems_were_set_aside_and_have_an_exact_answer_under_equalities():
    for name in referee.PROBLEMS:
        problem = PROBLEMS[name]
        assert name in HELD_OUT
        assert problem.attainable
        assert problem.family != "learned"
        assert problem.kind in ("linear", "curved", "field")
    assert len(set(referee.PROBLEMS)) == 30


def test_the_truth_scores_one_and_its_mean_does_not():
    """The truth's distance is above 1.5 by chance in fewer than one seed of a thousand."""
    exact = PROBLEMS[NAME].make()
    assert (
        judged(lambda d, c, n, shape, seed: exact.sample(n, torch.Generator().manual_seed(seed)))[
            "ratio"
        ]
        < 1.5
    )
    found = judged(
        lambda d, c, n, shape, seed: exact.sample(n, torch.Generator()).mean(0).expand(n, -1)
    )
    assert found["ratio"] > 10
    assert found["feasible"] == 1


def test_evaluations_are_counted_in_both_directions():
    def sample(denoiser, constraint, members, shape, seed):
        x_t = torch.zeros(members, *shape, requires_grad=True)
        t = torch.tensor(0.5)
        alpha, sigma = denoiser.schedule(t)
        assert alpha.shape == sigma.shape == ()
        torch.autograd.grad(denoiser(x_t, t).sum(), x_t)
        return denoiser(x_t, t)

    assert judged(sample)["evaluations"] == 3


@pytest.mark.parametrize("fault", ["refuses", "raises", "none", "shape", "nan"])
def test_a_sampler_that_refuses_or_fails_gets_the_worst_distance(fault):
    def sample(denoiser, constraint, members, shape, seed):
        if fault == "refuses":
            raise ValueError("I take no equalities.")
        if fault == "raises":
            return torch.linalg.cholesky(-torch.eye(2))
        if fault == "none":
            return None
        if fault == "shape":
            return torch.zeros(members - 1, *shape)
        return torch.full((members, *shape), math.nan)

    found = judged(sample)
    assert found["error"]
    assert "ratio" not in found
    assert referee.score([found]) == pytest.approx(referee.WORST)


def test_the_score_is_the_geometric_mean_between_one_and_the_worst():
    rows = [{"ratio": 0.5}, {"ratio": 4.0}, {"ratio": 1e9}, {}]
    assert referee.score(rows) == pytest.approx((1 * 4 * 100 * 100) ** 0.25)


ENTRY = """
def sample(denoiser, constraint, members, shape, seed):
    import torch

    return torch.zeros(members, *shape)
"""


def test_a_file_enters_under_its_name_and_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(referee, "PROBLEMS", (NAME,))
    file = tmp_path / "zeros.py"
    file.write_text(ENTRY)
    for _ in range(2):
        enter(file)
    (row,) = map(json.loads, (tmp_path / "exact" / "referee.jsonl").read_text().splitlines())
    assert (row["label"], row["posterior"], row["feasible"]) == ("zeros", NAME, 0.0)
    assert "| zeros |" in capsys.readouterr().out
    file.write_text(ENTRY + "\n")
    with pytest.raises(ValueError, match="results of another version of the file"):
        enter(file)


def test_the_sampler_of_the_page_runs_as_printed(tmp_path):
    page = (records.RESULTS.parent / "docs" / "referee.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "printed.py"
    file.write_text(code)
    found = judged(referee.sampler_of(file))
    assert found["feasible"] == 1
    assert found["evaluations"] == 64


def test_a_sampler_without_all_problems_has_no_row():
    made = [{"label": "mine", "feasible": 1.0, "ratio": 1.0, "posterior": n} for n in PROBLEMS]
    some = [row for row in made if row["posterior"] in referee.PROBLEMS]
    assert [row["score"] for row in referee.rows(some)] == [1.0]
    assert referee.rows(some[1:]) == []


def test_a_file_without_the_function_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no file"):
        referee.sampler_of(tmp_path / "nothing.py")
    file = tmp_path / "other.py"
    file.write_text("def samples(): ...")
    with pytest.raises(ValueError, match="defines no function `sample"):
        referee.sampler_of(file)
    file.write_text("def sample(denoiser, constraint, members, shape): ...")
    with pytest.raises(ValueError, match="cannot be: too many positional arguments"):
        referee.sampler_of(file)
