"""The examples in the docstrings run, and every public name of the modules below has one."""

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

import feasibly

PACKAGE = Path(feasibly.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"
PUBLIC = ("constraints", "samplers", "schedules", "minimizers", "metrics", "models", "wrappers")
PUBLIC += ("ensemble", "audits", "oracles", "priors", "checks", "denoisers")

# What has no example: nobody makes these, but catches them.
NONE = {"CalibrationWarning", "InfeasibleWarning"}
NONE |= {"ConstraintError", "DenoiserError", "SamplingError", "StoreError"}


def examples() -> Iterator[Any]:
    """Every docstring with an example, as a parameter of a test with the name of its module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if ">>> " not in text:
            continue
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                doc = ast.get_docstring(node) or ""
                if ">>> " in doc:
                    yield pytest.param(doc, id=name)


def public() -> Iterator[tuple[str, Any]]:
    """Every public class and function, by the name that users have for it."""
    for module in (feasibly, *(import_module(f"feasibly.{name}") for name in PUBLIC)):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                yield f"{module.__name__}.{name}", thing


def blocks(page: str) -> list[str]:
    """The Python code of a page of the docs."""
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)


@pytest.fixture
def names(tmp_path) -> dict[str, Any]:
    """What examples may use without making it, as the head of the reference says."""
    matplotlib.use("agg")
    found: dict[str, Any] = {"folder": tmp_path}
    exec(blocks("api.md")[0], found)
    return found


@pytest.mark.parametrize("doc", list(examples()))
def test_an_example_prints_what_it_says(doc, names, request):
    name = request.node.callspec.id
    example = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


def test_every_public_name_has_an_example():
    lacking = {name for name, thing in public() if ">>> " not in (inspect.getdoc(thing) or "")}
    assert {name.rpartition(".")[2] for name in lacking} == NONE


def test_the_code_of_the_answers_runs():
    image = torch.linspace(-1, 1, 64).reshape(1, 8, 8)
    prior = feasibly.oracles.Gaussian(torch.zeros(64), torch.eye(64), feasibly.schedules.VP())
    names = {"feasibly": feasibly, "denoiser": prior, "image": image, "known": image > 0}
    names["low"] = torch.zeros(1, 2, 2)
    for block in blocks("faq.md"):
        exec(block, names)
    assert names["result"].feasible.all()
    assert names["inpainting"].is_feasible(image[None]).all()
    assert names["phase_retrieval"].residual(image[None]).abs().max() < 1e-3
    on = torch.tensor([[0.2, 0.8], [-0.2, 1.2], [0.2, 0.2]])
    assert names["simplex"].is_feasible(on).tolist() == [True, False, False]
