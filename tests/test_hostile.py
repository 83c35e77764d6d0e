"""Files and texts that anybody may have written: no hang, no memory beyond their length, and
nothing that a terminal obeys."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from rich.table import Table
from safetensors.torch import save_file

from feasibly import DenoiserError, InfeasibleWarning, SamplingError
from feasibly.__main__ import main
from feasibly.cli.check import load_data
from feasibly.cli.load import load_object
from feasibly.cli.words import Screen
from feasibly.errors import safe
from feasibly.files import load_torch
from feasibly.priors import load
from feasibly.result import Evaluations, Result

ESCAPE = "\x1b[2J\x07\r\u202e\udc80[/red] p[bold]q :smile:"
SHOWN = r"\x1b[2J\x07\r\u202e\udc80[/red] p[bold]q :smile:"


def test_a_text_of_any_origin_is_only_text():
    assert safe(ESCAPE) == SHOWN
    assert safe("α ≤ 1\n\tü") == "α ≤ 1\n\tü"
    for kind in (DenoiserError, SamplingError, InfeasibleWarning):
        assert str(kind(ESCAPE)) == SHOWN


def test_a_screen_prints_text_and_tables_as_they_are():
    screen = Screen(file=io.StringIO(), width=200)
    table = Table(ESCAPE, title=ESCAPE)
    table.add_row(ESCAPE)
    screen.say(ESCAPE)
    screen.print(table)
    printed = screen.file.getvalue()
    assert printed.startswith(SHOWN + "\n")
    assert printed.count(SHOWN) == 4
    assert "\x1b" not in printed


def made(method="PPR"):
    x = torch.zeros(2, 3)
    c = torch.zeros(2)
    return Result(x, c, c == 0, [0, 1], 0, 1.0, Evaluations(), method=method)


def rewritten(path, **changes):
    """A result's file with other metadata."""
    made().save(path)
    about = {"members": [0, 1], "seed": 0, "tolerance": 1.0, "seconds": 0.0, "method": "PPR"}
    about |= {"reason": "", "warnings": [], "statistics": {}, "evaluations": {}, "trace": []}
    tensors = {"samples": torch.zeros(2, 3), "violation": torch.zeros(2)}
    tensors |= {"feasible": torch.ones(2, dtype=torch.bool)}
    save_file(tensors, path, metadata={"feasibly": json.dumps(about | changes)})


def deep(path):
    save_file({"a": torch.zeros(1)}, path, metadata={"feasibly": "[" * 100_000})


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_bytes((2**40).to_bytes(8, "little") + b"{}"),
        lambda path: save_file({"samples": torch.zeros(2)}, path),
        deep,
        lambda path: rewritten(path, members=[0]),
        lambda path: rewritten(path, members="ab"),
        lambda path: rewritten(path, seed="x"),
        lambda path: rewritten(path, trace=[{"step": 1}]),
        lambda path: rewritten(path, warnings=3),
        lambda path: rewritten(path, more=1),
    ],
    ids=[
        *("missing", "folder", "pipe", "circle", "device", "noise", "long header", "foreign"),
        *("deep", "fewer members", "no members", "seed", "trace", "warnings", "more"),
    ],
)
@pytest.mark.parametrize(
    "read", [Result.load, lambda path: load(str(path))], ids=["result", "prior"]
)
def test_what_is_no_result_and_no_prior_is_refused_in_words(tmp_path, write, read):
    path = tmp_path / "a.safetensors"
    write(path)
    with pytest.raises(ValueError, match=r"a\.safetensors") as caught:
        read(path)
    assert str(caught.value).isprintable()


def test_a_result_that_is_read_has_harmless_texts(tmp_path):
    rewritten(tmp_path / "a.safetensors", method=ESCAPE, warnings=[ESCAPE])
    read = Result.load(tmp_path / "a.safetensors")
    assert (read.method, read.warnings) == (SHOWN, [SHOWN])


def test_samples_are_readable_for_whom_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        made().save(tmp_path / "a.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o640


def long_header(path):
    with open(path, "wb") as file:
        about = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2)}
        np.lib.format.write_array_header_1_0(file, about)
        file.write(bytes(64))


def compressed(path):
    torch.save(torch.zeros(10**6, 2), path.with_name("plain.pt"))
    with (
        zipfile.ZipFile(path.with_name("plain.pt")) as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for name in plain.namelist():
            made.writestr(name, plain.read(name))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.npy", long_header),
        ("a.npy", os.mkfifo),
        ("a.npy", lambda path: np.savez(path.open("wb"), a=np.zeros(3))),
        ("a.pt", lambda path: torch.save(torch.zeros(1, 2).expand(2**40, 2), path)),
        ("a.pt", compressed),
        ("a.pt", os.mkfifo),
        ("a.pt", lambda path: path.symlink_to("nowhere")),
    ],
    ids=["header", "pipe", "archive", "view", "compressed", "pipe of torch", "dangling link"],
)
def test_data_that_claim_more_than_they_hold_are_refused(tmp_path, name, write):
    write(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        load_data(tmp_path / name, (2,))


def test_tied_weights_are_no_forgery(tmp_path):
    one = torch.zeros(3, 2)
    torch.save({"a": one, "b": one}, tmp_path / "a.pt")
    assert set(load_torch(tmp_path / "a.pt")) == {"a", "b"}


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["feasibly", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sample", "--out", "file"), "--out file cannot be used as a folder"),
        (("sample", "--out", "file/below"), "--out file/below cannot be used as a folder"),
        (("sample", "--out", "file/run.zarr"), "file/run.zarr cannot be created"),
        (("sample", "--options", "minimize=LBFGS(foo=1)"), "LBFGS"),
        (("sample", "--options", "steps=many"), "steps"),
        (("sample", "--members", "2000000000"), "takes at least"),
        (("sample", "--denoiser", "p[/red][bold]q"), "no prior 'p[/red][bold]q'"),
    ],
)
def test_a_mistake_in_a_command_is_a_sentence(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    name, *rest = arguments
    given = {"--denoiser": "banana", "--constraint": "3", "--method": "ppr"} | dict([rest])
    flat = [text for pair in given.items() for text in pair]
    assert command(monkeypatch, name, *flat) == 2
    said = capsys.readouterr().err
    (sentence,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert words in sentence
    assert "Traceback" not in said
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(): return {}['key']", r":f' failed \(KeyError: 'key'\)"),
        ("def f(: pass", r":f' cannot be imported \(SyntaxError"),
        ("1 / 0", r":f' cannot be imported \(ZeroDivisionError"),
    ],
)
def test_an_error_in_a_users_module_is_said(module_of_a_user, text, words):
    with pytest.raises(ValueError, match=words):
        load_object(f"{module_of_a_user(text)}:f")
