"""`python -m feasibly sample`: an ensemble under a constraint."""

__all__ = ["parse", "sample"]

import ast
import warnings
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from .. import figures, minimizers
from ..errors import InfeasibleWarning
from ..progress import LiveProgress
from ..report import Report
from ..samplers import METHODS, Sampler
from ..samplers.run import shortfall
from .load import load_constraint, load_denoiser

MINIMIZERS = set(minimizers.__all__) - {"Minimizer", "Minimum", "Residual"}


def sample(
    denoiser: str,
    constraint: str,
    out: Path = Path("out/sample"),
    members: int = 64,
    shape: tuple[int, ...] = (2,),
    method: Literal[tuple(METHODS)] = "ppr",  # ty: ignore[invalid-type-form]
    steps: int | None = None,
    options: tuple[str, ...] = (),
    seed: int = 0,
    chunk: int | None = None,
) -> int:
    """Sample a denoiser under a constraint; write the samples and a report.

    Exits with 1 if no member is feasible.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), a prior's file, or module:function for
            a function that returns a denoiser of yours.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function for a
            function that returns a constraint of yours (cdim and eci need a linear one).
        out: The folder for samples.safetensors and report.html.
        members: The number of samples.
        shape: The shape of one sample, for a denoiser of yours.
        method: How to sample; `python -m feasibly methods` lists them.
        steps: The number of diffusion steps; by default the method's own.
        options: More options of the method, such as zeta=0.01, retries=3 or
            "minimize=LBFGS(steps=4)"; `python -m feasibly methods NAME` explains them.
        seed: The seed of the ensemble.
        chunk: How many members to sample at a time; by default all.
    """
    console = Console()
    chosen: dict[str, Any] = {} if steps is None else {"steps": steps}
    more = dict(parse(option) for option in options)
    if chosen.keys() & more.keys():
        raise ValueError("steps is given twice, by --steps and by --options.")
    chosen |= more
    out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    law = load_constraint(constraint)
    try:
        sampler = METHODS[method](load_denoiser(denoiser), law, **chosen)
    except TypeError as error:
        known = ", ".join(sorted(names(METHODS[method])))
        raise ValueError(f"{method}: {error}; its options are {known}.") from error
    with LiveProgress(f"{method} on {denoiser}", console) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", InfeasibleWarning)  # said below, and by the exit status
        try:
            result = sampler.sample(members, shape, seed=seed, chunk=chunk, callback=progress)
        except BaseException as error:
            partial = getattr(error, "partial", None)
            if partial is not None:
                partial.save(out / "partial.safetensors")
                console.print(f"The members drawn so far: {out / 'partial.safetensors'}")
            raise
    result.save(out / "samples.safetensors")
    report = Report(f"feasibly: {method} on {denoiser}")
    report.code(str(result))
    report.figure(
        figures.trace({method: result.trace}, result.tolerance),
        "Violation of the clean estimates and their feasible share along the way.",
    )
    report.figure(
        figures.histogram({method: result.violation}, result.tolerance),
        "Violation of the samples.",
    )
    report.write(out / "report.html")
    console.print(str(result), highlight=False, soft_wrap=True)
    console.print(f"Samples and report: {out}", highlight=False, soft_wrap=True)
    console.print(shortfall(result, sampler), highlight=False, markup=False, soft_wrap=True)
    return 0 if result.feasible.any() else 1


def names(method: type[Sampler]) -> set[str]:
    """Returns the names of a method's options, those of its base classes included."""
    parameters = [p for c in method.__mro__[:-1] for p in signature(c).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def parse(option: str) -> tuple[str, Any]:
    """Splits `name=value`; a value is a Python literal, a minimizer or, if it is neither, a
    word."""
    name, found, text = option.partition("=")
    if not found or not name.isidentifier():
        raise ValueError(f"--options takes name=value, such as zeta=0.01, got {option!r}.")
    try:
        return name, _value(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError):
        return name, float(text) if text in ("inf", "nan") else text


def _value(node: ast.expr) -> Any:
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id in MINIMIZERS:
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return getattr(minimizers, called.id)(*map(ast.literal_eval, node.args), **options)
    return ast.literal_eval(node)
