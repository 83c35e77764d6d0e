"""Denoisers, physics and reconstructors of deepinv, whose images lie in [0, 1]."""

__all__ = ["Reconstructor", "constraint", "denoiser"]

import math
from collections.abc import Sequence
from typing import Any

import deepinv
import torch
from torch import Tensor

from ..api import sample
from ..arguments import typed
from ..constraints import Composite, Constraint, EachMember, Observation
from ..denoisers.adapter import Adapter
from ..errors import ConstraintError, DenoiserError
from ..models import wrap
from ..randomness import drawn_seed, generator
from ..result import Result
from ..schedules import EDM

# of any type, so that types are checked alike without deepinv
kinds: Any = deepinv.physics
models: Any = deepinv.models

ROWS = (
    "The physics has {} for each row of a batch. Give it one row at a time, as a DataLoader of "
    "batch_size=1 does."
)


@typed
def denoiser(model: Any, sigma_range: tuple[float, float], **options: Any) -> Adapter:
    r"""Makes a denoiser of a `deepinv.models.Denoiser`, :math:`D(x, \sigma)`, whose samples are
    images in [0, 1]. Where a network was trained on [-1, 1], deepinv's class converts.

    References:
        | https://github.com/deepinv/deepinv, deepinv.models.Denoiser

    Arguments:
        model: The denoiser.
        sigma_range: The noise levels that it was trained on, for images in [0, 1]: (0.001, 40) for
            deepinv's networks of EDM.
        options: Those of :func:`feasibly.wrap`, such as `data` and `conditions`.

    Raises:
        DenoiserError: If it is of another kind, clips its output, or was not trained on noise.
    """
    name, (low, high) = type(model).__name__, sigma_range
    if not isinstance(model, models.Denoiser):
        raise DenoiserError(
            f"{name} is no deepinv.models.Denoiser, so its images may not lie in [0, 1]. Of a "
            "MinusOneOneDenoiserWrapper give the model; for others use feasibly.wrap(net, 'edm')."
        )
    if not 0 <= low < high:
        raise DenoiserError(
            "denoiser(sigma_range=...) is the lowest and the highest noise level of training, "
            f"such as (0.001, 40.0); got {sigma_range}."
        )
    parts = [*model.modules()]
    if any(getattr(p, "clip_output", isinstance(p, models.DiffUNet)) for p in parts):
        raise DenoiserError(
            f"{name} clips its estimates, which then have no gradient. Make it with clip_output="
            "False; of a DiffUNet wrap the network, of images in [-1, 1]: feasibly.wrap(net, "
            "'eps', feasibly.models.tables.AlphaBar(net.sqrt_alphas_cumprod**2), "
            "learned_variance=True, conditions={'type_t': 'timestep'})."
        )
    if high < 1:
        raise DenoiserError(
            f"{name} was trained up to sigma={high:g}, where images in [0, 1] are far from noise, "
            "which sampling begins with. Take a denoiser for diffusion, trained up to 1 or more."
        )
    if options.get("data") is None:
        options = {"mean": 0.5, "scale": 0.25} | options
    return wrap(model, "edm", EDM(max(low, 1e-3), high), sigma_range=sigma_range, **options)


@typed
def constraint(y: Any, physics: Any, *, atol: float = 1e-3, repeats: int = 1) -> Constraint:
    r"""States what measurements :math:`y = A(x) + e` say of images: with Gaussian noise as an
    observation with errors, and without noise as one that must hold.

    Values that linear physics does not measure, such as masked pixels, are left out.

    Arguments:
        y: The measurements, with shape :math:`(B, *)`; of stacked physics a list of them. If B is
            not 1, sample :math:`i` has row :math:`\lfloor i / \text{repeats} \rfloor`.
        physics: The physics, whose operator and noise level are the same for all rows.
        atol: The largest :math:`|A(x)_i - y_i|` of a feasible sample, without noise.
        repeats: How many samples in a row share a row of measurements.

    Raises:
        ConstraintError: If the noise is not Gaussian, the operator or the noise level is not the
            same for all rows, or no image has such measurements.
    """
    _check(physics, "constraint(y, physics)")
    if isinstance(physics, kinds.StackedPhysics):
        pairs = zip(y, physics.physics_list, strict=True)
        return Composite([constraint(*pair, atol=atol, repeats=repeats) for pair in pairs])
    std, y = _std(physics, y), y.detach()
    if y.is_complex():
        std /= math.sqrt(2)  # of the real part, and of the imaginary one

    def measured(x: Tensor) -> Tensor:
        try:
            values = physics.A(x)
        except RuntimeError:
            if x.dtype != torch.float64:
                raise
            values = physics.A(x.float())  # many operators know single precision alone
        return values.to(torch.promote_types(values.dtype, x.dtype)).flatten(start_dim=1)

    kept: Any = slice(None)
    if linear := isinstance(physics, kinds.LinearPhysics):
        like = physics.A_adjoint(y)[:1]
        values = measured(torch.randn(like.shape, generator=generator(0)).to(like))
        if len(values) != 1:
            raise ConstraintError(ROWS.format("an operator"))
        if values[0].numel() != y[0].numel() or y.ndim < 2:
            raise ConstraintError(
                f"y has shape {tuple(y.shape)}, and {type(physics).__name__} measures "
                f"{values[0].numel()} values of each image; give measurements with a batch axis."
            )
        kept = values[0] != 0
        if not std and (y.flatten(start_dim=1)[:, ~kept].abs() > atol).any():
            raise ConstraintError(
                f"y has values other than zero where {type(physics).__name__} measures nothing, "
                "so that no image has them. Give the physics that made y, with its noise model."
            )
    y, errors = y.flatten(start_dim=1)[:, kept], {"noise": std} if std else {"atol": atol}
    one = len(y) == 1
    found = Observation(
        lambda x: measured(x)[:, kept], y[0] if one else torch.zeros_like(y[0]), **errors
    )
    found.linear = linear
    return found if one else EachMember(found, y / (std or 1.0), repeats)


def _check(physics: Any, call: str) -> None:
    """Refuses what is no physics, such as the measurements."""
    if not isinstance(physics, kinds.Physics):
        raise ConstraintError(
            f"The physics must be a deepinv.physics.Physics, got {type(physics).__name__}; "
            f"measurements come first, as in {call}."
        )


def _std(physics: Any, y: Tensor) -> float:
    """Returns the standard deviation of the errors of measurements; 0 for none."""
    noise, z = physics.noise_model, torch.linspace(-9, 9, 99, device=y.device)[None]
    gaussian = isinstance(noise, kinds.GaussianNoise)
    if not gaussian and not isinstance(noise, kinds.ZeroNoise):
        raise ConstraintError(
            f"{type(noise).__name__} cannot be stated: only GaussianNoise and ZeroNoise can. For "
            "noise that is nearly normal give feasibly.Observation(physics.A, y, noise=std)."
        )
    if not torch.equal(physics.sensor(z), z):
        raise ConstraintError(
            f"{type(physics).__name__} has a sensor that changes values. State what it says of "
            "images yourself, by a feasibly.Equality or a feasibly.Inequality."
        )
    levels = noise.sigma.unique().tolist() if gaussian else [0.0]
    if len(levels) > 1:
        raise ConstraintError(ROWS.format("a noise level"))
    return levels[0]


class Reconstructor(models.Reconstructor):
    r"""Reconstructs images by samples given their measurements; see :func:`constraint`.

    deepinv's evaluation calls it as `(y, physics)`. Like deepinv's own samplers, it takes its seed
    from torch's global generator, unless `seed` is given.

    Arguments:
        denoiser: The denoiser, such as :func:`denoiser` or :func:`feasibly.wrap` returns.
        shape: The shape of an image; None for linear physics, whose adjoint says it.
        n: How many samples of each image a reconstruction is the mean of; 1 for a sample.
        atol: See :func:`constraint`.
        mean: What zero of the denoiser's data is in the units of images.
        std: What one is, likewise. Both are 0.5 for data in [-1, 1] and images in [0, 1].
        options: Those of :func:`feasibly.sample`, such as `method`.
    """

    def __init__(
        self,
        denoiser: Any,
        shape: Sequence[int] | None = None,
        *,
        n: int = 1,
        atol: float = 1e-3,
        mean: float = 0.0,
        std: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(denoiser, (models.Denoiser, kinds.Physics)):
            raise DenoiserError(
                f"Reconstructor takes a denoiser of feasibly, got {type(denoiser).__name__}; wrap "
                "a model first: denoiser(model, sigma_range=...). A call takes the physics."
            )
        self.denoiser, self.shape, self.n, self.atol = denoiser, shape, n, atol
        self.mean, self.std, self.options = mean, std, options

    def sample(self, y: Any, physics: Any, n: int) -> Result:
        """Samples n images for each row of measurements, in blocks of n, and in the units of the
        denoiser's data.

        Raises:
            ConstraintError: See :func:`constraint`.
            ValueError: If nothing says the shape of an image.
        """
        _check(physics, "sample(y, physics, n)")
        if self.shape is None and not hasattr(physics, "A_adjoint"):
            name = type(physics).__name__
            raise ValueError(
                f"{name} does not say an image's shape; give Reconstructor(shape=...)."
            )
        shape = self.shape or physics.A_adjoint(y).shape[1:]
        told = constraint(y, physics, atol=self.atol, repeats=n).in_units(self.mean, self.std)
        size = n * len(y[0] if isinstance(physics, kinds.StackedPhysics) else y)
        options: Any = {"seed": drawn_seed()} | self.options
        return sample(self.denoiser, told, size, shape, **options)

    def forward(self, y: Any, physics: Any, n: int | None = None) -> Tensor:
        """Returns the mean of the feasible ones among n samples of each image, with shape (B, *);
        NaN if there are none. The default of n is the reconstructor's own."""
        n = self.n if n is None else n
        result = self.sample(y, physics, n)
        rows = result.feasible.reshape(-1, *(1,) * (result.samples.ndim - 1))
        x = result.samples.where(rows, torch.nan) * self.std + self.mean
        return x.unflatten(0, (-1, n)).nanmean(dim=1)
