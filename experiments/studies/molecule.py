"""Is psi distributed as it should be once phi, the bonds or both are fixed?

The distribution given phi = phi* is the limit of a thin layer around it. So frames whose phi is
near phi* are the reference, and so are samples of the prior itself, which part the prior's error
from the sampler's. Bonds hardly depend on psi; what they do is in the weights of a reference,
which are the likelihood of the fixed lengths by a regression on psi and phi.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly import priors
from feasibly.denoisers import Denoiser
from feasibly.errors import SamplingError

from .. import figures, peers
from ..records import DEFAULT, PRIOR, TRUTH, Record, grouped
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.learned import HOME
from ..tasks.molecule import PHI, PSI, dihedral, dipeptide, lengths, wrapped

MEMBERS = {False: 1024, True: 512}  # by whether bonds are fixed, which costs more
POOL, BINS = 32768, 36
NEAR = 1.0
"""How far phi may be from phi* in the references, in degrees."""

CARBONYL = 6
"""The bond of C and O whose direction depends on psi."""

SMALLER = slice(9, 24)
"""The bins of the smaller basin of psi, from -90 to 60 degrees."""

CASES: Mapping[str, tuple[float | None, bool]] = {
    "phi = -70": (-70.0, False),
    "phi = -76": (-76.0, False),
    "bonds": (None, True),
    "bonds, phi = -70": (-70.0, True),
    "bonds, phi = -76": (-76.0, True),
}
"""For each case phi in degrees, and whether bonds are fixed."""

MIXTURE = "default, an exact denoiser"
"""The default on a mixture of normals that is fitted to the frames, in place of the network. It
has no row, since its psi is not quite the frames'; its record has the diagnostics of weights."""

OURS: Mapping[str, str] = {
    DEFAULT: "auto",
    MIXTURE: "auto",
    "PPR": "ppr-tuned",
    "MMPS": "mmps",
    "HDC": "hdc",
    "post-hoc projection": "post-hoc",
}
FEW = {
    MIXTURE: ("bonds",),
    "MMPS": ("phi = -70", "bonds, phi = -70"),
    "HDC": ("phi = -70", "bonds, phi = -70"),
}
"""The cases of the methods that are not run on all."""


def histogram(psi: Tensor, weights: Tensor | None = None) -> list[float]:
    """Returns how many angles, in radians, lie in each of equal bins, by their weights."""
    bins = ((psi.double() + math.pi) / (2 * math.pi) * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(bins, weights, minlength=BINS).tolist()


def likelihood(x: Tensor) -> Tensor:
    """Returns the likelihood of the fixed bonds given each molecule's psi and phi, up to a
    factor: normal, with a mean by regression."""
    phi, psi, bonds = dihedral(x, PHI), dihedral(x, PSI), lengths(x)
    waves = [f(k * psi) for k in (1, 2, 3) for f in (torch.cos, torch.sin)]
    features = torch.stack([torch.ones_like(psi), *waves, phi - phi.mean()], dim=1)
    mean = features @ torch.linalg.lstsq(features, bonds).solution
    precision = torch.linalg.inv((bonds - mean).T.cov())
    off = dipeptide().bonds - mean
    return (-(off @ precision * off).sum(dim=1) / 2).exp()


def reference(x: Tensor, case: str) -> Record:
    """Returns the histogram of psi of molecules near a case, and the number of these."""
    value, bonds = CASES[case]
    psi, weights = dihedral(x, PSI), likelihood(x) if bonds else torch.ones(len(x)).double()
    if value is None:
        return {"psi": histogram(psi, weights), "near": len(x)}
    off = wrapped(dihedral(x, PHI) - math.radians(value)) / math.radians(NEAR)
    near = off.abs() < 1
    kernel = histogram(psi, weights * (-off.square() / 2).exp())
    return {"psi": histogram(psi[near], weights[near]), "near": int(near.sum()), "kernel": kernel}


def negative(denoiser: Denoiser) -> float:
    """Returns how often the denoiser's derivative says that the variance of a bond of the carbonyl
    group, given a state at a noise of 1/2, is negative: over frames with noise."""
    molecule, sigma = dipeptide(), torch.tensor(0.5)
    z = molecule.whiten(molecule.frames[molecule.held_out]).float()
    x = (z + sigma * torch.randn(z.shape, generator=Generator().manual_seed(0))).requires_grad_()
    d = denoiser.mean(x, sigma)
    y = d.detach().requires_grad_()
    (slope,) = torch.autograd.grad(lengths(molecule.atoms(y))[:, CARBONYL].sum(), y)
    (change,) = torch.autograd.grad((d * slope).sum(), x)
    return ((change * slope).sum(dim=1) <= 0).double().mean().item()


@lru_cache(maxsize=1)
def pool() -> Tensor:
    """Returns molecules of the prior, without a constraint."""
    denoiser = priors.load(str(HOME / "dipeptide.safetensors"))
    return dipeptide().atoms(quiet(denoiser, None, POOL, (24,), batch_size=4096).samples.double())


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples once, or takes a reference."""
    case, label = setting["case"], setting["label"]
    molecule = dipeptide()
    if label in (TRUTH, PRIOR):
        return [reference(molecule.frames if label == TRUTH else pool(), case)]
    value, bonds = CASES[case]
    denoiser: Denoiser = priors.load(str(HOME / "dipeptide.safetensors"))
    if label == MIXTURE:
        denoiser = molecule.mixture(denoiser.schedule)
    constraint, start = molecule.constraint(value, bonds), time.perf_counter()
    try:
        result = quiet(denoiser, constraint, setting["members"], (24,), method=OURS[label])
    except SamplingError as error:
        return [{"error": str(error), "seconds": time.perf_counter() - start}]
    x = molecule.atoms(result.samples.double())
    found: Record = {
        "feasible": result.feasible.double().mean().item(),
        "psi": histogram(dihedral(x, PSI)),
        "forward": result.evaluations.member_forward / len(x),
        "backward": result.evaluations.member_backward / len(x),
        "seconds": result.seconds,
        "reason": result.reason,
        "warnings": list(result.warnings),
    }
    if result.populations:
        found |= {"pareto_k": result.pareto_k, "ess": result.ess}
    if result.plausible is not None:
        found["plausible"] = result.plausible.double().mean().item()
    if value is not None:
        off = wrapped(dihedral(x, PHI) - math.radians(value))
        found["phi_error"] = off.abs().max().item()
    if bonds:
        found["bond_error"] = (lengths(x) - molecule.bonds).abs().max().item()
        found["negative"] = negative(denoiser)
    if label == DEFAULT:
        found["atoms"] = [[round(v, 3) for v in one.flatten().tolist()] for one in x[:48]]
    return [found]


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the total variation between two histograms."""
    p, q = (np.asarray(counts) / np.sum(counts) for counts in (one, other))
    return float(np.abs(p - q).sum() / 2)


def floor(counts: Sequence[float], n: int, m: int) -> tuple[float, float]:
    """Returns the mean and the 95 % quantile of the distance between `n` and `m` independent
    samples of one histogram."""
    random, p = np.random.default_rng(0), np.asarray(counts) / np.sum(counts)
    drawn = [random.multinomial(size, p, 1000) / size for size in (n, m)]
    apart = np.abs(drawn[0] - drawn[1]).sum(axis=1) / 2
    return float(apart.mean()), float(np.quantile(apart, 0.95))


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table, by case: distances of psi to both references, with the mean
    and the 95 % quantile of what chance gives."""
    found = []
    for (case,), group in grouped(records, "case").items():
        known = {one["label"]: one for one in group}
        frames, prior = known[TRUTH], known[PRIOR]
        for label in (*OURS, PRIOR, TRUTH):
            if label == MIXTURE or label not in known:
                continue
            one, bold = known[label], "**" if label == DEFAULT else ""
            row: Record = {"case": case, "label": f"{bold}{label}{bold}"}
            found.append(row)
            if "error" in one:
                row["to_frames"] = "failed"
                continue
            row["share"] = sum(one["psi"][SMALLER]) / sum(one["psi"])
            if label == TRUTH:  # in two halves
                row["to_frames"] = "{:.3f}".format(floor(one["psi"], *2 * [one["near"] // 2])[0])
                continue
            n = one.get("near", one.get("members"))
            row["to_frames"] = _beside(one, frames, n)
            if label == PRIOR:
                continue
            row["to_prior"] = _beside(one, prior, n)
            errors = [f"{one[key]:.0e}" for key in ("phi_error", "bond_error") if key in one]
            row["feasible"] = f"{one['feasible']:.0%} ({', '.join(errors)})"
            row["evaluations"] = f"{one['forward']:.0f} + {one['backward']:.0f}"
    return found


def _beside(one: Record, other: Record, n: int) -> str:
    mean, high = floor(other["psi"], n, other["near"])
    return f"{distance(one['psi'], other['psi']):.3f} ({mean:.3f}, {high:.3f})"


COLUMNS: Columns = {
    "case": ("fixed", TEXT),
    "label": ("method", TEXT),
    "feasible": ("feasible (largest error)", TEXT),
    "to_frames": ("TV to frames (chance)", TEXT),
    "to_prior": ("TV to prior (chance)", TEXT),
    "share": ("smaller basin", "{:.3f}"),
    "evaluations": ("evaluations", TEXT),
}

MEASUREMENT = Measurement(
    name="molecule",
    question="Is psi distributed as it should be once phi, the bonds or both are fixed?",
    problem="molecule",
    settings=[
        {
            "case": case,
            "label": label,
            "members": 192 if label == MIXTURE else MEMBERS[CASES[case][1]],
        }
        for label in (TRUTH, PRIOR, *OURS)
        for case in CASES
        if case in FEW.get(label, CASES)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
    figures={"": figures.molecule},
)
