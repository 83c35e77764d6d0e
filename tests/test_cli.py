import errno
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tyro

import feasibly
from feasibly import PostHoc, fitness, plan, priors
from feasibly.__main__ import COMMANDS, main
from feasibly.cli import demo_data2d, demo_ks, demo_three, demo_weather
from feasibly.cli.audit import audit
from feasibly.cli.check import check, load_data
from feasibly.cli.demo import demo
from feasibly.cli.job import Job, parse
from feasibly.cli.load import load_constraint, load_denoiser, load_object
from feasibly.cli.sample import METHODS, sample
from feasibly.cli.words import Shape
from feasibly.constraints import Constraint, GaussianRandomField
from feasibly.denoisers import Denoiser
from feasibly.ensemble.memory import Footprint
from feasibly.errors import ConstraintError, SamplingError
from feasibly.machine import size
from feasibly.minimizers import GaussNewton
from feasibly.nn import SphereAutoencoder
from feasibly.oracles import Gaussian
from feasibly.problems import weather
from feasibly.problems.data2d import CONSTRAINTS, Data2D
from feasibly.problems.ks import KS, SUPPORT
from feasibly.problems.weather import Weather
from feasibly.result import Result
from feasibly.schedules import LogLogit

USER_MODULE = """
import signal

import torch
import feasibly

def far():
    return feasibly.Equality(lambda x: x[:, :1] - 100, tolerance=1e-4)

number = 3

def summaries():
    return {"first": lambda x: x[:, 0]}


def needy(size):
    return feasibly.Ancestral(denoiser())


def hasty():
    raise ValueError("no weights here")


def sour():
    return feasibly.Equality(lambda x: torch.linalg.cholesky(x), tolerance=1e-6)


def denoiser():
    return feasibly.oracles.Gaussian(torch.zeros(2), torch.eye(2), feasibly.schedules.LogLogit())


def wrong():
    exact = denoiser()

    def negative(x_t, t):
        return -exact(x_t, t).mean

    negative.schedule = exact.schedule
    return negative


def noise(x, s):
    alpha, sigma = (scale[:, None] for scale in feasibly.schedules.Rectified(1e-9)(s))
    return sigma * x / (alpha**2 + sigma**2)


def wrapped():
    return feasibly.wrap(noise, "eps", feasibly.schedules.Rectified())


def wrapped_wrongly():
    return feasibly.wrap(noise, "x0", feasibly.schedules.Rectified())


def broken():
    def nan(x_t, t):
        return x_t * torch.nan

    nan.schedule = feasibly.schedules.LogLogit()
    return nan


def failing():
    exact = denoiser()

    def fail(x_t, t):
        if (feasibly.members.current() >= 2).any():
            raise RuntimeError("out of memory")
        return exact(x_t, t)

    fail.schedule = exact.schedule
    return fail


def terminated():
    exact = denoiser()

    def stop(x_t, t):
        if (feasibly.members.current() >= 2).any():
            signal.raise_signal(signal.SIGTERM)
        return exact(x_t, t)

    stop.schedule = exact.schedule
    return stop


def circle():
    return feasibly.Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-6)


def impossible():
    return feasibly.Equality(lambda x: x[:, :1] ** 2 + 1, tolerance=1e-6)


def detached():
    return feasibly.Equality(lambda x: x.detach(), tolerance=1e-6)


def nothing():
    return 3
"""


@pytest.fixture
def user(module_of_a_user):
    return module_of_a_user(USER_MODULE)


def run_main(monkeypatch, *arguments):
    """The exit status of the command line."""
    monkeypatch.setattr(sys, "argv", ["feasibly", *map(str, arguments)])
    with pytest.raises(SystemExit) as error:
        main()
    return error.value.code


FILES = {"PPR": "PPR", "post-hoc projection": "PostHoc"}  # the labels, and what samples


def files(name):
    return {f"{name}_{label.replace(' ', '-')}.safetensors": kind for label, kind in FILES.items()}


def test_demo_writes_report_figures_and_samples(tmp_path, monkeypatch, capsys):
    # the data's distribution stands for thousands of the prior's samples
    def prior_samples(self, n):
        return self.distribution.sample(n, torch.Generator().manual_seed(0)).float()

    monkeypatch.setattr(Data2D, "prior_samples", prior_samples)
    monkeypatch.setattr(demo_data2d, "plan", partial(plan, options={"steps": 8}))
    monkeypatch.setattr(demo_data2d, "PostHoc", partial(PostHoc, steps=8))
    out = tmp_path / "new" / "demo"
    assert demo("data2d", out, members=32) == 0

    names = ("checkerboard", "banana")
    samples = {file: kind for name in names for file, kind in files(name).items()}
    samples |= {f"{name}_default.safetensors": "Particles" for name in names}
    pictures = {f"{name}_marginals.png" for name in names}
    assert {path.name for path in out.iterdir()} == {*samples, *pictures, "report.html"}
    for name, kind in samples.items():
        result = Result.load(out / name)
        assert result.samples.shape == (32, 2)
        assert result.feasible.double().mean() > 0.9
        assert f"{kind}(" in result.method
    for path in map(out.joinpath, pictures):
        assert path.read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 6
    for part in ("<h2>checkerboard</h2>", "<h2>banana</h2>"):
        assert part in page
    assert [page.count(f"<td>{label}</td>") for label in (*FILES, "truth")] == [2, 2, 2]
    assert str(out / "report.html") in capsys.readouterr().out


def test_demo_of_trajectories_writes_report_and_samples(tmp_path, monkeypatch, capsys):
    # white noise stands for the prior, whose samples take minutes
    oracle = Gaussian(torch.zeros(16 * 16), torch.eye(16 * 16), LogLogit())
    monkeypatch.setattr(demo_ks, "KS", lambda observation: KS(observation, oracle, size=16))
    monkeypatch.setitem(SUPPORT, 16, SUPPORT[64])
    monkeypatch.setattr(demo_ks, "plan", partial(plan, options={"steps": 6}))
    assert demo("ks", tmp_path / "ks", members=3) == 0

    assert {path.name for path in (tmp_path / "ks").iterdir()} == {*files("ks"), "report.html"}
    problem = KS("sine-3", oracle, size=16)
    constraint = problem.constraint(problem.reference(0))
    for name, kind in files("ks").items():
        result = Result.load(tmp_path / "ks" / name)
        assert result.samples.shape == (3, 16, 16)
        assert torch.equal(result.feasible, constraint.is_feasible(result.samples))
        assert f"{kind}(" in result.method
    page = (tmp_path / "ks" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 3
    assert all(f"<td>{label}</td>" in page for label in FILES)
    assert "report.html" in capsys.readouterr().out.replace("\n", "")


def test_the_demo_of_three_problems_prints_one_table_and_draws_each(tmp_path, monkeypatch, capsys):
    # white noise stands for the prior of trajectories, whose samples take a minute
    oracle = Gaussian(torch.zeros(16 * 16), torch.eye(16 * 16), LogLogit())
    monkeypatch.setattr(demo_three, "KS", lambda observation: KS(observation, oracle, size=16))
    monkeypatch.setitem(SUPPORT, 16, SUPPORT[64])
    monkeypatch.setattr(demo_three, "plan", partial(plan, options={"steps": 8}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the first screen shows none
        assert demo(out=tmp_path, members=32) == 0
    names = ("points-on-a-curve", "maps-and-stations", "a-chaotic-field")
    labels = "feasibly", "projected-at-the-end"
    written = {f"{name}.png" for name in names} | {"report.html"}
    for name in names:
        written |= {f"{name}_{label}.safetensors" for label in labels}
    assert {path.name for path in tmp_path.iterdir()} == written
    ours = [Result.load(tmp_path / f"{name}_feasibly.safetensors") for name in names[:2]]
    assert all(result.feasible.all() for result in ours)
    shown = capsys.readouterr().out
    assert shown.count("projected") >= 3
    assert "Warning" not in shown


def test_demo_of_trajectories_needs_an_ensemble(tmp_path):
    with pytest.raises(ValueError, match="at least 2 members, got --members 1"):
        demo("ks", tmp_path, members=1)


def test_the_demo_of_the_weather_writes_maps_and_scores(tmp_path, monkeypatch, capsys):
    class White(Denoiser):
        def mean(self, x, sigma):
            return x / (1 + sigma**2)

    torch.manual_seed(0)
    autoencoder = SphereAutoencoder(channels=(16, 16, 16)).eval().requires_grad_(False)
    day = torch.nn.functional.interpolate(torch.randn(24, 3, 4, 8), size=(32, 64))
    monkeypatch.setattr(weather, "fresh_days", lambda block, members: day[None])
    prior = White(LogLogit(1e-3, 1e2, spread=2.0))
    monkeypatch.setattr(demo_weather, "Weather", lambda name: Weather(name, prior, autoencoder))
    monkeypatch.setattr(demo_weather, "plan", partial(plan, options={"steps": 4}))
    monkeypatch.setattr(demo_weather, "PostHoc", partial(PostHoc, steps=4))
    maps, marked = demo_weather.figures.maps, []

    def watched(fields, hours, label, observed):
        marked.append(observed)
        return maps(fields, hours, label, observed)

    monkeypatch.setattr(demo_weather.figures, "maps", watched)
    assert demo("weather", tmp_path / "w", members=2) == 0
    assert list(marked[0]) == [12]
    assert marked[0][12].sum() == 205
    assert {path.name for path in (tmp_path / "w").iterdir()} == {*files("weather"), "report.html"}
    result = Result.load(tmp_path / "w" / "weather_PPR.safetensors")
    assert result.samples.shape == (2, 24, 16, 4, 8)
    assert result.feasible.all()
    page = (tmp_path / "w" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 3
    table = capsys.readouterr().out
    assert "100%" in table
    assert "m/s" in table
    with pytest.raises(ValueError, match="at least 2 members"):
        demo("weather", tmp_path, members=1)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("method", ["auto", "post-hoc"])
def test_sample_samples_what_the_library_does(tmp_path, method):
    status = sample("banana", "3", tmp_path, members=4, method=method, steps=8, seed=5, chunk=3)
    made = Result.load(tmp_path / "samples.safetensors")
    prior, options = priors.load("banana"), {"steps": 8}
    again = feasibly.sample(
        prior,
        load_constraint("3"),
        4,
        (2,),
        method=method,
        options=options,
        seed=5,
        chunk=3,
    )
    torch.testing.assert_close(made.samples, again.samples, rtol=0, atol=0, equal_nan=True)
    assert (made.members, made.seed) == ([0, 1, 2, 3], 5)
    assert (made.method, made.reason) == (again.method, again.reason)
    assert (made.reason == "") == (method != "auto")
    assert status == (0 if again.feasible.any() else 1)


def test_warnings_of_a_run_are_printed_as_sentences(user, tmp_path, capsys):
    """A member that is kept at no try, of one, has a chance of a half at least."""
    options = {"method": "rejection", "steps": 4, "options": ("tries=1", "attempts=1")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(f"{user}:denoiser", f"{user}:circle", tmp_path / "out", members=16, **options)
    result = Result.load(tmp_path / "out" / "samples.safetensors")
    assert "kept at none of 1 tries" in result.warnings[0]
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in result.warnings)


def test_sample_writes_samples_and_a_report(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert sample("checkerboard", "0", out, members=8, steps=8) == 0
    assert {path.name for path in out.iterdir()} == {"samples.safetensors", "report.html"}
    result = Result.load(out / "samples.safetensors")
    assert result.feasible.any()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 3
    assert "<figcaption>Samples by their shape:" in page
    assert "Observations with errors" not in page
    printed = capsys.readouterr().out
    assert "Particles(steps=8" in page  # and without its settings here
    assert printed.count("Particles with LevelSet") == 1
    assert "8 members feasible" in page
    assert "8 members feasible" in printed
    assert str(out) in printed


def test_sample_takes_a_denoiser_and_a_constraint_of_the_user(user, tmp_path):
    out = tmp_path / "out"
    assert sample(f"{user}:denoiser", f"{user}:circle", out, members=8, steps=8) == 0
    result = Result.load(out / "samples.safetensors")
    assert result.feasible.any()
    radius = result.samples[result.feasible].norm(dim=1)
    torch.testing.assert_close(radius, torch.ones_like(radius), rtol=0, atol=1e-3)


def test_sample_tells_an_infeasible_constraint_by_its_status(user, tmp_path, capsys):
    out = tmp_path / "out"
    assert sample(f"{user}:denoiser", f"{user}:impossible", out, members=4, steps=4) == 1
    assert "None of the 4 members" in capsys.readouterr().out
    result = Result.load(out / "samples.safetensors")
    assert not result.feasible.any()
    assert (result.violation >= 1).all()


def test_sample_refuses_a_constraint_that_cannot_be_used(user, tmp_path):
    with pytest.raises(ConstraintError, match="detach"):
        sample(f"{user}:denoiser", f"{user}:detached", tmp_path / "out", members=4)
    assert list((tmp_path / "out").iterdir()) == []


def test_sample_saves_what_it_has_when_it_fails(user, tmp_path):
    # members 2 and 3 fail, which are the second chunk
    options = {"members": 4, "chunk": 2, "steps": 4, "method": "ancestral"}
    with pytest.raises(SamplingError, match="out of memory"):
        sample(f"{user}:failing", f"{user}:circle", tmp_path / "out", **options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["partial.safetensors"]
    partial = Result.load(tmp_path / "out" / "partial.safetensors")
    assert partial.members == [0, 1]
    assert partial.finite.all()


def test_sigterm_stops_a_run_which_keeps_what_is_finished(user, monkeypatch, capsys):
    options = ("--denoiser", f"{user}:terminated", "--constraint", f"{user}:circle")
    options += ("--method", "ancestral", "--members", 4)
    # the signal comes with member 2, in the second chunk
    two = ("--steps", 4, "--chunk", 2, "--out", "out")
    assert run_main(monkeypatch, "sample", *options, *two) == 130
    assert (
        "stopped: 2 of 4 members are kept in out/partial.safetensors." in capsys.readouterr().err
    )
    assert Result.load("out/partial.safetensors").members == [0, 1]
    assert run_main(monkeypatch, "sample", *options, "--out", "none") == 130
    assert "stopped: No member was finished. With --chunk N" in capsys.readouterr().err
    assert os.listdir("none") == []


@pytest.fixture
def full(tmp_path, monkeypatch):
    """Makes writes fail in folders of some names, as on a full disk; returns the temporary one."""

    def fill(*names):
        save, write = Result.save, Path.write_text

        def saved(result, path):
            if any(name in str(path) for name in names):
                raise OSError(errno.ENOSPC, "No space left on device")
            save(result, path)

        def written(path, *args, **options):
            if "page" in names and path.suffix == ".html":
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, *args, **options)

        monkeypatch.setattr(Result, "save", saved)
        monkeypatch.setattr(Path, "write_text", written)

    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    return fill


def test_samples_that_the_disk_does_not_take_are_kept_in_the_temporary_folder(user, full):
    full("out")
    words = (
        r"out/samples.safetensors cannot be written .*No space left.* 4 members are in (.*)\. M"
    )
    with pytest.raises(SamplingError, match=words) as error:
        sample(f"{user}:denoiser", f"{user}:circle", Path("out"), members=4, steps=4)
    kept = re.search(words, str(error.value))[1]
    assert Result.load(kept).members == [0, 1, 2, 3]


def test_samples_that_no_disk_takes_are_said_to_be_lost(user, full):
    full("out", "spare")
    with pytest.raises(SamplingError, match=r"No space left.*no member is kept.*NAME\.zarr"):
        sample(f"{user}:denoiser", f"{user}:circle", Path("out"), members=4, steps=4)


def test_a_report_that_the_disk_does_not_take_loses_no_sample(user, full):
    full("page")
    with pytest.raises(SamplingError, match=r"report cannot be written.*out/samples\.safetens"):
        sample(f"{user}:denoiser", f"{user}:circle", Path("out"), members=4, steps=4)
    assert Result.load("out/samples.safetensors").members == [0, 1, 2, 3]


def test_samples_for_which_the_disk_has_no_room_are_not_sampled(user, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=31))
    with pytest.raises(ValueError, match="4 samples take 32 bytes, and out has 31 bytes free"):
        sample(f"{user}:failing", f"{user}:circle", Path("out"), members=4)


def test_audit_prints_verdicts_and_writes_a_page(user, tmp_path, capsys):
    settings = {"truths": 16, "members": 2, "methods": ("ppr",), "near": 1, "chunk": 32}
    out = tmp_path / "audit"
    named = (f"{user}:denoiser", f"{user}:circle", out)
    # the circle's members are right, and those of DPS are not on it
    assert audit(*named, statistics=f"{user}:summaries", keep=True, **settings) == 0
    away = (*named[:2], tmp_path / "away")
    assert audit(*away, **settings | {"methods": ("dps",)}) == 1
    captured = capsys.readouterr()
    printed = " ".join((captured.err + captured.out).split())
    for words in ("16 truths x 2 members take", "ppr: ", "Use ppr.", "energy score"):
        assert words in printed
    assert "rank" in (out / "audit.html").read_text()
    assert feasibly.ensemble.Store(out / "0-ppr.zarr").config.members == 32
    with pytest.raises(ValueError, match="cannot be read"):
        audit(*named, data=tmp_path / "nothing.npy", **settings)
    with pytest.raises(ValueError, match="must return a dict"):
        audit(*named, statistics=f"{user}:far", **settings)


def test_check_passes_a_shipped_prior(tmp_path, capsys):
    # how often chance fails a good denoiser is the business of test_diagnosis.py
    data = Data2D("checkerboard").distribution.sample(256, torch.Generator().manual_seed(0))
    np.save(tmp_path / "data.npy", data.numpy())
    assert check("checkerboard", "0", data=tmp_path / "data.npy") == 0
    printed = capsys.readouterr().out
    assert "Fit for use." in printed
    assert "Residuals a sample: 1." in printed
    median = load_constraint("0").violation(data).median().item()
    assert f"{1e-6 * median:.1g}" in printed
    reason = plan(priors.load("checkerboard"), load_constraint("0"), (2,)).reason
    assert f"{reason} This takes" in printed


def test_check_doubts_a_constraint_that_no_sample_comes_near(user, capsys, monkeypatch):
    monkeypatch.setattr(fitness, "estimate", lambda *_, **__: Footprint(1, 1))  # it takes long
    check(f"{user}:denoiser", f"{user}:far")
    assert "comes near" in capsys.readouterr().out
    check(f"{user}:denoiser", f"{user}:circle")
    assert "comes near" not in capsys.readouterr().out


def test_check_needs_neither_data_nor_a_constraint(user, capsys):
    check(f"{user}:denoiser")
    assert "Residuals" not in capsys.readouterr().out


def test_check_fails_a_wrong_denoiser(user, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")  # or the table breaks its words into lines
    generator = torch.Generator().manual_seed(0)
    np.save(tmp_path / "data.npy", torch.randn(1024, 2, generator=generator).numpy())
    assert check(f"{user}:wrong", data=tmp_path / "data.npy") == 1
    printed = capsys.readouterr().out
    assert "Not fit for use" in printed
    assert "worse than a guess" in printed


def test_check_states_what_a_wrapped_network_assumes_and_names_its_mistake(
    user, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "200")
    generator = torch.Generator().manual_seed(0)
    np.save(tmp_path / "data.npy", torch.randn(512, 2, generator=generator).numpy())
    assert check(f"{user}:wrapped", data=tmp_path / "data.npy") == 0
    assert "the noise: x_0 = (x_t - sigma F) / alpha" in capsys.readouterr().out
    assert check(f"{user}:wrapped_wrongly", data=tmp_path / "data.npy") == 1
    printed = capsys.readouterr().out
    assert "The wrap is wrong in the prediction type, which is eps" in printed
    assert "Not fit for use" in printed


def test_check_takes_the_folder_of_a_model_of_diffusers(tmp_path, monkeypatch, capsys):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    monkeypatch.setenv("COLUMNS", "200")
    torch.manual_seed(0)
    net = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        layers_per_block=1,
        norm_num_groups=4,
    )
    diffusers.DDPMPipeline(net, diffusers.DDPMScheduler()).save_pretrained(tmp_path / "model")
    images = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "data.npy", images.numpy())
    # it is not trained
    assert check(str(tmp_path / "model"), shape=(1, 8, 8), data=tmp_path / "data.npy") == 1
    printed = capsys.readouterr().out
    for part in ("UNet2DModel", "prediction_type epsilon", "whether it is trained"):
        assert part in printed


@pytest.mark.parametrize(
    ("count", "said"),
    [(12, "12 bytes"), (3400, "3.4 kB"), (5.6e7, "56 MB"), (7.8e12, "7.8 TB")],
)
def test_bytes_are_said_in_words(count, said):
    assert size(count) == said


def test_check_reads_tensors_and_refuses_other_files(user, tmp_path):
    data, path = torch.randn(16, 2), tmp_path / "data.pt"
    torch.save(data, path)
    assert torch.equal(load_data(path, (2,)), data)
    torch.save({"data": data}, path)
    with pytest.raises(ValueError, match=r"data.pt cannot be read .*\(.npy\).*\(.pt\)"):
        load_data(path, (2,))
    for name, text in itertools.product(("words.npy", "words.pt"), ("no array", "")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name} cannot be read"):
            check(f"{user}:denoiser", data=tmp_path / name)


def test_check_refuses_data_of_another_shape(user, tmp_path):
    np.save(tmp_path / "data.npy", np.zeros((16, 3)))
    with pytest.raises(ValueError, match=r"shape \(3,\), and --shape is \(2,\)"):
        check(f"{user}:denoiser", data=tmp_path / "data.npy")


def test_a_denoiser_is_a_name_a_file_or_a_function(user, tmp_path):
    x, t = torch.ones(1, 2), torch.tensor(0.5)
    shipped = priors.load("banana")(x, t).mean
    source = Path(priors.__file__).parent / "banana.safetensors"
    shutil.copy(source, tmp_path / "own.safetensors")
    for name in ("banana", str(tmp_path / "own.safetensors"), "own.safetensors"):
        assert torch.equal(load_denoiser(name)(x, t).mean, shipped)
    own = load_denoiser(f"{user}:denoiser")(x, t).mean
    sigma = own.new_tensor(0.31623)
    torch.testing.assert_close(own, x / (1 + sigma**2), rtol=1e-4, atol=0)


def test_a_folder_does_not_hide_a_shipped_prior(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkerboard").mkdir()
    x, t = torch.ones(1, 2), torch.tensor(0.5)
    shipped = priors.load("checkerboard")(x, t).mean
    assert torch.equal(load_denoiser("checkerboard")(x, t).mean, shipped)


def test_a_constraint_is_a_number_or_a_function(user):
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    for k in range(CONSTRAINTS):
        expected = GaussianRandomField(seed=k)(x)[:, None]
        assert torch.equal(load_constraint(str(k)).residual(x), expected)
    assert isinstance(load_constraint(f"{user}:circle"), Constraint)


@pytest.mark.parametrize("path", ["nothing", ":f", "module:", "", "./module:f"])
def test_a_path_without_module_and_function_is_refused(path):
    with pytest.raises(ValueError, match="module:function"):
        load_object(path)


@pytest.mark.parametrize(
    "path",
    ["no_such_module:f", "{user}:no_such_function", "{user}.part:f"],
    ids=["module", "function", "part"],
)
def test_a_path_that_leads_nowhere_is_refused(user, path):
    path = path.format(user=user)
    with pytest.raises(ValueError, match="cannot be imported") as error:
        load_object(path)
    assert path in str(error.value)


def test_what_is_no_function_is_refused(user):
    with pytest.raises(ValueError, match=f"{user}:number"):
        load_object(f"{user}:number")


def test_an_object_that_is_no_constraint_is_refused(user):
    with pytest.raises(ValueError, match=r"returned int.*feasibly\.Equality"):
        load_constraint(f"{user}:nothing")


@pytest.mark.parametrize("name", [str(CONSTRAINTS), "-1", "zero", "0.5", ""])
def test_an_unknown_constraint_is_refused(name):
    with pytest.raises(ValueError, match=r"0 to 11.*module:function") as error:
        load_constraint(name)
    assert repr(name) in str(error.value)


def test_the_exit_status_is_that_of_the_command(user, monkeypatch):
    options = ("--members", 4, "--steps", 4, "--denoiser", f"{user}:denoiser", "--constraint")
    assert run_main(monkeypatch, "sample", *options, f"{user}:circle") == 0
    assert run_main(monkeypatch, "sample", *options, f"{user}:impossible") == 1
    assert Result.load("out/sample/samples.safetensors").samples.shape == (4, 2)


def test_a_run_that_fails_is_an_error_for_people(user, monkeypatch, capsys):
    options = ("--denoiser", f"{user}:broken", "--constraint", f"{user}:circle")
    assert run_main(monkeypatch, "sample", *options, "--members", 8) == 2
    assert "error: All 8 members became non-finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("denoiser", "constraint", "function", "line"),
    [
        ("hasty", "circle", "hasty", "raise ValueError"),
        ("denoiser", "sour", "<lambda>", "cholesky"),
    ],
)
def test_an_error_in_a_module_of_the_user_says_where(
    user, tmp_path, monkeypatch, capsys, denoiser, constraint, function, line
):
    options = ("--denoiser", f"{user}:{denoiser}", "--constraint", f"{user}:{constraint}")
    assert run_main(monkeypatch, "sample", *options) == 2
    lines = (tmp_path / f"{user}.py").read_text().splitlines()
    number = next(n for n, text in enumerate(lines, start=1) if line in text)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"  at {tmp_path / user}.py, line {number}, in {function}"


def test_an_error_in_the_package_names_no_place(user, monkeypatch, capsys):
    options = ("--denoiser", f"{user}:denoiser", "--constraint", f"{user}:nothing")
    assert run_main(monkeypatch, "sample", *options) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_function_that_needs_arguments_is_not_blamed_on_the_options(user, monkeypatch, capsys):
    options = ("--denoiser", f"{user}:needy", "--constraint", f"{user}:circle")
    assert run_main(monkeypatch, "sample", *options) == 2
    printed = capsys.readouterr().err
    assert f"'{user}:needy' cannot be called without arguments" in printed
    assert "'size'" in printed
    assert "its options are" not in printed


@pytest.mark.parametrize("given", [("64", "32"), ("64,32",)], ids=" ".join)
def test_a_shape_is_read_with_commas_or_without(given):
    def read(shape: Shape = (2,)):
        return shape

    assert tyro.cli(read, args=["--shape", *given]) == (64, 32)
    assert tyro.cli(read, args=[]) == (2,)


@pytest.mark.parametrize("given", ["2.5", "0", "-1", "a", ""])
def test_what_is_no_shape_is_explained(given, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    options = ("--denoiser", "banana", "--constraint", 0)
    assert run_main(monkeypatch, "sample", *options, f"--shape={given}") == 2
    assert "a shape is one or more numbers from 1, such as 64 32" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["[old]", "runs/[/]"])
def test_an_error_shows_names_as_they_were_written(monkeypatch, capsys, name):
    assert run_main(monkeypatch, "sample", "--denoiser", name, "--constraint", 0) == 2
    assert f"'{name}'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def failure(tmp_path_factory):
    """A command that asks for a prior that does not exist, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    command = ["-m", "feasibly", "sample", "--denoiser", "nope", "--constraint", "0"]
    return subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=tmp_path_factory.mktemp("empty"),
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_unknown_prior_ends_the_program_without_a_traceback(failure):
    assert failure.returncode == 2
    assert failure.stdout == ""
    assert failure.stderr.startswith("error: There is no prior 'nope'")
    assert "Traceback" not in failure.stderr


def test_an_error_is_one_line(failure):
    assert len(failure.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_offers_the_full_traceback(command, monkeypatch, capsys):
    assert run_main(monkeypatch, command, "--help") == 0
    assert "--traceback" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "called", "kind"),
    [
        (["sample", "--denoiser", "nope", "--constraint", 0], "load_denoiser", "ValueError: "),
        (["score", "nope.zarr", "truth.zarr"], "open_weather", "ValueError: nope.zarr"),
    ],
    ids=["options", "positions"],
)
def test_the_full_traceback_stands_in_place_of_the_sentence(
    tmp_path, monkeypatch, capsys, arguments, called, kind
):
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, *arguments, "--traceback") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback (most recent call last)")
    assert f"in {called}" in printed
    assert kind in printed.splitlines()[-1]
    assert "error:" not in printed
    assert run_main(monkeypatch, *arguments) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert printed.startswith("error:")


def test_a_traceback_has_what_was_noted_of_the_error(user, monkeypatch, capsys):
    options = ("--denoiser", f"{user}:failing", "--constraint", f"{user}:circle")
    options += ("--members", 4, "--steps", 4, "--chunk", 2, "--traceback", "--method", "ppr")
    assert run_main(monkeypatch, "sample", *options) == 2
    printed = capsys.readouterr().err
    assert "\nTraceback (most recent call last)" in printed
    assert "2 of 4 members are kept in" in printed


def test_every_method_is_offered(user, monkeypatch):
    for method, kind in METHODS.items():
        if method not in ("cdim", "eci"):  # which are for linear constraints
            job = Job(f"{user}:denoiser", f"{user}:circle", method, ("steps=4",))
            assert isinstance(job.build((2,)).attempts[-1], kind)
    # and by its name on the command line
    arguments = ["sample", "--denoiser", f"{user}:denoiser", "--constraint", f"{user}:circle"]
    small = ["--members", 2, "--steps", 4, "--method", "trust", "--out", "out"]
    assert run_main(monkeypatch, *arguments, *small) in (0, 1)
    assert Result.load(Path("out/samples.safetensors")).samples.shape == (2, 2)


@pytest.mark.parametrize(("method", "hint"), [("cdim", "Linear"), ("eci", "PCFM")])
def test_a_method_that_cannot_take_a_constraint_says_which_can(
    user, monkeypatch, capsys, method, hint
):
    arguments = ["sample", "--denoiser", f"{user}:denoiser", "--constraint", f"{user}:circle"]
    assert run_main(monkeypatch, *arguments, "--method", method) == 2
    assert hint in capsys.readouterr().err


def test_options_of_a_method_are_passed_on(user, monkeypatch, capsys):
    arguments = ["sample", "--denoiser", f"{user}:denoiser", "--constraint", f"{user}:circle"]
    options = ["--options", "zeta=0.25", "units=state", "steps=3"]
    run_main(monkeypatch, *arguments, "--members", 2, "--method", "dps", *options, "--out", "here")
    made = Result.load("here/samples.safetensors").method
    assert re.search(r"DPS\(steps=3, .*zeta=0\.25, units='state'\)", made)
    assert run_main(monkeypatch, *arguments, "--method", "dps", "--options", "gamma=1") == 2
    assert re.search(r"its options are eta, .*units, zeta", capsys.readouterr().err)
    for bad in ("zeta=abc", "steps=1.5", "steps=0", "attempts=two", "attempts=1.5"):
        assert run_main(monkeypatch, *arguments, "--method", "dps", "--options", bad) == 2
    given = ["--steps", 3, "--options", "steps=4"]
    assert run_main(monkeypatch, *arguments, *given) == 2
    assert "twice" in capsys.readouterr().err
    assert run_main(monkeypatch, *arguments, "--options", "minimize=LBFGS") == 2
    assert "takes a minimizer, got" in capsys.readouterr().err


def test_options_are_literals_or_words():
    assert parse("zeta=1e-3") == ("zeta", 1e-3)
    assert parse("every=2") == ("every", 2)
    assert parse("bound=None") == ("bound", None)
    assert parse("lmbda=inf") == ("lmbda", float("inf"))
    assert parse("where=x_0") == ("where", "x_0")
    assert parse("minimize=GaussNewton(4, max_distance=None)") == (
        "minimize",
        GaussNewton(4, max_distance=None),
    )
    assert parse("minimize=print(4)") == ("minimize", "print(4)")
    for bad in ("zeta", "=3", "two words=3"):
        with pytest.raises(ValueError, match="name=value"):
            parse(bad)
