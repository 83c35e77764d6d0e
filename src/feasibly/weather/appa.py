r"""Appa, a latent diffusion model of the global atmosphere, by the user's own copy of it."""

__all__ = ["Appa", "schedule"]

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..constraints import Observation
from ..denoisers.adapter import Adapter
from ..denoisers.predictions import FORMULAS, karras
from ..errors import ConstraintError, DenoiserError
from ..schedules import VE, LogLogit, RectifiedVE, Schedule
from .appa_fields import AppaFields
from .appa_files import code, find, read

SCHEDULES: dict[str, Callable[[float, float], Schedule]] = {
    "rectified": RectifiedVE,
    "loglogit": LogLogit,
    "loglinear": VE,
}


def schedule(train: Mapping[str, Any]) -> Schedule:
    """Returns the schedule that a configuration names.

    Raises:
        DenoiserError: If it names none that is known.
    """
    name = train.get("noise_schedule")
    if name not in SCHEDULES or "sigma_min" not in train or "sigma_max" not in train:
        raise DenoiserError(
            f"The denoiser's config.yaml must have train.noise_schedule, one of {[*SCHEDULES]}, "
            f"train.sigma_min and train.sigma_max; it has {dict(train)}."
        )
    return SCHEDULES[name](float(train["sigma_min"]), float(train["sigma_max"]))


class Appa:
    r"""Appa's prior of hourly trajectories of the atmosphere, and its decoder.

    The prior is of standardised latents :math:`z`, with shape :math:`(T, H, W, C)`; the decoder
    maps a frame of it to standardised fields of ERA5, with 721 rows from north to south and 1440
    columns from Greenwich to the east. A sample that agrees with an analysis at noon is drawn by

    .. code-block:: python

        appa = Appa("path/to/released/folders", checkout="path/to/appa")
        seen = ["t2m", "z500"]
        era5 = read_era5("era5.zarr", seen, times="2021-06-01T12", north_first=True)
        y = appa.fields.standardise(era5.values, seen)
        noon = appa.observation(y, frames=[12], channels=seen, tolerance=y.numel() * 0.05**2)
        prior = appa.denoiser("2021-06-01T00")
        z = feasibly.sample(prior, noon, 32, appa.shape, batch_size=1).samples
        t2m = appa.fields.physical(appa.decode(z, channels=["t2m"]), ["t2m"])

    No latent decodes to an analysis exactly: the tolerance, a sum of squares over all observed
    values, allows the decoder's own error, here 0.05 standard deviations.

    The weights and the code are the user's own. Appa's code has no licence, and none of it is
    part of this library. Only the convolutional autoencoder and the transformer on its latents
    are supported. Only tensors are read from weights.

    References:
        | Appa: Bending Weather Dynamics with Latent Diffusion Models for Global Data Assimilation
        | (Andry et al., 2025), https://arxiv.org/abs/2504.18720
        | https://github.com/montefiore-sail/appa

    Arguments:
        folder: The folder that holds `autoencoders/`, or the folder of one of the denoisers.
        checkout: The folder of Appa's code, the one that holds `appa/`; None if it is importable.
        device: Where the denoiser and the decoder shall be.
        recompute: Whether activations are computed again in a backward pass instead of kept: at
            full size they are 180 GB a trajectory and 9 GB a decoded frame otherwise. Forward-mode
            derivatives need them kept.

    Attributes:
        shape: The shape of a sample, :math:`(T, H, W, C)`.
        schedule: The noise schedule.
        fields: What is decoded: the channels' names, and their units.
        hours: The hours between two frames.

    Raises:
        DenoiserError: If files or code are missing, which are all named, or do not fit together.
    """

    def __init__(
        self,
        folder: str | Path,
        checkout: str | Path | None = None,
        *,
        device: torch.device | str = "cpu",
        recompute: bool = True,
    ) -> None:
        self.folder = find(Path(folder))
        files = read(self.folder)
        ae, train = dict(files.autoencoder["ae"]), files.denoiser["train"]
        backbone = dict(files.denoiser["backbone"])
        kinds = str(ae.get("name")), str(backbone.get("name"))
        if "cae" not in kinds[0] or "vit" not in kinds[1]:
            raise DenoiserError(
                f"{self.folder} holds the autoencoder {kinds[0]!r} and the denoiser {kinds[1]!r}; "
                "only convolutional autoencoders ('cae...') with transformers ('vit...') are "
                "supported: decoding with the others needs the context fields of every date."
            )
        noise = float(ae.get("noise_level") or 0.0) if train.get("inject_ae_noise") else 0.0
        # a decoder that adds noise would make a constraint on what it decodes random
        ae |= {"noise_level": 0.0, "checkpointing": recompute}
        self.autoencoder = _build(
            code(checkout, "appa.nn.cae").conv_ae, ae, files.weights, "autoencoder"
        )
        height, width, depth = self.autoencoder.latent_shape
        backbone |= {"checkpointing": recompute}
        backbone.setdefault("blanket_size", train.get("blanket_size"))
        self.backbone = _build(
            code(checkout, "appa.nn.vit").ViDiT,
            {"in_channels": depth, "shape": (height, width), **backbone},
            files.backbone,
            "denoiser",
        ).to(device)
        self.autoencoder.decoder.to(device)
        self.recompute = recompute
        self.schedule = schedule(train)
        self.shape = (int(backbone["blanket_size"]), height, width, depth)
        self.hours = int(train.get("blanket_dt", 1))
        grid = tuple(self.autoencoder.shape)
        self.fields = AppaFields(int(ae["in_channels"]), grid, files.data)
        self.mean, self.std = files.mean, (files.std**2 + noise**2).sqrt()
        if self.mean.shape != (depth,) or self.std.shape != (depth,):
            raise DenoiserError(
                f"stats.pth has statistics of {len(self.mean)} channels for latents of {depth}; "
                "it belongs to another autoencoder."
            )

    def dates(self, start: Any) -> Tensor:
        """Returns the year, month, day and hour of every frame, with shape (starts, T, 4), for one
        or several times of the first frame in UTC, such as "2021-06-01T00"."""
        hours = np.atleast_1d(np.asarray(start, "datetime64[h]"))
        hours = hours[:, None] + self.hours * np.arange(self.shape[0])
        frames = [[moment.item().timetuple()[:4] for moment in row] for row in hours]
        return torch.tensor(frames)

    def denoiser(self, start: Any) -> Adapter:
        """Returns the denoiser of trajectories that begin at a time, one for all members or one
        for each."""
        dates = self.dates(start)
        first, last = (_date(dates[0, k]) for k in (0, -1))
        return Adapter(
            self.backbone,
            self.schedule,
            karras(1.0),
            time=lambda t: 10 * (self.schedule(t)[1] / self.schedule(t)[0]).log(),
            clock="10 log(sigma / alpha)",
            call=_call,
            scale=lambda at: torch.rsqrt(at.alpha**2 + at.sigma**2),
            conditions={"date": dates},
            predicts=FORMULAS["karras"],
            notes=(f"{self.shape[0]} frames from {first} to {last}, for the first member",),
        )

    def decode(
        self,
        z: Tensor,
        frames: Sequence[int] | None = None,
        channels: Sequence[str] | None = None,
    ) -> Tensor:
        """Decodes latents, with shape (B, T, H, W, C), one frame of one member at a time, to
        standardised fields, with shape (B, frames, channels, rows, columns); differentiable.

        Arguments:
            z: The latents.
            frames: The indices of the frames to decode, all by default.
            channels: The names of the channels to keep, all by default.
        """
        if tuple(z.shape[1:]) != self.shape:
            raise ConstraintError(f"Latents have shape (B, {self.shape}); got {tuple(z.shape)}.")
        index = self.fields.index(channels)
        frames = range(self.shape[0]) if frames is None else frames
        recompute = self.recompute and z.requires_grad and torch.is_grad_enabled()
        decode = partial(self._decode, index=index)

        def frame(z_f: Tensor) -> Tensor:
            return checkpoint(decode, z_f, use_reentrant=False) if recompute else decode(z_f)

        return torch.stack([torch.cat([*map(frame, z[:, f].split(1))]) for f in frames], dim=1)

    def observation(
        self,
        y: Tensor,
        frames: Sequence[int],
        channels: Sequence[str] | None = None,
        *,
        tolerance: float,
        mask: Tensor | None = None,
    ) -> Observation:
        r"""Returns the constraint :math:`D(z^f) = y^f` for the observed frames, channels and
        points, in standardised units. The sea's temperature counts over the sea only.

        Arguments:
            y: The standardised fields (`fields.standardise`), with shape (frames, channels, rows,
                columns). Where they are not a number nothing was observed.
            frames: The indices of the frames that are observed.
            channels: The names of the channels that are observed, all by default.
            tolerance: The largest sum of squares of a feasible sample.
            mask: Where `y` was observed, which broadcasts to its shape; everywhere by default.

        Raises:
            ConstraintError: If shapes do not fit, or nothing is observed.
            DenoiserError: If the sea is not marked in `y` and the folder's masks cannot be read.
        """
        index, frames = self.fields.index(channels), tuple(frames)
        expected = (len(frames), len(index), *self.fields.grid)
        if tuple(y.shape) != expected:
            raise ConstraintError(
                f"y must have shape (frames, channels, rows, columns) = {expected}; got "
                f"{tuple(y.shape)}."
            )
        seen = y.isfinite() if mask is None else y.isfinite() & mask.to(y.device)
        for k, c in enumerate(index):
            # where ERA5's own mark of land is left, the masks are not needed
            if self.fields.names[c] == "sst" and y[:, k].isfinite().all():
                seen[:, k] &= self.fields.sea.to(seen.device)
        if not seen.any():
            raise ConstraintError("Nothing is observed: y is not a number, or mask is false.")

        def observe(z: Tensor) -> Tensor:
            return self.decode(z, frames, channels)[:, seen.to(z.device)]

        return Observation(observe, y[seen], tolerance)

    def _decode(self, z_f: Tensor, index: list[int]) -> Tensor:
        """One frame, with shape (B, H, W, C), to (B, channels, rows, columns)."""
        weights = next(self.autoencoder.decoder.parameters())
        latent = (z_f * self.std.to(z_f) + self.mean.to(z_f)).flatten(1, 2).to(weights)
        fields = self.autoencoder.decode(latent, None)[..., index].to(z_f)
        return fields.movedim(-1, 1).unflatten(-1, self.fields.grid)

    def __repr__(self) -> str:
        sizes = (
            sum(p.numel() for p in module.parameters()) / 1e6
            for module in (self.backbone, self.autoencoder.decoder)
        )
        parts = "denoiser {:.4g} M parameters, decoder {:.4g} M".format(*sizes)
        return f"Appa({self.folder}; latents {self.shape}, {self.schedule!r}, {parts})"


def _build(
    make: Callable[..., nn.Module], config: dict[str, Any], weights: dict[str, Tensor], name: str
) -> Any:
    try:
        module = make(**config)
        module.load_state_dict(weights)
    except (TypeError, RuntimeError) as error:
        raise DenoiserError(
            f"Appa's {name} cannot be built from its config.yaml and weights ({error}); they may "
            "be of another version than the checkout."
        ) from error
    return module.eval().requires_grad_(False)


def _call(net: Any, x: Tensor, time: Tensor, conditions: dict[str, Any]) -> Tensor:
    return net(x.flatten(start_dim=1), time, **conditions).reshape(x.shape)


def _date(date: Tensor) -> str:
    return "{:04d}-{:02d}-{:02d}T{:02d}".format(*date.tolist())
