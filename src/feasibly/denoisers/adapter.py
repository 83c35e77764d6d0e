r"""A network of any parametrisation, as a denoiser."""

__all__ = ["Adapter", "AsIs", "fixed", "positional", "time_first"]

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..derivatives import ordinary
from ..errors import AS_REAL, DenoiserError
from ..members import current
from ..schedules import clock as clock_of
from .base import Posterior
from .frozen import frozen
from .predictions import FORMULAS, PREDICTIONS, Prediction, Scales, scales

FINE = (torch.float32, torch.float64)
"""The precisions in which a network may get the time."""

Call = Callable[[Any, Tensor, Tensor, dict[str, Any]], Any]
"""Calls a network, given a state, its time, and its conditions."""


def positional(net: Any, x: Tensor, time: Tensor, conditions: dict[str, Any]) -> Any:
    """Calls `net(x, time, **conditions)`."""
    return net(x, time, **conditions)


def time_first(net: Any, x: Tensor, time: Tensor, conditions: dict[str, Any]) -> Any:
    """Calls `net(time, x, **conditions)`."""
    return net(time, x, **conditions)


class Adapter(nn.Module):
    r"""A network :math:`F`, of any parametrisation, as a denoiser
    :math:`d(x_t, t) = \mathbb{E}[x_0 \mid x_t]`.

    A network that is a module is used in evaluation mode, and its weights take no gradient, if
    need be as a copy that shares them. It is called in its own dtype, with a time for every
    sample; the result has the dtype of the state. Printing an adapter states all that it assumes.

    Data may live on a subspace, as centred or padded ones do, with the projection :math:`P(x) = c
    + P_0 x` onto it as `project`. Then :math:`P d(\alpha_t c + P_0 x_t)` is the posterior mean,
    since noise outside of it says nothing of the data.

    Attributes:
        project: The projection, a function of batches; None for none.
        data_moments: The mean and the standard deviation of the data, which runs begin with; None
            for zero and one. See :meth:`feasibly.network.Network.noisy`.

    Arguments:
        net: The network.
        schedule: The noise schedule that it was trained with.
        prediction: What it predicts: a name of :data:`PREDICTIONS`, or a function.
        time: What it gets for the time :math:`t`, which may have any shape; by default the
            schedule's own clock. Whole numbers and half precision are handed on as they are.
        clock: The same in words.
        call: How it is called; by default `net(x, time, **conditions)`.
        scale: The factor on :math:`x_t` at its entrance, a function of the scales; None for one.
        conditions: What it is conditioned on. A tensor has a row for every member of an ensemble,
            by the member's index, or one row (or none) for all; other values are passed on.
        learned_variance: Whether its output has twice the channels of `x_t`, of which the second
            half, a variance, is dropped.
        predicts: What it predicts, in words, where `prediction` is a function.
        notes: More of what is assumed, a sentence each.

    Raises:
        DenoiserError: If the network or the schedule is not callable, or the network would have to
            be copied and cannot.

    Example:
        >>> model = feasibly.denoisers.Adapter(lambda x, t: 0 * x, feasibly.schedules.VP(), "x0")
        >>> model(torch.ones(1, 2), torch.tensor(0.5)).mean
        tensor([[0., 0.]])
    """

    def __init__(
        self,
        net: Any,
        schedule: Callable[[Tensor], tuple[Tensor, Tensor]],
        prediction: str | Prediction,
        *,
        time: Callable[[Tensor], Tensor] | None = None,
        clock: str = "the schedule's own clock",
        call: Call = positional,
        scale: Callable[[Scales], Tensor] | None = None,
        conditions: Mapping[str, Any] | None = None,
        learned_variance: bool = False,
        predicts: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        if not callable(net) or not callable(schedule):
            wrong, got = ("network", net) if not callable(net) else ("schedule", schedule)
            raise DenoiserError(
                f"The {wrong} must be callable, got {type(got).__name__}: a network (x, time) -> "
                "prediction, and a schedule t -> (alpha_t, sigma_t), such as "
                "feasibly.schedules.VP()."
            )
        if isinstance(net, nn.Module):
            net = frozen(net, DenoiserError)
        self.net, self.schedule, self.call, self.scale = net, schedule, call, scale
        self.prediction = PREDICTIONS[prediction] if isinstance(prediction, str) else prediction
        self.time = time or clock_of(schedule)
        self.clock = clock
        self.conditions = fixed(conditions)
        self.learned_variance = learned_variance
        self.predicts = predicts or FORMULAS[str(prediction)]
        self.notes = notes
        self.project: Callable[[Tensor], Tensor] | None = None
        self.data_moments: tuple[Tensor, Tensor] | None = None

    def forward(self, x_t: Tensor, t: Tensor, **conditions: Any) -> Posterior:
        r"""Estimates :math:`p(x_0 \mid x_t)`, for states :math:`x_t` with shape :math:`(B, *)` and
        times with shape :math:`()` or :math:`(B)`.

        Arguments:
            conditions: What the network is conditioned on, in place of the conditions that the
                adapter has; tensors have a row for every sample of `x_t`.

        Raises:
            DenoiserError: If the network returns no tensor in the shape of `x_t`, or a member has
                no row among the conditions.
        """
        at = scales(self.schedule, t, x_t)
        x_t = self.inside(x_t, at.alpha)
        output = self.output(x_t, at, self.time(t.double()), conditions)
        return Posterior(self.inside(self.prediction(output, x_t, at)))

    @property
    def own_means(self) -> bool:
        """Whether members have conditions of their own, which may shift the mean of the data."""
        return any(isinstance(v, Tensor) and not _shared(v) for v in self.conditions.values())

    def inside(self, x_t: Tensor, alpha: Tensor | float = 1.0) -> Tensor:
        """Returns states, with shape (B, *), projected onto the subspace of the data; the signal
        scale `alpha` broadcasts against them."""
        if self.project is None:
            return x_t
        offset = self.project(torch.zeros_like(x_t))
        return self.project(x_t) + (alpha - 1) * offset

    def output(
        self,
        x_t: Tensor,
        at: Scales,
        time: Tensor,
        conditions: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Returns what the network predicts at the scales `at` if it gets `time` for the time,
        with the shape and dtype of the states."""
        inner = x_t if self.scale is None else self.scale(at) * x_t
        dtype = self._dtype() or x_t.dtype
        # whole numbers and half precision are a user's own choice; by default there is neither,
        # since times up to 999 are not distinct in half precision
        if time.dtype in FINE:
            time = time.to(dtype if dtype in FINE else torch.float32)
        time = time.to(x_t.device).expand(len(x_t))
        given = self._rows(len(x_t), x_t.device) | dict(conditions or {})
        try:
            result = self.call(self.net, inner.to(dtype), time, given)
        except RuntimeError as error:
            if "type" not in str(error):
                raise
            fix = "If it looks up whole steps, pass time=lambda t: (999 * t).round().long()."
            if self._dtype() is None:
                fix += (
                    " If its weights are in float64, pass dtype=torch.float64 to feasibly.sample; "
                    "otherwise cast states and times to the dtype of its weights."
                )
            else:
                fix += " Or cast its time embedding and its buffers to the dtype of its weights."
            raise DenoiserError(
                f"The network failed on states in {dtype} and times in {time.dtype} ({error}). "
                f"{fix}"
            ) from error
        return self._unwrap(result, x_t).to(x_t.dtype)

    def _dtype(self) -> torch.dtype | None:
        """The dtype of the network's weights; None if it has none."""
        if not isinstance(self.net, nn.Module):
            return None
        return next((p.dtype for p in self.net.parameters() if p.is_floating_point()), None)

    def _rows(self, batch: int, device: torch.device) -> dict[str, Any]:
        return {k: _rows_of(k, v, batch, device) for k, v in self.conditions.items()}

    def _unwrap(self, result: Any, x_t: Tensor) -> Tensor:
        """The tensor in what the network returned."""
        result = _tensor_of(result)
        if not isinstance(result, Tensor):
            raise DenoiserError(
                f"The network returned {type(result).__name__}; it must return a tensor, a tuple "
                "that begins with one, or a dict or an object with one alone, or one named sample "
                "or mean. Wrap a function that returns the tensor."
            )
        if result.is_complex():
            raise DenoiserError(
                f"The network returned {result.dtype}, but states are real; {AS_REAL}."
            )
        if self.learned_variance and x_t.ndim > 1 and result.shape[1] == 2 * x_t.shape[1]:
            result = result[:, : x_t.shape[1]]
        if result.shape != x_t.shape:
            hint = (
                "a second half of the channels is dropped with learned_variance=True"
                if result.ndim == x_t.ndim > 1 and result.shape[1] == 2 * x_t.shape[1]
                else "check the shape of a sample and the order of the network's arguments"
            )
            raise DenoiserError(
                f"The network returned shape {tuple(result.shape)} for a state of shape "
                f"{tuple(x_t.shape)}; {hint}."
            )
        return result

    def __repr__(self) -> str:
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        (a_0, a_1), (s_0, s_1) = (scale.expand(2).tolist() for scale in self.schedule(ends))
        first, last = self.time(ends).expand(2).tolist()
        lines = [
            ("network", self._describe()),
            ("predicts", self.predicts),
            ("schedule", f"{self.schedule!r}, x_t = alpha x_0 + sigma noise"),
            ("t = 0", f"data, {_scales(a_0, s_0)}; the network gets {first:.4g}"),
            ("t = 1", f"noise, {_scales(a_1, s_1)}; the network gets {last:.4g}"),
            ("time", self.clock),
            ("values", "as in training (standardised, in [-1, 1], ...); constraints see these"),
            *(("data", text) for text in self._known()),
            *(("conditions", _describe(k, v)) for k, v in self.conditions.items()),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(f"{name:>10}: {text}" for name, text in lines)

    def _known(self) -> Iterator[str]:
        """What is known of the data, in words."""
        if self.data_moments is not None:
            mean, std = (value.double().mean().item() for value in self.data_moments)
            yield f"runs begin with their mean, {mean:.3g}, and standard deviation, {std:.3g}"
        if self.project is not None:
            yield "on a subspace: states are projected onto it"

    def _describe(self) -> str:
        name = type(self.net).__name__
        if not isinstance(self.net, nn.Module):
            return name
        size = sum(p.numel() for p in self.net.parameters())
        return f"{name}, {size:,} parameters, {self._dtype()}, evaluation mode, frozen"


class AsIs(Adapter):
    """A denoiser in this library's protocol already: it is handed state and time as they come.

    Example:
        >>> wrapped = feasibly.denoisers.AsIs(denoiser)
        >>> x, t = torch.ones(1, 2), torch.tensor(0.5)
        >>> torch.equal(wrapped(x, t).mean, denoiser(x, t).mean)
        True
    """

    def __init__(self, denoiser: Any) -> None:
        super().__init__(denoiser, denoiser.schedule, "x0", time=lambda t: t, clock="t itself")

    def forward(self, x_t: Tensor, t: Tensor, **conditions: Any) -> Posterior:
        given = self._rows(len(x_t), x_t.device) | conditions
        if self.project is not None:
            x_t = self.inside(x_t, scales(self.schedule, t, x_t).alpha)
        return Posterior(self.inside(self._unwrap(self.net(x_t, t, **given), x_t)))

    def output(
        self,
        x_t: Tensor,
        at: Scales,
        time: Tensor,
        conditions: Mapping[str, Any] | None = None,
    ) -> Tensor:
        return self(x_t, time.to(x_t), **(conditions or {})).mean


def fixed(conditions: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns conditions as an adapter holds them."""
    given = (conditions or {}).items()
    return {k: ordinary(v) if isinstance(v, Tensor) else v for k, v in given}


def _tensor_of(result: Any) -> Any:
    """Returns the tensor in what a network returned; the same if it is not clear which."""
    if isinstance(result, Tensor):
        return result
    if isinstance(result, tuple | list):
        return _tensor_of(result[0]) if result else result
    named = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
    found = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    for name in ("sample", "mean"):
        one = found.get(name, getattr(result, name, None))
        if isinstance(one, Tensor):
            return one
    return next(iter(found.values())) if len(found) == 1 else result


def _scales(alpha: float, sigma: float) -> str:
    return f"alpha {alpha:.4g}, sigma {sigma:.4g}"


def _shared(value: Tensor) -> bool:
    return value.ndim == 0 or len(value) == 1


def _rows_of(name: str, value: Any, batch: int, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.to(device)
    if _shared(value):
        return value.reshape(1, *value.shape[1:]).expand(batch, *value.shape[1:])
    members = current()
    if members is None:
        if len(value) == batch:
            return value
        raise DenoiserError(
            f"The condition {name} has {len(value)} rows, one for each sample, but the denoiser "
            f"was called with {batch} states that belong to no ensemble; give it in the call, as "
            f"denoiser(x_t, t, {name}=...)."
        )
    if int(members.max()) >= len(value):
        raise DenoiserError(
            f"The condition {name} has {len(value)} rows, but none for the sample of index "
            f"{int(members.max())}; give as many rows as there are samples, or one for all."
        )
    return value[members.to(device)]


def _describe(name: str, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"{name} = {value!r}, for all samples"
    return f"{name}: " + (
        "one for all samples" if _shared(value) else f"{len(value)}, one for each sample"
    )
