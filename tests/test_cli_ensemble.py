import importlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch

import feasibly
from feasibly import machine, problems
from feasibly.__main__ import main
from feasibly.cli import ensemble
from feasibly.cli.sample import sample
from feasibly.ensemble import Store, Summary
from feasibly.ensemble.manifest import sealed

pytest.importorskip("zarr")
xarray = pytest.importorskip("xarray")

MODULE = """
import torch
import feasibly
from feasibly.ensemble import Coordinate, Layout

print("the module was run")
stop_at = None


def denoiser():
    exact = feasibly.oracles.Gaussian(
        torch.zeros(2), torch.eye(2), feasibly.schedules.LogLogit()
    )

    def network(x_t, t):
        rows = feasibly.members.current()
        if stop_at is not None and stop_at in rows.tolist() and len(rows) == 1:
            raise KeyboardInterrupt
        return exact(x_t, t).mean

    network.schedule = exact.schedule
    return network


def circle():
    return feasibly.Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-6)


def conditional():
    exact = feasibly.oracles.Gaussian(
        torch.zeros(2), torch.eye(2), feasibly.schedules.LogLogit()
    )

    def network(x_t, t):
        rows = feasibly.members.current()
        shift = 0.0 if rows is None else 4.0 * (rows[:, None] > 1)
        return exact(x_t - shift, t).mean + shift

    network.schedule = exact.schedule
    return network


def loose():
    return feasibly.Equality(lambda x: x[:, :1], tolerance=100.0)


def impossible():
    return feasibly.Equality(lambda x: x[:, :1] ** 2 + 1, tolerance=1e-6)


def half():
    return feasibly.Inequality(lambda x: x[:, :1], tolerance=1e-6)


def layout():
    return Layout((Coordinate("side", units="m", long_name="side of the plane"),), "position")
"""


@pytest.fixture
def user(module_of_a_user, monkeypatch):
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    return module_of_a_user(MODULE)


@pytest.fixture
def command(monkeypatch):
    """Runs a command; returns its exit status."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["feasibly", *map(str, arguments)])
        with pytest.raises(SystemExit) as error:
            main()
        return error.value.code

    return run


TOY = ("--method", "ppr", "--steps", 4, "--members", 4, "--batch-size", 1)


def names(user, constraint="circle"):
    return "--denoiser", f"{user}:denoiser", "--constraint", f"{user}:{constraint}"


def test_sample_fills_a_store_with_what_the_library_draws(tmp_path, user, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    out, module = tmp_path / "new" / "run.zarr", importlib.import_module(user)
    place = f"{user}:denoiser", f"{user}:circle", out
    assert sample(*place, members=3, method="ppr", steps=4, seed=5) in (0, 1)
    parts = module.denoiser(), module.circle()
    expected = feasibly.sample(*parts, 3, (2,), method=feasibly.PPR(steps=4), seed=5)
    found = torch.from_numpy(xarray.open_zarr(out)["samples"].values)
    torch.testing.assert_close(found, expected.samples, rtol=1e-5, atol=1e-5)
    printed = capsys.readouterr()
    assert "survey of unconditional samples" in printed.err
    assert "left  sampling" in printed.err
    assert "3 of 3 samples finished," in printed.out


@pytest.mark.parametrize("out", ["run", "run.zarr"])
def test_the_shell_says_what_a_user_should_know(user, command, capsys, out):
    """That a constraint asks for nothing, once and before the work; and who was not tested."""
    denoiser = ("--denoiser", f"{user}:conditional")
    found = command(
        "sample", *denoiser, "--constraint", f"{user}:loose", *TOY[:-2], "--out", out, "--shape", 2
    )
    assert found == 0
    printed = " ".join(capsys.readouterr().out.split())
    little = r"already satisfy \S+, so that it constrains little"
    assert re.search(rf"{little}.* 2 of 2 \w+ plausible", printed)
    assert "were not tested for plausibility" in printed
    if out.endswith("zarr"):
        kept = Store(out).warnings()
    else:
        kept = feasibly.Result.load(f"{out}/samples.safetensors").warnings
    assert sum(bool(re.search(little, sentence)) for sentence in kept) == 1


def test_a_run_that_was_interrupted_is_resumed(tmp_path, user, command, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(user)
    module.stop_at = 2
    assert command("sample", *names(user), *TOY, "--out", "run.zarr") == 130
    error = capsys.readouterr().err
    assert (
        "stopped: Lost before they were finished: 1 (2). 2 of 4 samples are finished and kept"
        in error
    )
    assert "python -m feasibly resume run.zarr" in error

    assert command("report", "run.zarr") == 1
    assert "2 (2, 3) not sampled yet" in capsys.readouterr().out
    module.stop_at = None
    assert command("resume", "run.zarr", *names(user)) == 0
    assert Summary.read(Store("run.zarr")).counted == 4
    assert command("report", "run.zarr", "--out", "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "4 of 4 samples finished" in page
    assert page.count("<td>finished</td>") == 4
    assert page.count("data:image/png") == 2
    assert "<figcaption>Samples, drawn according to their shape:" in page


def test_a_page_draws_members_that_are_as_they_were_written_and_not_too_large(
    tmp_path, user, command, monkeypatch
):
    assert command("sample", *names(user), *TOY, "--out", "run.zarr") == 0
    summary = Summary.read(Store("run.zarr"))
    store = summary.store
    assert torch.equal(ensemble.few(summary), torch.stack([*map(read(store), range(4))]))
    content = bytearray(store.chunk(1).read_bytes())
    store.chunk(1).write_bytes(bytes(b ^ 1 for b in content))
    assert torch.equal(ensemble.few(summary), torch.stack([*map(read(store), [0, 2, 3])]))
    monkeypatch.setattr(ensemble, "POINTS", 2)
    assert len(ensemble.few(summary)) == 1
    monkeypatch.setattr(ensemble, "LARGEST", 1)
    assert ensemble.few(summary).shape == (0, 2)
    assert command("report", "run.zarr") == 0
    page = (tmp_path / "run.html").read_text()
    assert "Samples, drawn" not in page
    assert "Violation of the samples." in page


def read(store):
    return lambda member: torch.from_numpy(store.get(member))


def test_the_same_command_for_more_members_makes_a_store_grow(user, command, capsys):
    start = ("sample", *names(user), *TOY[:-2], "--out", "run.zarr", "--batch-size", 2)
    assert command(*start) == 0
    assert command(*start, "--members", 6) == 0
    assert "6 of 6 samples finished," in capsys.readouterr().out
    assert command(*start) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "holds an ensemble of 6 samples, and cannot shrink to 4; ask for 6 or more" in error
    assert command("resume", "run.zarr", *names(user)) == 0


def test_sigterm_stops_a_run_as_ctrl_c_does():
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ensemble.stopping():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is former


def test_what_a_store_names_is_not_run_unasked(user, command, capsys):
    assert command("sample", *names(user), *TOY, "--out", "run.zarr") == 0
    sys.modules.pop(user)
    capsys.readouterr()
    assert command("resume", "run.zarr") == 2
    printed = capsys.readouterr()
    assert f"add --denoiser {user}:denoiser" in printed.err
    assert "the module was run" not in printed.out
    assert command("resume", "run.zarr", *names(user, "impossible")) == 2
    assert f"not with '{user}:impossible'" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["denoiser", "constraint"])
def test_a_forged_name_is_not_run(tmp_path, user, command, capsys, place):
    sample("banana", "3", tmp_path / "run.zarr", members=1, method="ppr", steps=2)
    path = tmp_path / "run.zarr" / ".feasibly" / "manifest.json"
    forged = json.loads(path.read_text())
    del forged["seal"]
    forged["config"]["source"][place] = f"{user}:denoiser"
    path.write_bytes(sealed(forged))
    assert command("resume", "run.zarr") == 2
    printed = capsys.readouterr()
    assert "does not run code named in a store" in printed.err
    assert "the module was run" not in printed.out


def test_a_forged_shape_takes_no_memory(tmp_path, command, capsys, monkeypatch):
    sample("banana", "3", tmp_path / "run.zarr", members=1, method="ppr", steps=2)
    store = Store(tmp_path / "run.zarr")
    (store.records / "0.json").unlink()
    path = store.path / ".feasibly" / "manifest.json"
    forged = json.loads(path.read_text())
    del forged["seal"]
    forged["config"]["shape"] = [*forged["config"]["shape"][:-1], 2**31]
    path.write_bytes(sealed(forged))
    monkeypatch.setattr(machine, "room", lambda device: 2**33)
    monkeypatch.setattr(problems, "layout", lambda *_: pytest.fail("no axes are needed"))
    monkeypatch.chdir(tmp_path)
    assert command("resume", "run.zarr") == 2
    assert "takes at least 60.1 GB of memory, but only 8.59 GB are free" in capsys.readouterr().err


@pytest.mark.slow
def test_a_shipped_prior_is_resumed_by_the_store_alone(tmp_path, user, command):
    out = tmp_path / "run.zarr"
    status = sample("banana", "3", out, members=2, method="ppr", steps=2, infeasible="retry:2")
    before = xarray.open_zarr(out)["samples"].values
    store = Store(out)
    assert store.config.source["options"] == ("steps=2", "attempts=3")
    (store.records / "1.json").unlink()
    store.chunk(1).unlink()
    assert command("resume", "run.zarr") == status
    torch.testing.assert_close(
        *map(torch.from_numpy, (xarray.open_zarr(out)["samples"].values, before))
    )


@pytest.mark.slow
def test_a_run_is_resumed_with_the_batch_size_that_it_was_begun_with(
    user, command, monkeypatch, tmp_path
):
    sizes, run = [], ensemble.run
    monkeypatch.setattr(
        ensemble, "run", lambda *a, **o: sizes.append(o["batch_size"]) or run(*a, **o)
    )
    for size, name in ((3, "number.zarr"), ("auto", "auto.zarr")):
        start = ("sample", *names(user), "--steps", 4, "--members", 4, "--method", "ppr")
        assert command(*start, "--batch-size", size, "--out", name) == 0
        assert command("resume", name, *names(user)) == 0
    assert command("resume", name, *names(user), "--batch-size", 2) == 0
    assert sizes == [3, 3, "auto", "auto", 2]


def test_a_run_that_lacks_members_exits_with_one(user, command, capsys):
    base = ("sample", *names(user, "impossible"), *TOY)
    for policy in ("drop", "retry:1"):
        assert command(*base, "--out", f"{policy[:4]}.zarr", "--infeasible", policy) == 1
        assert "Only 0 of 4 samples count: 4 (0, 1, 2, 3) infeasible." in capsys.readouterr().out


@pytest.mark.parametrize(("constraint", "count", "status"), [("impossible", 4, 1), ("half", 2, 0)])
def test_infeasible_members_that_count_are_warned_of(
    user, command, capsys, constraint, count, status
):
    options = ("--out", "run.zarr", *names(user, constraint), *TOY, "--method", "ancestral")
    for arguments in (("sample", *options), ("report", "run.zarr")):
        assert command(*arguments) == status  # as sample does without a store
        printed = capsys.readouterr()
        words = f"Warning: {count} of 4 samples do not satisfy the constraint (violation "
        assert words in printed.out
        assert "Warning" not in printed.err


def test_a_layout_of_the_user_names_the_axes(user, command):
    layout = ("--layout", f"{user}:layout")
    assert command("sample", *names(user), *TOY, *layout, "--out", "run.zarr") == 0
    found = xarray.open_zarr("run.zarr")["position"]
    assert found.dims == ("member", "side")
    assert found["side"].attrs == {"units": "m", "long_name": "side of the plane"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "run.zarr", "--infeasible", "retry"), "retry:N"),
        (("--out", "run.zarr", "--infeasible", "keep:3"), "retry:N"),
        (("--out", "run.zarr", "--infeasible", "forget"), "retry:N"),
        (("--out", "run.zarr", "--infeasible", "retry:x"), "retries"),
        (("--out", "run.zarr", "--batch-size", "0"), "batch_size"),
        (("--out", "run.zarr", "--members", "0"), "n="),
        (("--out", "folder", "--batch-size", "auto"), "NAME.zarr"),
        (("--out", "folder", "--infeasible", "drop"), "NAME.zarr"),
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_explained(user, command, capsys, arguments, words):
    assert command("sample", *names(user), *arguments) == 2
    assert words in capsys.readouterr().err
    assert sorted(os.listdir()) == [f"{user}.py"] or "__pycache__" in os.listdir()


def test_a_process_finds_its_place(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    assert ensemble.place() == (0, 0, 1, 1)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert ensemble.place() == (5, 1, 8, 8)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    assert ensemble.place() == (5, 1, 8, 4)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ensemble.place() == (2, 1, 3, 4)


@pytest.mark.slow
def test_torchrun_fills_one_store_by_two_processes(tmp_path, user):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "feasibly", "sample", *names(user)]
    command += ["--members", "24", "--batch-size", "auto", "--out", "run.zarr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("24 of 24 samples finished") == 1
    store = Store(tmp_path / "run.zarr")
    assert Summary.read(store).counted == 24
    assert sample(f"{user}:denoiser", f"{user}:circle", tmp_path / "one.zarr", members=24) == 0
    both = [
        xarray.open_zarr(tmp_path / name)["samples"].values for name in ("run.zarr", "one.zarr")
    ]
    torch.testing.assert_close(*map(torch.from_numpy, both), rtol=1e-5, atol=1e-6)
