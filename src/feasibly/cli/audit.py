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
    """Test whether samplers are right on your model and your constraint.

    Samples truths from the model without the constraint, states the constraint through each, and
    tests whether the truth could be one of the members that a sampler makes. Prints a verdict for
    each method, a table and a recommendation, and writes a page. Exits with 1 if the recommended
    method has a fault.

    Arguments:
        denoiser: A shipped prior (checkerboard, banana), a prior's file, or module:function for
            a function that returns a denoiser of yours.
        constraint: The number of a constraint of Data2D (0 to 11), or module:function for a
            function that returns a constraint of yours.
        out: The folder for audit.html.
        shape: The shape of one sample, for a denoiser of yours.
        methods: The methods to test; `python -m feasibly methods` lists them.
        truths: The number of truths, at least 16.
        members: The number of members of each truth.
        near: How many samples of the model there are for each truth; those with the smallest
            residuals are taken.
        data: Truths from data that the model has not seen, an .npy or .pt file of shape (N, *).
            The model is then tested too. Samples must be independent, not steps of one trajectory.
        statistics: module:function for a function that returns summaries to test: functions of
            samples by name.
        budget: The most evaluations of the network that may be planned, summed over members; with
            fewer, there are fewer truths.
        level: The probability of finding a fault if all methods are right.
        seed: The seed.
        batch_size: How many members to sample at a time.
        keep: Whether to keep members in stores in the folder. Then several processes may share
            the work, and the same command goes on with an audit that was stopped.
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
    show(found.table(), f"{len(found.truths)} truths, {members} members each", console)
    for sentence in (found.recommendation, *found.notes):
        told(sentence)
    found.save_html(out / "audit.html")
    told(f"Report: {out / 'audit.html'}")
    return int(found[found.recommended].faulty)
