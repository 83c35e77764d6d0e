"""Constraints on decoded latents."""

__all__ = ["Decoded", "FrameDecoder", "is_decoded"]

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..arguments import typed
from ..errors import ConstraintError
from .base import Constraint, Mapped


class Decoded(Mapped):
    r"""A constraint on :math:`D(z)`, for a model of latents :math:`z` and a decoder :math:`D`.

    Arguments:
        constraint: The constraint on decoded samples.
        decode: The decoder, a differentiable function from a batch of latents to a batch of
            samples, each on its own. It may return a tuple that begins with them, or an object
            with them at `.sample`, as those of diffusers do.
        encode: The encoder, which :class:`ReSample` uses; None if there is none.

    Raises:
        ConstraintError: In use, if the decoder returns something else.

    Example:
        >>> behind = feasibly.Decoded(circle, lambda z: z / 2)
        >>> behind.is_feasible(torch.tensor([[0.0, 2.0], [0.0, 1.0]])).tolist()
        [True, False]
    """

    def __init__(
        self,
        constraint: Constraint,
        decode: Callable[[Tensor], Tensor],
        encode: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not isinstance(constraint, Constraint) or not callable(decode):
            raise ValueError(
                "Decoded(constraint, decode) takes a constraint and a decoder, got "
                f"{type(constraint).__name__} and {type(decode).__name__}."
            )
        if not callable(encode) and encode is not None:
            raise ValueError(
                f"Decoded(encode=...) takes a function of samples, got {type(encode).__name__}."
            )
        super().__init__(constraint)
        self.decode, self.encode = decode, encode

    def image(self, x: Tensor) -> Tensor:
        return _tensor_of(self.decode(x))

    def of(self, part: Constraint) -> Constraint:
        return Decoded(part, self.decode, self.encode)

    def __repr__(self) -> str:
        return f"{self.constraint!r}, decoded"


def is_decoded(constraint: Constraint) -> bool:
    """Whether a decoder is a part of a constraint."""
    return any(isinstance(part, Decoded) for part in constraint.parts)


class FrameDecoder:
    r"""Decodes chosen frames of trajectories of latents, one frame at a time.

    With `recompute`, the activations of a frame are not kept, but computed again for its
    gradient. Memory then holds the activations of one frame, however many frames are decoded. A
    small decoder is faster with `recompute=False`, which keeps the activations of all frames.

    Arguments:
        decode: The decoder of a batch of frames, from shape :math:`(B, *)` to :math:`(B, C, *)`.
        frames: The frames to decode.
        channels: Which of the :math:`C` decoded channels to return; None for all.
        recompute: See above.

    References:
        | Training Deep Nets with Sublinear Memory Cost (Chen et al., 2016)
        | https://arxiv.org/abs/1604.06174

    Example:
        >>> decode = feasibly.constraints.FrameDecoder(lambda z: z.repeat(1, 3), frames=[0, 4])
        >>> decode(torch.zeros(2, 5, 1)).shape  # 2 trajectories, 2 of 5 frames, 3 channels
        torch.Size([2, 2, 3])
    """

    @typed
    def __init__(
        self,
        decode: Callable[[Tensor], Tensor],
        frames: Sequence[int],
        channels: Sequence[int] | None = None,
        recompute: bool = True,
    ) -> None:
        self.decode, self.recompute = decode, recompute
        self.frames = _numbers("frame", frames)
        self.channels = None if channels is None else _numbers("channel", channels)

    def __call__(self, z: Tensor) -> Tensor:
        """Decodes latents, with shape (B, T, *), to (B, frames, channels, *)."""
        _held("trajectory", z.shape[1], "frames", self.frames)
        decoded = [
            checkpoint(self._decode, z[:, frame], use_reentrant=False)
            if self.recompute and z.requires_grad and torch.is_grad_enabled()
            else self._decode(z[:, frame])
            for frame in self.frames
        ]
        return torch.stack(decoded, dim=1)

    def _decode(self, frame: Tensor) -> Tensor:
        decoded = _tensor_of(self.decode(frame))
        if self.channels is None:
            return decoded
        _held("decoded frame", decoded.shape[1], "channels", self.channels)
        return decoded[:, self.channels]


def _tensor_of(decoded: Any) -> Tensor:
    """The tensor in what a decoder returned."""
    if isinstance(decoded, tuple):
        decoded = decoded[0]
    found = decoded if isinstance(decoded, Tensor) else getattr(decoded, "sample", None)
    if not isinstance(found, Tensor):
        raise ConstraintError(
            f"The decoder must return a tensor, or one at .sample, got {type(decoded).__name__}."
        )
    return found


def _numbers(name: str, given: Sequence[int]) -> list[int]:
    """Returns frames or channels as a list of whole numbers, and refuses an empty one."""
    try:
        numbers = [operator.index(number) for number in given]
    except TypeError as error:
        message = f"FrameDecoder({name}s=...) takes whole numbers, such as (12,), got {given!r}."
        raise TypeError(message) from error
    if not numbers:
        raise ValueError(f"FrameDecoder needs at least one {name} to decode.")
    return numbers


def _held(whole: str, held: int, name: str, numbers: Sequence[int]) -> None:
    """Refuses frames or channels that are not there."""
    if not all(-held <= number < held for number in numbers):
        raise ValueError(
            f"FrameDecoder: {name} {numbers} are requested, but a {whole} has {held} {name}."
        )
