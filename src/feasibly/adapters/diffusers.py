"""A pipeline of diffusers that samples under constraints."""

__all__ = ["ConstrainedPipeline", "ConstrainedPipelineOutput", "Guided"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from torch import Tensor, nn

from ..api import sample
from ..arguments import typed
from ..constraints import Constraint, Decoded
from ..models import LatentDecoder, wrap
from ..result import Result

OUTPUTS = ("pil", "pt", "np")


@dataclass
class ConstrainedPipelineOutput(ImagePipelineOutput):
    """The images in [0, 1], and the result of :func:`feasibly.sample`, whose samples are in the
    units of the model, such as [-1, 1], and which says which are feasible."""

    result: Result


class ConstrainedPipeline(DiffusionPipeline):
    """Samples a model of diffusers under a constraint on its images.

    It is saved and loaded as any other pipeline, from the folders of others too. Only safetensors
    are loaded, and no pickles, unless `use_safetensors=False` is given.

    References:
        | https://github.com/huggingface/diffusers, DiffusionPipeline

    Arguments:
        scheduler: The scheduler, which says what the network predicts, as in `feasibly.wrap`.
        unet: The network.
        transformer: The network, where it is a transformer.
        vae: The decoder of latents; None for a model of pixels.
    """

    _optional_components = ["unet", "transformer", "vae"]  # noqa: RUF012

    def __init__(
        self, scheduler: Any, unet: Any = None, transformer: Any = None, vae: Any = None
    ) -> None:
        super().__init__()
        self.register_modules(scheduler=scheduler, unet=unet, transformer=transformer, vae=vae)

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> "ConstrainedPipeline":
        """Loads a folder or a repository as that of diffusers does, from safetensors."""
        return super().from_pretrained(*args, **{"use_safetensors": True} | options)

    @typed
    def __call__(
        self,
        constraint: Constraint | None = None,
        num_images: int = 1,
        *,
        shape: Sequence[int] | None = None,
        conditions: Mapping[str, Any] | None = None,
        unconditional: Mapping[str, Tensor] | None = None,
        guidance_scale: float = 1.0,
        seed: int = 0,
        output_type: str = "pil",
        **options: Any,
    ) -> ConstrainedPipelineOutput:
        r"""Samples images.

        Arguments:
            constraint: The constraint on images as `output_type="pt"` returns them, with shape
                :math:`(B, C, H, W)`, black at 0 and white at 1; None for none.
            num_images: The number of images.
            shape: The shape of one sample of the network, image or latent; None for that of its
                configuration.
            conditions: Its further arguments by name, such as `class_labels` or
                `encoder_hidden_states`, with a row for each image or one for all.
            unconditional: The same for no condition, each tensor with one row.
            guidance_scale: The weight of the conditional estimate; see :class:`Guided`.
            seed: The seed of the images.
            output_type: `pt` for a tensor and `np` for an array with channels last, both as they
                were sampled; `pil` for images, clipped and rounded to 8 bits, so that the
                constraint holds up to that.
            options: Those of :func:`feasibly.sample`, such as `method`.

        Raises:
            DenoiserError: If the model or what it is conditioned on is not supported.
            ValueError: If there is no such output, or guidance or the shape lacks something.
        """
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type must be one of {OUTPUTS}, got {output_type!r}.")
        net: Any = self.unet if self.unet is not None else self.transformer
        guided = net
        if guidance_scale != 1.0:
            guided = Guided(net, unconditional or {}, guidance_scale)
        denoiser = wrap(guided, "diffusers", self.scheduler, conditions=conditions)
        decoder = None if self.vae is None else LatentDecoder(self.vae)
        if constraint is not None:
            constraint = constraint.in_units(0.5, 0.5)
            if decoder is not None:
                constraint = Decoded(constraint, decoder, decoder.encode)
        if shape is None:
            size = net.config.sample_size
            if size is None:
                raise ValueError("The network's configuration has no sample_size; give shape=...")
            shape = (net.config.in_channels, *([size] * 2 if isinstance(size, int) else size))
        result = sample(denoiser, constraint, num_images, shape, seed=seed, **options)
        with torch.no_grad():
            x = result.samples if decoder is None else decoder(result.samples)
        images: Any = x / 2 + 0.5
        if output_type != "pt":
            images = images.movedim(1, -1).cpu().numpy()
        if output_type == "pil":
            images = self.numpy_to_pil(images.clip(0, 1))
        return ConstrainedPipelineOutput(images, result)


class Guided(nn.Module):
    r"""A network with classifier-free guidance, :math:`w F(x, c) + (1 - w) F(x, \varnothing)`,
    both evaluated in one batch.

    For :math:`w > 1` it is the denoiser of no model: samples are more typical of the condition and
    less diverse, and they are not a posterior.

    References:
        | Classifier-Free Diffusion Guidance (Ho & Salimans, 2022)
        | https://arxiv.org/abs/2207.12598

    Arguments:
        net: A network of diffusers.
        unconditional: Its arguments for no condition, by name, each tensor with one row.
        scale: The weight :math:`w` of the conditional prediction.

    Raises:
        ValueError: If there is none or it has several rows; in use, if an argument is given for
            one of the two alone.
    """

    def __init__(self, net: nn.Module, unconditional: Mapping[str, Tensor], scale: float) -> None:
        super().__init__()
        if not unconditional or any(v.ndim and len(v) != 1 for v in unconditional.values()):
            raise ValueError(
                "unconditional holds the arguments for no condition, with one row each, such as "
                "{'class_labels': torch.tensor([1000])}; guidance needs it, and conditions."
            )
        self.net, self.unconditional, self.scale = net, dict(unconditional), scale
        self.config = net.config

    def forward(self, x: Tensor, timestep: Tensor, **conditions: Any) -> Tensor:
        """Returns the guided prediction, for states with shape (B, *) and times with shape (B)."""
        if conditions.keys() != self.unconditional.keys():
            raise ValueError(
                f"Guided: the network has {sorted(conditions)} with the condition and "
                f"{sorted(self.unconditional)} without; give both the same arguments."
            )
        given = {
            name: torch.cat([value, self.unconditional[name].to(value).expand_as(value)])
            for name, value in conditions.items()
        }
        both = torch.cat([timestep, timestep])
        found = self.net(torch.cat([x, x]), timestep=both, return_dict=False, **given)[0]
        one, other = found.chunk(2)
        return other + self.scale * (one - other)
