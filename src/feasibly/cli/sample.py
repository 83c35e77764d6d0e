"""`python -m feasibly sample`: an ensemble under a constraint."""

__all__ = ["sample"]

import math
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from ..errors import CalibrationWarning, InfeasibleWarning, SamplingError
from ..machine import size
from ..progress import shown
from ..report import Report
from ..result import Result
from ..run import run
from ..samplers import METHODS
from . import page
from .ensemble import fill, stopping
from .job import Job
from .words import Screen, Shape, make_folder


def sample(
    denoiser: str,
    constraint: str,
    out: Path = Path("out/sample"),
    members: int = 64,
    shape: Shape = (2,),
    method: Literal[("auto", *METHODS)] = "auto",  # ty: ignore[invalid-type-form]
    steps: int | None = None,
    options: tuple[str, ...] = (),
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    infeasible: str = "keep",
    layout: str | None = None,
) -> int:
    """Sample a denoiser under a constraint; write the samples and a report.

    Exits with 1 if no sample is feasible; if only some are infeasible, it says how many and exits
    with 0. With --out NAME.zarr every sample is kept as soon as it is finished, several processes
    can share the work (torchrun --nproc-per-node 2 -m feasibly sample ..., or srun), and `python
    -m feasibly resume NAME.zarr` resumes a run that was stopped. In this case it also exits with 1
    if samples are missing; by default infeasible samples do not count as missing, see
    --infeasible.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), the file of a prior, or module:function
            for a function of yours that returns a denoiser.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function for a
            function of yours that returns a constraint (cdim needs a Linear one, and eci one with
            a `projection`).
        out: The folder for samples.safetensors and report.html, or a store, NAME.zarr.
        members: The number of samples. An existing store with fewer samples grows.
        shape: The shape of one sample, if the denoiser is your own.
        method: The method; auto chooses one, and `python -m feasibly methods` lists the others.
        steps: The number of diffusion steps; by default that of the method.
        options: Further options of the method, such as zeta=0.01, attempts=4 or
            "minimize=LBFGS(steps=4)"; `python -m feasibly methods NAME` explains them. With auto,
            error=0.1 allows a larger standard error of the importance weights, so that fewer
            particles are added.
        seed: The seed of the ensemble.
        batch_size: How many samples to draw at a time: by default all of them or, for a store,
            auto, which measures the first sample and uses half of the free memory.
        infeasible: What a store does with samples that end up infeasible: keep counts them,
            retry:N draws them again up to N times and does not count those that remain infeasible,
            drop leaves them out.
        layout: module:function for a function that returns a feasibly.ensemble.Layout, which names
            the axes of a sample in a store.
    """
    if steps is not None:
        options = (f"steps={steps}", *options)
    job = Job(denoiser, constraint, method, options)
    if out.suffix == ".zarr":
        return fill(
            job,
            out,
            members,
            shape,
            seed,
            "auto" if batch_size is None else batch_size,
            infeasible,
            layout,
        )
    if batch_size == "auto" or infeasible != "keep" or layout is not None:
        raise ValueError(
            "--batch-size auto, --infeasible and --layout need a store: give --out NAME.zarr."
        )
    console = Screen()
    make_folder(out)  # before the work, not after it
    need, free = 4 * members * math.prod(shape), shutil.disk_usage(out).free
    if need > free:
        noun = "sample needs" if members == 1 else "samples need"
        raise ValueError(
            f"{members} {noun} {size(need)}, but {out} has {size(free)} free; make room, or "
            "give another --out."
        )
    with stopping(), shown(True) as meter, warnings.catch_warnings():
        chosen = job.build(shape, batch_size)
        meter.erase()
        for sentence in chosen.remarks:  # before the work
            console.say(sentence)
        meter.tell(chosen.estimate(members))
        for kind in (InfeasibleWarning, CalibrationWarning):  # which are printed below
            warnings.simplefilter("ignore", kind)
        try:
            result = run(
                chosen.kernels,
                members,
                seed=seed,
                reason=chosen.reason,
                monitor=chosen.monitor,
            )
        except BaseException as error:
            if hasattr(error, "partial"):  # else it had not begun
                error.add_note(rescue(error.partial, members, out))
            raise
    result.evaluations += chosen.evaluations
    told = result.warnings
    result.warnings = [*chosen.remarks, *told]
    kept = keep(result, out / "samples.safetensors")
    report = Report(f"feasibly: {method} on {denoiser}")
    report.code(result.summary())
    stated = chosen.kernels[-1].constraint
    page.pictures(report, result.samples, stated)
    if math.isfinite(result.tolerance):  # else all is observed with noise
        page.convergence(report, {method: result})
    page.fits(report, result.chi_square)
    page.stations(report, stated, result.samples, result.members)
    try:
        report.write(out / "report.html")
    except OSError as error:
        raise SamplingError(
            f"The report cannot be written ({error}); the samples are in {kept}."
        ) from error
    console.say(result.summary(settings=False))
    console.say(f"Samples and report: {out}")
    for sentence in told:
        console.say(sentence)
    return 0 if result.feasible.any() else 1


def keep(result: Result, path: Path) -> Path:
    """Writes members, and returns the path.

    Raises:
        SamplingError: If they cannot be written; it says whether the temporary folder, which is
            often on another disk, has them instead.
    """
    try:
        result.save(path)
        return path
    except (OSError, SafetensorError) as error:
        reason = f"{path} cannot be written ({error})"
    try:
        spare = Path(tempfile.mkdtemp(prefix="feasibly-")) / path.name
        result.save(spare)
    except (OSError, SafetensorError) as error:
        raise SamplingError(
            f"{reason}, nor can the temporary folder ({error}), so no sample is kept. Make room, "
            "or sample into a store, --out NAME.zarr, which keeps samples as they are finished.",
            result,
        ) from error
    raise SamplingError(
        f"{reason}; its {len(result.members)} samples are in {spare}. Make room, and move them.",
        result,
    )


def rescue(partial: Any, members: int, out: Path) -> str:
    """Keeps what there is of a run that was stopped, a Result or None; says what and where."""
    if partial is None:
        return (
            "No sample was finished. With --batch-size N, samples are finished N at a time, "
            "unless they share weights; a store, --out NAME.zarr, keeps them, and its run can be "
            "resumed."
        )
    try:
        path = keep(partial, out / "partial.safetensors")
    except SamplingError as error:
        return str(error)
    return f"{len(partial.members)} of {members} samples are kept in {path}."
