"""One function for every family of networks."""

__all__ = ["KINDS", "wrap"]

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks.coverage import CENTRED, centring, channels
from ..checks.inputs import as_data
from ..checks.self_test import self_test
from ..constraints.base import Array, finite
from ..denoisers.adapter import Adapter, fixed
from ..denoisers.predictions import PREDICTIONS
from ..errors import DenoiserError
from ..randomness import generator
from ..schedules import clock
from .diffusers import diffusers, is_diffusers
from .families import azula, edm, physicsnemo, plain, score_sde
from .flow import CALLS, flow
from .hub import is_on_hub, snapshot

KINDS: dict[str, Callable[..., Adapter]] = {
    **{kind: partial(plain, kind=kind) for kind in PREDICTIONS},
    "edm": edm,
    "score_sde": score_sde,
    **{kind: partial(flow, kind=kind) for kind in CALLS},
    "diffusers": diffusers,
    "physicsnemo": physicsnemo,
    "azula": azula,
}
"""The families of networks, by name."""

SCHEDULED = {*PREDICTIONS, "physicsnemo"}


def wrap(
    net: Any,
    kind: str | None = None,
    schedule: Any = None,
    *,
    data: Tensor | np.ndarray | None = None,
    conditions: Mapping[str, Any] | None = None,
    mean: Array | None = None,
    scale: Array | None = None,
    project: Callable[[Tensor], Tensor] | None = None,
    **options: Any,
) -> Adapter:
    r"""Makes a denoiser of a pretrained network.

    The result is called as `(x_t, t, **conditions)`, returns an object whose `mean` is
    :math:`\mathbb{E}[x_0 \mid x_t]`, and has a `schedule`; printed, it states what it assumes. The
    network gets states with shape :math:`(B, *)` and their times, or noise levels, with shape
    :math:`(B)`. A network that is a module stays as it is: the denoiser has a copy in evaluation
    mode that shares its weights. So move the denoiser to a device, and not the network.

    ==================== ===================================================== ==================
    kind                 network                                               schedule
    ==================== ===================================================== ==================
    x0, eps, v, score    `net(x, time)`, by what it predicts                   needed
    velocity             `net(x, time)`, the derivative in the schedule's time needed
    edm                  :math:`D(x, \sigma)`, EDM, EDM2, k-diffusion          any; EDM's
    score_sde            score_sde's networks                                  VP, SubVP or VE
    torchcfm             a velocity `net(s, x)`, data at s = 1                 Flow or a matcher
    flow_matching        a velocity `net(x, s)`, data at s = 1                 Flow or a path
    diffusers            a model, a pipeline, a folder, or `hub:org/name`      a scheduler
    physicsnemo          a predictor `net(x, s)`                               a scheduler
    azula                a denoiser with a schedule                            its own
    ==================== ===================================================== ==================

    Arguments:
        net: The network, or the folder of one, or its name on the Hugging Face hub as in
            `wrap("hub:google/ddpm-cifar10-32")`. Only safetensors are loaded, and no pickles.
        kind: The family it belongs to; None to tell objects of diffusers and denoisers that have
            a schedule by themselves.
        schedule: The noise schedule that it was trained with.
        data: A few clean samples as the network knows them, with shape :math:`(N, *)`, for
            :func:`feasibly.self_test`. Row i is denoised under the conditions of member i. They
            also give `mean` and `scale`, and show whether data are centred, so that one of their
            means is zero in each; then states are projected onto such data.
        conditions: What the network is conditioned on: class labels, context. A tensor has
            a row for every member of the ensemble, by the member's index, or one row for all;
            other values are passed on as they are.
        mean: The mean of the data as the network knows them, which broadcasts to a sample; a list
            has a number for each channel, the first axis of a sample. The default is that of
            `data`, or zero. Runs begin with it, which counts where it is far from zero.
        scale: Their standard deviation, likewise; by default that of `data`, or one.
        project: The orthogonal projection onto the subspace where the data live, a function of
            batches: `lambda x: mask * x` for padded ones, `lambda x: x - x.mean(1, keepdim=True)`
            for points whose centre is at zero. None for data that fill their space.
        options: Options of the family's own; see its function in :mod:`feasibly.models`.

    Raises:
        DenoiserError: If the kind, the schedule or an option is wrong, or the self-test fails;
            the message says what to try.

    Example:
        >>> net = torch.nn.Linear(2, 2)  # stands for a network that predicts the noise
        >>> model = feasibly.wrap(lambda x, t: net(x), "eps", feasibly.schedules.VP())
        >>> model(torch.zeros(3, 2), torch.tensor(0.5)).mean.shape
        torch.Size([3, 2])
    """
    _check_objects(net, kind, schedule, conditions)
    if is_on_hub(net):
        net = snapshot(net)
    if kind is None:
        kind = _guess(net)
    if kind not in KINDS:
        raise DenoiserError(
            f"There is no kind {kind!r}; choose one of {', '.join(KINDS)}. Use 'eps' for a "
            "network that predicts the noise, and 'edm' for one that is called with sigma."
        )
    if schedule is None and kind in SCHEDULED:
        raise DenoiserError(
            f"kind={kind!r} needs the schedule that the network was trained with, such as "
            "feasibly.schedules.VP() for DDPM's, VE(), Cosine(), or Rectified() for a flow."
        )
    if kind in PREDICTIONS and options.get("time") is None and is_diffusers(net):
        _check_clock(net, schedule)
    try:
        adapter = KINDS[kind](net, schedule, **options)
    except TypeError as error:
        if not options:
            raise
        raise DenoiserError(
            f"kind={kind!r} cannot be wrapped with these options: {error}."
        ) from error
    if data is not None:
        data = as_data(data)
        project = project or centring(data)
    adapter.conditions = fixed(conditions)
    adapter.project = project
    if project is not None and data is not None:
        _check_projection(project, data)
    adapter.data_moments = _moments(mean, scale, data)
    if data is not None:
        self_test(adapter, data)
    return adapter


def _moments(
    mean: Array | None, scale: Array | None, data: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The mean and the standard deviation that runs begin with: as given, else those of data."""
    if mean is None and scale is None and data is None:
        return None
    known = torch.zeros(()), torch.ones(())
    if data is not None:
        std = channels(data.double()).values.var(dim=0).mean(dim=1).sqrt()
        known = data.double().mean(dim=0), std if len(std) > 1 else std[0]
    if mean is not None:
        known = finite(mean, "wrap(mean=...)").double(), known[1]
    if scale is not None:
        known = known[0], finite(scale, "wrap(scale=...)").double()
        if not bool((known[1] > 0).all()):
            raise ValueError(
                "wrap(scale=...) is the standard deviation of the data, which must be positive; "
                f"got {known[1].min().item():.3g}."
            )
    return known


def _check_projection(project: Callable[[Tensor], Tensor], data: Tensor) -> None:
    """Refuses a projection that is none, that is oblique, or that changes the data."""
    u, v = torch.randn((2, *data.shape), generator=generator(0), dtype=torch.float64)
    try:
        zero = project(torch.zeros_like(u))
        one, other = project(u) - zero, project(v) - zero
        again = project(one) - zero
        changed = (project(data.double()) - data).norm() > CENTRED * data.double().norm()
    except Exception as error:
        raise DenoiserError(
            f"wrap(project=...) failed on samples of shape {tuple(data.shape)} "
            f"({type(error).__name__}: {error}). It must be a function of batches, such as lambda "
            "x: mask * x."
        ) from error
    oblique = (one * (v - other)).sum().abs() > CENTRED * u.norm() * v.norm()
    if oblique or (again - one).norm() > CENTRED * u.norm():
        raise DenoiserError(
            "wrap(project=...) is not an orthogonal projection: it must leave everything in the "
            "subspace as it is, and remove everything that is orthogonal to it."
        )
    if changed:
        raise DenoiserError(
            "wrap(project=...) changes the data, which must lie in the subspace that it projects "
            "onto. Give the projection onto the subspace of the data as the network knows them."
        )


def _check_objects(net: Any, kind: Any, schedule: Any, conditions: Any) -> None:
    """Refuses arguments of the wrong kind, which would fail later and say less."""
    for name, given in (("network", net), ("schedule", schedule)):
        if isinstance(given, type):
            raise DenoiserError(
                f"The {name} is the class {given.__name__}; pass an instance, such as "
                f"{given.__name__}()."
            )
    if not isinstance(kind, (str, type(None))):
        raise DenoiserError(
            f"kind must be a name, one of {', '.join(KINDS)}; got {kind!r}. The order is "
            "wrap(net, kind, schedule)."
        )
    if not isinstance(conditions, (Mapping, type(None))):
        raise DenoiserError(
            "conditions must be a dictionary of the network's further arguments by name, such as "
            f"{{'class_labels': labels}}; got {type(conditions).__name__}."
        )


def _check_clock(net: Any, schedule: Any) -> None:
    """Refuses times in [0, 1] for a model of diffusers: without data nothing else would show that
    it knows steps."""
    ends = clock(schedule)(torch.tensor([0.0, 1.0], dtype=torch.float64))
    if float(ends.max()) <= 1:
        raise DenoiserError(
            f"{type(net).__name__} is a model of diffusers, trained on the steps of a scheduler, "
            f"but {schedule!r} gives it times in [0, 1]. Pass the scheduler, as in wrap(net, "
            "schedule=DDPMScheduler(...)). Or state what the network receives at time t, as in "
            "time=lambda t: 999 * t, or lambda t: t if it was trained on such times."
        )


def _guess(net: Any) -> str:
    if is_diffusers(net):
        return "diffusers"
    if callable(getattr(net, "schedule", None)):
        return "azula"
    raise DenoiserError(
        f"Cannot infer what {type(net).__name__} predicts; pass kind=..., one of "
        f"{', '.join(KINDS)}."
    )
