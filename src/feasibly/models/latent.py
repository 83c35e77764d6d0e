r"""Decoders of latent models, for constraints on what they decode to."""

__all__ = ["LatentDecoder"]

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arguments import typed
from ..denoisers.frozen import frozen
from ..errors import ConstraintError


class LatentDecoder:
    r"""A decoder :math:`D` as a function of the latents :math:`z` that a model samples, to state a
    constraint behind it: `Decoded(constraint, decoder, decoder.encode)`.

    Diffusion models are trained on shifted and scaled latents. A VAE of diffusers says how:

    .. math:: D(z) = \mathrm{decode}(z / \mathrm{scaling} + \mathrm{shift}) \quad \text{or} \quad
        \mathrm{decode}(z \, \mathrm{std} / \mathrm{scaling} + \mathrm{mean}) .

    The decoder runs in evaluation mode, without gradients for its weights and in its own dtype,
    if need be as a copy that shares them. For a gradient, its activations are computed again,
    chunk by chunk, instead of kept.

    References:
        | High-Resolution Image Synthesis with Latent Diffusion Models (Rombach et al., 2022)
        | https://arxiv.org/abs/2112.10752

    Arguments:
        decoder: A VAE of diffusers, with `decode` and a configuration, or any differentiable
            function of a batch of latents, which is handed them as they are.
        chunk: How many members to decode at a time.
        recompute: Whether to compute activations again. Without it gradients are faster and take
            more memory.

    Raises:
        ConstraintError: If the decoder cannot be called.
        ValueError: If the chunk is empty.

    Example:
        >>> decoder = feasibly.LatentDecoder(torch.nn.Linear(2, 5), chunk=4)
        >>> decoder(torch.zeros(3, 2)).shape
        torch.Size([3, 5])
        >>> sums = feasibly.Equality(lambda x: x.sum(dim=1), atol=1e-3)
        >>> feasibly.Decoded(sums, decoder).residual(torch.zeros(3, 2)).shape
        torch.Size([3, 1])
    """

    @typed
    def __init__(self, decoder: Any, chunk: int = 8, recompute: bool = True) -> None:
        if not isinstance(chunk, int) or chunk < 1:
            raise ValueError(f"LatentDecoder(chunk=...) must be at least 1, got {chunk!r}.")
        if isinstance(decoder, type):
            raise ConstraintError(
                f"The decoder is the class {decoder.__name__}; pass an instance of it, loaded "
                "with its weights."
            )
        if not hasattr(decoder, "decode") and hasattr(decoder, "vae"):
            raise ConstraintError(
                f"{type(decoder).__name__} is a whole pipeline; pass its decoder, "
                "LatentDecoder(pipeline.vae)."
            )
        if not callable(decoder) and not callable(getattr(decoder, "decode", None)):
            raise ConstraintError(
                f"A decoder is a function of latents, or has a method decode(); "
                f"{type(decoder).__name__} is neither."
            )
        if isinstance(decoder, nn.Module):
            decoder = frozen(decoder, ConstraintError)
        self.decoder, self.chunk, self.recompute = decoder, chunk, recompute
        self.factor, self.offset = _latents(getattr(decoder, "config", None))

    def __call__(self, z: Tensor) -> Tensor:
        r"""Decodes latents, with shape :math:`(B, *)`, to samples, with shape :math:`(B, *)`."""
        keep = z.requires_grad and torch.is_grad_enabled() and self.recompute
        run = partial(checkpoint, self._decode, use_reentrant=False) if keep else self._decode
        return torch.cat([*map(run, z.split(self.chunk))])

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        r"""Returns the latents of samples, with shape :math:`(B, *)`: the mean of the encoder's
        distribution.

        Raises:
            ConstraintError: If the decoder has no encoder.
        """
        if not callable(getattr(self.decoder, "encode", None)):
            raise ConstraintError(
                f"{type(self.decoder).__name__} has no encode(); give Decoded an encoder of your "
                "own, or none."
            )
        parts = []
        for part in x.split(self.chunk):
            found = self.decoder.encode(part.to(self._dtype(part)))
            found = getattr(found, "latent_dist", found)
            mean = found.mode() if hasattr(found, "mode") else getattr(found, "latent", found)
            mean = mean.to(x.dtype)
            parts.append((mean - self._fit(self.offset, mean)) / self._fit(self.factor, mean))
        return torch.cat(parts)

    def _decode(self, z: Tensor) -> Tensor:
        inner = z * self._fit(self.factor, z) + self._fit(self.offset, z)
        decode = getattr(self.decoder, "decode", self.decoder)
        found = decode(inner.to(self._dtype(z)))
        found = found[0] if isinstance(found, tuple) else getattr(found, "sample", found)
        if not isinstance(found, Tensor):
            raise ConstraintError(
                f"The decoder returned {type(found).__name__}; it must return a tensor, a tuple "
                "that begins with one, or an object with one at .sample."
            )
        return found.to(z.dtype)

    def _fit(self, values: Tensor, z: Tensor) -> Tensor:
        """One value for all, or one a channel."""
        values = values.to(z)
        return values.reshape(-1, *(1,) * (z.ndim - 2)) if values.ndim else values

    def _dtype(self, z: Tensor) -> torch.dtype:
        if not isinstance(self.decoder, nn.Module):
            return z.dtype
        return next((p.dtype for p in self.decoder.parameters()), z.dtype)


def _latents(config: Any) -> tuple[Tensor, Tensor]:
    """The factor and the offset from a model's latents to a decoder's."""

    def setting(name: str) -> Any:
        return getattr(config, name, None)

    scaling = torch.tensor(float(setting("scaling_factor") or 1.0), dtype=torch.float64)
    if setting("latents_mean") is not None and setting("latents_std") is not None:
        mean, std = (
            torch.tensor(setting(name), dtype=torch.float64).flatten()
            for name in ("latents_mean", "latents_std")
        )
        return std / scaling, mean
    shift = torch.tensor(float(setting("shift_factor") or 0.0), dtype=torch.float64)
    return 1 / scaling, shift
