"""`feasibly.check`: what the shell's `check` prints, as a value."""

import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

import feasibly
from feasibly import Equality, Linear, Observation, check, plan
from feasibly.checks import diagnose
from feasibly.cli.check import check as command
from feasibly.ensemble import Footprint
from feasibly.models import wrap
from feasibly.oracles import Gaussian
from feasibly.schedules import VP, LogLogit

COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]])


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """The kernels and shapes of which the memory was asked for: to measure it takes seconds."""
    asked = []

    def estimate(kernel):
        asked.append((repr(kernel), kernel.problem.shape, kernel.problem.dtype))
        return Footprint(2400, 17)

    monkeypatch.setattr("feasibly.fitness.estimate", estimate)
    return asked


def data(n=1024, dtype=torch.float32):
    z = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (z @ torch.linalg.cholesky(COV.double()).T).to(dtype)


def circle(tolerance=1e-6):
    return Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=tolerance)


def network(kind):
    """A network that predicts the noise of white data, wrapped as if it predicted something."""

    def noise(x, s):
        alpha, sigma = (scale[:, None] for scale in VP()(s))
        return sigma * x / (alpha**2 + sigma**2)

    return wrap(noise, kind, VP())


def test_its_findings_are_those_of_the_parts(gaussian, measured):
    found = check(gaussian, circle(), data=data(), seed=3)
    assert found.ok
    assert found.diagnosis == diagnose(gaussian, circle(), data(), seed=3)
    chosen = plan(gaussian, circle(), (2,))
    assert (found.reason, found.remarks) == (chosen.reason, chosen.remarks)
    assert measured == [(repr(chosen.kernels[-1]), (2,), torch.float32)]
    assert found.footprint == Footprint(2400, 17)
    assert found.tolerance == 1e-6
    with pytest.raises(FrozenInstanceError):
        found.reason = ""


def test_its_words_have_the_table_the_plan_and_the_verdict(gaussian):
    found = check(gaussian, circle(), (2,))
    rows = found.table()
    assert len(rows) == len(found.diagnosis.levels)
    assert float(rows[0]["sigma"]) > float(rows[-1]["sigma"])
    head, *lines = str(found).splitlines()
    assert re.split(" {2,}", head) == list(rows[0])
    for line, row in zip(lines, rows, strict=False):
        assert re.split(" {2,}", line) == list(row.values())
    assert lines[len(rows) :] == list(found.sentences)
    text = str(found)
    assert "Residual components per sample: 1." in text
    assert f"{found.reason} This takes 2.4 kB of memory per sample at its peak, and 17" in text
    assert text.endswith("\nFit for use.")
    assert repr(found) == "<Check: fit for use, 9 of 9 noise levels ok>"


def test_a_denoiser_is_checked_without_a_constraint_or_data(gaussian):
    found = check(gaussian, shape=(2,))
    assert found.ok
    assert (found.reason, found.footprint, found.tolerance) == ("", None, None)
    assert "Residuals" not in str(found)
    assert found.diagnosis == check(gaussian, None, (2,)).diagnosis


def test_data_tell_which_assumption_is_wrong():
    white = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    assert check(network("eps"), data=white).ok
    wrong = check(network("x0"), data=white)
    assert "prediction type, which is eps" in wrong.mistake
    assert wrong.mistake in wrong.sentences
    assert not wrong.ok


def test_a_mistake_that_data_alone_show_makes_it_unfit(gaussian, monkeypatch):
    def refuse(denoiser, data):
        raise feasibly.DenoiserError("Time is reversed.")

    monkeypatch.setattr("feasibly.fitness.self_test", refuse)
    found = check(gaussian, data=data())
    assert found.diagnosis.ok
    assert not found.ok
    assert "Time is reversed." in str(found)
    assert check(gaussian, shape=(2,)).ok


@pytest.mark.slow
def test_constraints_that_are_impossible_or_remote_are_doubted(gaussian):
    nowhere = Equality(lambda x: x[:, :1] ** 2 + 1, tolerance=1e-6)
    found = check(gaussian, nowhere, data=data())
    assert not found.ok
    assert "the smallest violation is 1, the tolerance 1e-06" in str(found)
    far = Equality(lambda x: x[:, :1] - 100, tolerance=1e-4)
    assert "no sample of this model comes near" in str(check(gaussian, far, data=data()))
    assert "comes near" not in str(check(gaussian, circle(), data=data()))


def test_it_says_what_sample_would_warn_of(gaussian):
    small = Equality(lambda x: 1e-9 * x[:, :1], tolerance=1e-30)
    found = check(gaussian, small, data=data())
    (remark,) = found.remarks
    assert "Divide the residual by that" in remark
    assert remark in str(found)


def test_values_with_noise_have_no_tolerance_to_suggest(gaussian):
    seen = Observation(lambda x: x[:, :1], torch.zeros(1), noise=0.1)
    text = str(check(gaussian, seen, data=data()))
    assert "Observed values per sample: 1, all with noise." in text
    assert "tolerance" not in text


def test_it_works_in_the_type_it_is_asked_for(gaussian):
    """A tolerance that float32 cannot reach is one that float64 can."""
    plane = Linear(torch.tensor([[1.0, 0.3]]), torch.tensor([0.7]), tolerance=1e-22)
    exact = Gaussian(torch.zeros(2).double(), COV.double(), LogLogit())
    assert not any(
        "rounding" in text for text in check(exact, plane, (2,), dtype=torch.float64).remarks
    )
    assert any("rounding" in text for text in check(gaussian, plane, (2,)).remarks)


def test_arguments_that_do_not_fit_are_refused(gaussian):
    with pytest.raises(ValueError, match=r"needs the shape of one sample, or data"):
        check(gaussian, circle())
    with pytest.raises(ValueError, match=r"samples of shape \(2,\), but shape is \(3,\)"):
        check(gaussian, circle(), (3,), data=data())
    with pytest.raises(ValueError, match=r"check\(denoiser, constraint\)"):
        check(circle(), gaussian, (2,))
    with pytest.raises(ValueError, match=r"check\(constraint=...\)"):
        check(gaussian, lambda x: x[:, :1], (2,))


def test_the_shell_prints_what_the_function_returns(
    module_of_a_user, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "200")
    name = module_of_a_user(
        """
import torch, feasibly

def denoiser():
    covariance = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    return feasibly.oracles.Gaussian(torch.zeros(2), covariance, feasibly.schedules.LogLogit())

def circle():
    return feasibly.Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-6)
"""
    )
    np.save(tmp_path / "data.npy", data().numpy())
    arguments = {"data": tmp_path / "data.npy", "seed": 2}
    assert command(f"{name}:denoiser", f"{name}:circle", **arguments) == 0
    printed = capsys.readouterr().out
    found = check(Gaussian(torch.zeros(2), COV, LogLogit()), circle(), data=data(), seed=2)
    for row in found.table():
        assert re.search(r"\s*│\s*".join(map(re.escape, row.values())), printed)
    assert all(sentence in printed for sentence in found.sentences)
