import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import feasibly
from feasibly import figures, plan, priors
from feasibly.__main__ import COMMANDS, main
from feasibly.cli import demo_data2d, demo_ks, demo_parts, demo_three, demo_weather
from feasibly.cli.check import load_data
from feasibly.cli.job import Job, parse
from feasibly.cli.load import load_constraint, load_denoiser
from feasibly.constraints import GaussianRandomField
from feasibly.denoisers import Denoiser
from feasibly.machine import size
from feasibly.minimizers import GaussNewton
from feasibly.nn import SphereAutoencoder
from feasibly.oracles import Gaussian
from feasibly.problems import weather
from feasibly.problems.data2d import CONSTRAINTS, Data2D
from feasibly.problems.ks import KS, SUPPORT
from feasibly.problems.weather import Weather
from feasibly.result import Result
from feasibly.samplers import PostHoc
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


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs the command line in a folder of its own, and returns the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # or tables break words into lines

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["feasibly", *map(str, arguments)])
        with pytest.raises(SystemExit) as error:
            main()
        return error.value.code

    return run


def of(user, denoiser="denoiser", constraint="circle", **options):
    """The arguments of `sample` for functions of the user, with few samples and steps."""
    options = {"members": 4, "method": "ppr", "out": "out"} | options
    if options["method"] != "auto":  # which has no steps
        options = {"steps": 4} | options
    named = ("--denoiser", f"{user}:{denoiser}", "--constraint", f"{user}:{constraint}")
    return ("sample", *named, *(w for k, v in options.items() for w in (f"--{k}", v)))


FILES = {"PPR": "PPR", "post-hoc projection": "PostHoc"}  # the labels, and what samples


def files(name):
    return {f"{name}_{label.replace(' ', '-')}.safetensors": kind for label, kind in FILES.items()}


def planned(steps):
    """`plan`, whose kernels take so many steps."""

    def short(*parts, **options):
        made = plan(*parts, **options)
        return replace(made, kernels=tuple(replace(one, steps=steps) for one in made.kernels))

    return short


@pytest.fixture
def small_ks(monkeypatch):
    """White noise of 16 x 16 stands for the prior of trajectories, whose samples take minutes."""
    oracle = Gaussian(torch.zeros(16 * 16), torch.eye(16 * 16), LogLogit())
    monkeypatch.setitem(SUPPORT, 16, SUPPORT[64])

    def problem(observation):
        return KS(observation, oracle, size=16)

    monkeypatch.setattr(demo_parts, "LEVELS", 3)  # pictures take longer than samples
    for module, steps in ((demo_ks, 6), (demo_three, 8)):
        monkeypatch.setattr(module, "KS", problem)
        monkeypatch.setattr(module, "plan", planned(steps))
    return problem


@pytest.mark.slow
def test_demo_writes_report_figures_and_samples(command, tmp_path, monkeypatch, capsys):
    # the data's distribution stands for thousands of the prior's samples
    def prior_samples(self, n):
        return self.distribution.sample(n, torch.Generator().manual_seed(0)).float()

    monkeypatch.setattr(Data2D, "prior_samples", prior_samples)
    monkeypatch.setattr(demo_data2d, "plan", planned(8))
    out = tmp_path / "new" / "demo"
    assert command("demo", "data2d", "--out", out, "--members", 32) == 0

    names = ("checkerboard", "banana")
    samples = {file: kind for name in names for file, kind in files(name).items()}
    samples |= {f"{name}_default.safetensors": "SMC" for name in names}
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


def levels_of(page):
    """What is written next to the sliders of a page at each of their levels."""
    return re.findall(r'title="noise level ([\d.e+-]+)"', page)


@pytest.fixture
def drawn(monkeypatch):
    """The figures of fields that are drawn."""
    made, draw = [], figures.trajectories

    def watched(*args, **options):
        made.append(draw(*args, **options))
        return made[-1]

    monkeypatch.setattr(figures, "trajectories", watched)
    return made


@pytest.mark.slow
def test_demo_of_trajectories_writes_report_and_samples(
    command, small_ks, drawn, tmp_path, capsys
):
    assert command("demo", "ks", "--out", "ks", "--members", 3) == 0
    assert {path.name for path in (tmp_path / "ks").iterdir()} == {*files("ks"), "report.html"}
    problem = small_ks("sine-3")
    constraint = problem.constraint(problem.reference(0))
    for name, kind in files("ks").items():
        result = Result.load(tmp_path / "ks" / name)
        assert result.samples.shape == (3, 16, 16)
        assert torch.equal(result.feasible, constraint.is_feasible(result.samples))
        assert f"{kind}(" in result.method
    page = (tmp_path / "ks" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 4 + len(levels_of(page)) >= 4 + 3
    assert all(f"<td>{label}</td>" in page for label in FILES)
    (truth, *_), bar = drawn[0].axes, drawn[0].axes[-1]
    assert truth.get_title() == "truth"
    np.testing.assert_array_equal(truth.get_images()[0].get_array(), problem.reference(0))
    titles = [ax.get_title() for ax in drawn[0].axes]
    assert titles[1:4] == ["PPR, sample 0", "PPR, mean of 3", "standard deviation"]
    assert bar.get_xlabel() == demo_parts.UNITS
    assert "report.html" in capsys.readouterr().out


def test_the_demo_of_three_problems_prints_one_table_and_draws_each(
    command, small_ks, drawn, tmp_path, capsys
):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the first screen shows none
        assert command("demo", "--out", "three", "--members", 16) == 0
    names = ("points-on-a-curve", "maps-and-stations", "a-chaotic-field")
    written = {f"{name}.png" for name in names} | {"report.html"}
    for name in names:
        written |= {f"{name}_{kind}.safetensors" for kind in ("feasibly", "projected-at-the-end")}
    assert {path.name for path in (tmp_path / "three").iterdir()} == written
    ours = [Result.load(tmp_path / "three" / f"{name}_feasibly.safetensors") for name in names[:2]]
    assert all(result.feasible.all() for result in ours)
    shown = capsys.readouterr().out
    assert shown.count("projected") >= 3
    assert "Warning" not in shown
    page = (tmp_path / "three" / "report.html").read_text(encoding="utf-8")
    sliders = [levels_of(part) for part in page.split("<h2>")[1:]]
    assert len(sliders) == 3
    for levels in sliders:
        assert 3 <= len(levels) <= demo_parts.LEVELS
        assert sorted(levels, key=float, reverse=True) == levels
    assert all(f.axes[0].get_title() == "truth" for f in drawn)
    assert page.count("<td>row ") == demo_three.STATIONS
    assert "tolerance" not in page  # of which violations are millions of times as large


@pytest.mark.slow
def test_the_demo_of_the_weather_writes_maps_and_scores(command, tmp_path, monkeypatch, capsys):
    class White(Denoiser):
        def mean(self, x, sigma):
            return x / (1 + sigma**2)

    torch.manual_seed(0)
    autoencoder = SphereAutoencoder(channels=(16, 16, 16)).eval().requires_grad_(False)
    day = torch.nn.functional.interpolate(torch.randn(24, 3, 4, 8), size=(32, 64))
    monkeypatch.setattr(weather, "fresh_days", lambda block, members: day[None])
    prior = White(LogLogit(1e-3, 1e2, spread=2.0))
    monkeypatch.setattr(demo_weather, "Weather", lambda name: Weather(name, prior, autoencoder))
    monkeypatch.setattr(demo_weather, "plan", planned(4))
    maps, marked = demo_weather.figures.maps, []

    def watched(fields, hours, label, observed=None):
        marked.append(observed)
        return maps(fields, hours, label, observed)

    monkeypatch.setattr(demo_weather.figures, "maps", watched)
    assert command("demo", "weather", "--out", "w", "--members", 2) == 0
    assert list(marked[0]) == [12]
    assert marked[0][12].sum() == 205
    assert {path.name for path in (tmp_path / "w").iterdir()} == {*files("weather"), "report.html"}
    result = Result.load(tmp_path / "w" / "weather_PPR.safetensors")
    assert result.samples.shape == (2, 24, 16, 4, 8)
    assert result.feasible.all()
    page = (tmp_path / "w" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 5 + len(levels_of(page)) >= 5 + 3
    assert page.count("°, ") == demo_weather.ROWS
    table = capsys.readouterr().out
    assert "100%" in table
    assert "m/s" in table


@pytest.mark.parametrize(
    ("name", "method", "size"),
    [("auto", "auto", 32), ("post-hoc", PostHoc(steps=4), 3)],
    ids=["auto", "named"],
)
def test_sample_writes_what_the_library_samples_and_a_report(
    user, command, tmp_path, capsys, name, method, size
):
    out = tmp_path / "new" / "folder"
    given = of(user, method=name, seed=5, out="new/folder", **{"batch-size": size})
    assert command(*given) == 0
    assert {path.name for path in out.iterdir()} == {"samples.safetensors", "report.html"}
    made = Result.load(out / "samples.safetensors")
    denoiser, constraint = load_denoiser(f"{user}:denoiser"), load_constraint(f"{user}:circle")
    again = feasibly.sample(denoiser, constraint, 4, (2,), method=method, seed=5, batch_size=size)
    torch.testing.assert_close(made.samples, again.samples, rtol=0, atol=0)
    assert (made.members, made.seed) == ([0, 1, 2, 3], 5)
    assert (made.method, made.reason) == (again.method, again.reason)
    assert (made.reason == "") == (name != "auto")
    radius = made.samples[made.feasible].norm(dim=1)
    torch.testing.assert_close(radius, torch.ones_like(radius), rtol=0, atol=1e-3)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 3
    assert len(figures.by_level(made.trace)) >= 2  # the points of the convergence figure
    assert "<figcaption>Samples, drawn according to their shape:" in page
    assert "Observations with errors" not in page
    printed = capsys.readouterr().out
    assert "samples feasible" in printed
    assert "new/folder" in printed


def test_a_run_of_one_step_has_no_convergence_figure_and_says_why(user, command):
    assert command(*of(user, steps=1, method="post-hoc")) == 0
    assert len(Result.load("out/samples.safetensors").trace) == 1
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 2
    assert "fewer than two noise levels were recorded" in page


def test_sample_tells_an_infeasible_constraint_by_its_status(user, command, capsys):
    assert command(*of(user, constraint="impossible")) == 1
    assert "None of the 4 samples" in capsys.readouterr().out
    result = Result.load("out/samples.safetensors")
    assert not result.feasible.any()
    assert (result.violation >= 1).all()


@pytest.mark.slow
def test_warnings_of_a_run_are_printed_as_sentences(user, command, capsys):
    """A member that is kept at no try, of one, has a chance of a half at least."""
    once = ("--options", "tries=1", "attempts=1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        command(*of(user, method="rejection", members=16), *once)
    result = Result.load("out/samples.safetensors")
    assert "accepted in none of 1 tries" in result.warnings[0]
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in result.warnings)


# what is kept of a run that fails


def test_a_run_that_fails_keeps_what_is_finished_and_says_so(user, command, capsys):
    """Members 2 and 3 fail, which are the second chunk; a traceback has what was noted too."""
    arguments = of(user, "failing", method="ancestral", **{"batch-size": 2})
    for option, last in (((), "error: "), (("--traceback",), "Traceback (most recent call last)")):
        assert command(*arguments, *option) == 2
        printed = capsys.readouterr().err
        assert last in printed
        assert "out of memory" in printed
        assert "2 of 4 samples are kept in out/partial.safetensors" in printed
    assert os.listdir("out") == ["partial.safetensors"]
    partial = Result.load("out/partial.safetensors")
    assert partial.members == [0, 1]
    assert partial.finite.all()


def test_sigterm_stops_a_run_which_keeps_what_is_finished(user, command, capsys):
    # the signal comes with member 2, in the second chunk
    assert command(*of(user, "terminated", method="ancestral", **{"batch-size": 2})) == 130
    assert "stopped: 2 of 4 samples are kept in out/partial" in capsys.readouterr().err
    assert Result.load("out/partial.safetensors").members == [0, 1]
    assert command(*of(user, "terminated", method="ancestral", out="none")) == 130
    assert "stopped: No sample was finished. With --batch-size N" in capsys.readouterr().err
    assert os.listdir("none") == []


@pytest.mark.parametrize(
    ("full", "words", "kept"),
    [
        (("out",), r"No space left.* 4 samples are in (\S+)\. M", None),
        (("out", "spare"), r"No space left.*no sample is kept.*NAME\.zarr", None),
        (("page",), r"report cannot be written.*out/samples\.safetens", "out/samples.safetensors"),
    ],
    ids=["folder", "everything", "report"],
)
def test_samples_that_the_disk_does_not_take_are_kept_elsewhere_or_said_to_be_lost(
    user, command, tmp_path, monkeypatch, capsys, full, words, kept
):
    """Writes fail in folders of some names, as on a full disk; `spare` is the temporary one."""
    save, write = Result.save, Path.write_text

    def saved(result, path):
        if any(name in str(path) for name in full):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(result, path)

    def written(path, *args, **options):
        if "page" in full and path.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **options)

    monkeypatch.setattr(Result, "save", saved)
    monkeypatch.setattr(Path, "write_text", written)
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    assert command(*of(user)) == 2
    found = re.search(words, capsys.readouterr().err)
    assert found
    if kept := kept or next(iter(found.groups()), None):
        assert Result.load(kept).members == [0, 1, 2, 3]


def test_samples_for_which_the_disk_has_no_room_are_not_sampled(
    user, command, monkeypatch, capsys
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=31))
    assert command(*of(user, "failing")) == 2
    assert "need 32 bytes, but out has 31 bytes free" in capsys.readouterr().err
    said = [size(count) for count in (12, 3400, 5.6e7, 7.8e12)]
    assert said == ["12 bytes", "3.4 kB", "56 MB", "7.8 TB"]


# the other commands


@pytest.mark.slow
def test_audit_prints_verdicts_and_writes_a_page(user, command, tmp_path, capsys):
    named = of(user)[1:5]
    settings = ("--truths", 16, "--members", 2, "--near", 1, "--batch-size", 32)
    summaries = ("--statistics", f"{user}:summaries", "--keep")
    # the circle's members are right, and those of DPS are not on it
    assert (
        command("audit", *named, *settings, "--methods", "ppr-tuned", "--out", "a", *summaries)
        == 0
    )
    assert command("audit", *named, *settings, "--methods", "dps", "--out", "away") == 1
    captured = capsys.readouterr()
    printed = " ".join((captured.err + captured.out).split())
    for words in (
        "16 truths with 2 samples each take",
        "ppr-tuned: ",
        "Use ppr-tuned.",
        "energy score",
    ):
        assert words in printed
    assert "rank" in (tmp_path / "a" / "audit.html").read_text()
    assert feasibly.ensemble.Store(tmp_path / "a" / "0-ppr-tuned.zarr").config.members == 32
    for bad, words in (
        (("--data", "no.npy"), "be read"),
        (("--statistics", f"{user}:far"), "dict"),
    ):
        assert command("audit", *named, *settings, "--methods", "ppr", *bad) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_check_passes_a_shipped_prior_and_fails_a_wrong_denoiser(user, command, capsys):
    # how often chance fails a good denoiser is the business of test_diagnosis.py
    data = Data2D("checkerboard").distribution.sample(256, torch.Generator().manual_seed(0))
    np.save("data.npy", data.numpy())
    arguments = ("--constraint", 0, "--data", "data.npy")
    assert command("check", "--denoiser", "checkerboard", *arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    reason = plan(priors.load("checkerboard"), load_constraint("0"), (2,)).reason
    for words in (
        "Fit for use.",
        "Residual components per sample: 1.",
        "of the variance",
        f"{reason} This",
    ):
        assert words in printed
    assert command("check", "--denoiser", f"{user}:wrong", "--data", "data.npy") == 1
    printed = capsys.readouterr().out
    for words in ("Not fit for use", "worse than a guess"):
        assert words in printed
    assert "Residual components" not in printed


def test_check_takes_the_folder_of_a_model_of_diffusers(command, capsys):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
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
    diffusers.DDPMPipeline(net, diffusers.DDPMScheduler()).save_pretrained("model")
    np.save(
        "data.npy", torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    )
    shape = ("--shape", "1,8,8", "--data", "data.npy")
    assert command("check", "--denoiser", "./model", *shape) == 1  # it is not trained
    printed = capsys.readouterr().out
    for part in ("UNet2DModel", "prediction_type epsilon", "whether it is trained"):
        assert part in printed


def test_data_are_read_from_tensors_and_other_files_are_refused(tmp_path):
    data, path = torch.randn(16, 2), tmp_path / "data.pt"
    torch.save(data, path)
    assert torch.equal(load_data(path, (2,)), data)
    torch.save({"data": data}, path)
    np.save(tmp_path / "other.npy", np.zeros((16, 3)))
    (tmp_path / "words.npy").write_text("no array")
    (tmp_path / "empty.pt").write_text("")
    for name, words in (
        ("data.pt", "cannot be read"),
        ("words.npy", "cannot be read"),
        ("empty.pt", "cannot be read"),
        ("other.npy", r"\(3,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            load_data(tmp_path / name, (2,))


def test_a_denoiser_is_a_name_a_file_or_a_function_and_a_constraint_a_number_or_one(
    user, tmp_path
):
    x, t = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.tensor(0.5)
    shipped = priors.load("banana")(x, t).mean
    shutil.copy(priors.home() / "banana.safetensors", tmp_path / "own.safetensors")
    (tmp_path / "banana").mkdir()  # a folder does not hide a shipped prior
    for name in ("banana", str(tmp_path / "own.safetensors"), "own.safetensors"):
        assert torch.equal(load_denoiser(name)(x, t).mean, shipped)
    own = load_denoiser(f"{user}:denoiser")(x, t).mean
    torch.testing.assert_close(own, x / (1 + torch.tensor(0.31623) ** 2), rtol=1e-4, atol=0)
    for k in range(CONSTRAINTS):
        expected = GaussianRandomField(seed=k)(x)[:, None]
        assert torch.equal(load_constraint(str(k)).residual(x), expected)


def test_options_are_literals_or_words(user, command):
    for text, value in (
        ("1e-3", 1e-3),
        ("2", 2),
        ("None", None),
        ("inf", float("inf")),
        ("x_0", "x_0"),
        ("GaussNewton(4, max_distance=None)", GaussNewton(4, max_distance=None)),
        ("print(4)", "print(4)"),
    ):
        assert parse(f"name={text}") == ("name", value)
    given = ("--options", "zeta=0.25", "units=state")
    assert command(*of(user, method="dps", steps=3), *given) in (0, 1)
    made = Result.load("out/samples.safetensors").method
    assert re.search(r"DPS\(steps=3, .*zeta=0\.25, units='state'\)", made)


def test_auto_takes_the_error_of_weights_and_a_number_of_attempts(user):
    job = Job(f"{user}:denoiser", f"{user}:circle", "auto", ("error=0.1", "attempts=2"))
    assert [one.error for one in job.build((2,)).kernels] == [0.1, 0.1]


# refusals: an error is a sentence, and the place in the user's module

NOWHERE = {"--denoiser": "USER:denoiser", "--constraint": 0, "--members": 4}
SHAPE = "a shape is one or more positive whole numbers"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--denoiser": "nope"}, "no prior 'nope'"),
        ({"--denoiser": "[old]"}, r"'\[old\]'"),
        ({"--denoiser": "runs/[/]"}, r"'runs/\[/\]'"),
        *(({"--denoiser": p}, "module:function") for p in (":f", "module:", "./module:f")),
        *(
            ({"--denoiser": p}, f"{p}' cannot be imported")
            for p in ("no_such_module:f", "USER:no_such_function", "USER.part:f")
        ),
        ({"--denoiser": "USER:number"}, "USER:number"),
        ({"--denoiser": "USER:needy"}, "without arguments .*'size'"),
        ({"--denoiser": "USER:broken", "--method": "dps"}, "All 4 .* became non-finite"),
        ({"--constraint": "USER:detached"}, "detach"),
        ({"--constraint": "USER:nothing"}, r"returned int.*feasibly\.Equality"),
        *(({"--constraint": n}, "0 to 11.*module:function") for n in ("12", "zero", "0.5", "")),
        *(({"--shape": n}, SHAPE) for n in ("2.5", "0", "-1", "a", "")),
        ({"--method": "cdim"}, "Linear"),
        ({"--method": "eci"}, "PCFM"),
        *(
            ({"--method": "dps", "--options": o}, "")
            for o in ("zeta=abc", "steps=1.5", "steps=0", "attempts=two", "attempts=1.5")
        ),
        ({"--method": "dps", "--options": "gamma=1"}, "options are attempts, eta, .*units, zeta"),
        *(({"--options": o}, "name=value") for o in ("zeta", "=3", "two words=3")),
        ({"--options": "steps=4", "--steps": 3}, "twice"),
        ({"--method": "ppr", "--options": "minimize=LBFGS"}, "takes a minimizer"),
        ({"--options": "steps=4"}, "auto has no option 'steps'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_explained(user, command, capsys, changes, words):
    arguments = (NOWHERE | changes).items()
    given = (f"{name}={value}" for name, value in arguments if name != "--options")
    options = [w for name, value in arguments if name == "--options" for w in (name, value)]
    assert command("sample", *(w.replace("USER", user) for w in given), *options) == 2
    assert re.search(words.replace("USER", user), printed := capsys.readouterr().err)
    assert "Traceback" not in printed
    assert not list(Path.cwd().rglob("*.safetensors"))


@pytest.mark.parametrize(("problem", "noun"), [("ks", "samples"), ("weather", "members")])
def test_a_demo_of_an_ensemble_needs_two_members(command, capsys, problem, noun):
    assert command("demo", problem, "--members", 1) == 2
    assert f"at least 2 {noun}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [("64", "32"), ("64,32",)], ids=" ".join)
def test_a_shape_is_read_with_commas_or_without(command, capsys, given):
    assert command("sample", "--denoiser", "banana", "--constraint", 0, "--shape", *given) == 2
    assert re.search(r"\b64\b.*\b32\b|shape|\(2,", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("denoiser", "constraint", "function", "line"),
    [
        ("hasty", "circle", "hasty", "raise ValueError"),
        ("denoiser", "sour", "<lambda>", "cholesky"),
        ("denoiser", "nothing", None, ""),  # an error of the package names no place
    ],
)
def test_an_error_in_a_module_of_the_user_says_where(
    user, command, tmp_path, capsys, denoiser, constraint, function, line
):
    assert command(*of(user, denoiser, constraint)) == 2
    printed = capsys.readouterr().err.splitlines()
    if function is None:
        assert len(printed) == 1
        return
    lines = (tmp_path / f"{user}.py").read_text().splitlines()
    number = next(n for n, text in enumerate(lines, start=1) if line in text)
    assert printed[-1] == f"  at {tmp_path / user}.py, line {number}, in {function}"


def test_an_error_ends_the_program_with_one_line_and_no_traceback(tmp_path):
    """In a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    arguments = ["-m", "feasibly", "sample", "--denoiser", "nope", "--constraint", "0"]
    failure = subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (failure.returncode, failure.stdout) == (2, "")
    assert failure.stderr.startswith("error: There is no prior 'nope'")
    assert len(failure.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_offers_the_full_traceback(command, capsys, name):
    assert command(name, "--help") == 0
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
    command, capsys, arguments, called, kind
):
    assert command(*arguments, "--traceback") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback (most recent call last)")
    assert f"in {called}" in printed
    assert kind in printed.splitlines()[-1]
    assert "error:" not in printed
