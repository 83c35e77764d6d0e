"""`python -m feasibly audit`: whether samplers are right on a model and a constraint."""

__all__ = ["audit"]

from pathlib import Path

from .. import audits
from .check import load_data
from .compare import show
from .ensemble import stopping
from .load import load_constraint, load_denoiser, load_object
from .words import Screen, Shape, make_folder


def audit(
    denoiser: str,
    constraint: str,
    out: Path = Path("out/audit"),
    shape: Shape = (2,),
    methods: tuple[str, ...] = ("auto", "calibrated", "ppr-tuned"),
    truths: int = 64,
    members: int = 7,
    near: int = 4,
    data: Path | None = None,
    statistics: str | None = None,
    budget: int | None = None,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    keep: bool = False,
) -> int:
    """Test whether methods are calibrated on your model and your constraint.

    Draws truths from the model without the constraint, states the constraint through each of
    them, and tests whether the truth can be told apart from the samples that a method draws.
    Prints a verdict for each method, a table and a recommendation, and writes a page. Exits with 1
    if the recommended method is miscalibrated, or too few of its samples are feasible.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), the file of a prior, or module:function
            for a function of yours that returns a denoiser.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function for a
            function of yours that returns a constraint.
        out: The folder for audit.html.
        shape: The shape of one sample, if the denoiser is your own.
        methods: The methods to test; `python -m feasibly methods` lists them.
        truths: The number of truths, at least 16.
        members: The number of samples drawn for each truth.
        near: How many unconditional samples to draw for each truth; those with the smallest
            residuals become the truths.
        data: Data that the model has not seen, from which to take the truths: an .npy or .pt file
            of shape (N, *) with independent samples, not steps of one trajectory. The model itself
            is then tested too.
        statistics: module:function for a function that returns a dict of summaries to test, by
            name: functions of samples.
        budget: The largest number of network evaluations that may be planned, summed over
            samples; if it does not suffice, fewer truths are used.
        level: The probability of reporting a miscalibration if all methods are calibrated.
        seed: The seed.
        batch_size: How many samples to draw at a time.
        keep: Whether to keep samples in stores in the folder, so that several processes can share
            the work, and the same command resumes an audit that was stopped.
    """
    console = Screen()

    def told(sentence: str) -> None:
        console.say(sentence)

    make_folder(out)  # before the work, not after it
    summaries = None if statistics is None else load_object(statistics)
    if not isinstance(summaries, dict | None):
        raise ValueError(
            f"{statistics!r} returned {type(summaries).__name__}; it must return a dict of "
            "functions by name."
        )
    with stopping():
        found = audits.audit(
            load_denoiser(denoiser),
            load_constraint(constraint),
            shape,
            methods=methods,
            truths=truths,
            members=members,
            near=near,
            data=None if data is None else load_data(data, shape),
            statistics=summaries,
            budget=budget,
            level=level,
            seed=seed,
            batch_size=batch_size,
            path=out if keep else None,
            progress=True,
        )
    show(found.table(), f"{len(found.truths)} truths, {members} samples each", console)
    for sentence in (found.recommendation, *found.notes):
        told(sentence)
    found.save_html(out / "audit.html")
    told(f"Report: {out / 'audit.html'}")
    return int(found[found.recommended].faulty)
