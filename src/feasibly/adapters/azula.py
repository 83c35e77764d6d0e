r"""A sampler of azula's interface, which is spoken by duck typing, without azula.

References:
    | https://github.com/probabilists/azula, azula.sample
"""

__all__ = ["Sampler"]

from collections.abc import Sequence
from typing import Any, Never

import torch
from torch import Tensor

from ..api import sample
from ..constraints import Constraint
from ..models import wrap
from ..randomness import drawn_seed
from ..result import Result
from ..samplers import Method


class Sampler:
    r"""Samples under a constraint where azula's code takes a sampler: `x_0 = sampler(x_1)`.

    Methods weigh samples against one another and sample some of them again, so that they begin by
    themselves. Of :math:`x_1` they take the shape, the type and the device, and **not its
    values**. Noise follows torch's global seed, as in azula: after one `torch.manual_seed` a call
    returns the same samples, and a second call returns others.

    Arguments:
        denoiser: A denoiser, of azula or of :func:`feasibly.wrap`.
        constraint: The constraint; None for none.
        method: The method; see :func:`feasibly.sample`.
        silent: Whether to hide the progress, which a terminal shows otherwise.

    Attributes:
        result: The :class:`feasibly.Result` of the last call, with violations and warnings; None
            before.
    """

    def __init__(
        self,
        denoiser: Any,
        constraint: Constraint | None,
        *,
        method: str | Method = "auto",
        silent: bool = False,
    ) -> None:
        self.denoiser, self.constraint, self.method = denoiser, constraint, method
        self.silent = silent
        self.result: Result | None = None

    @torch.no_grad()
    def init(
        self,
        shape: Sequence[int],
        mean: float | Tensor = 0.0,
        var: float | Tensor = 1.0,
        **place: Any,
    ) -> Tensor:
        r"""Draws :math:`x_1 \sim \mathcal{N}(\alpha_1 \mu, \alpha_1^2 s^2 + \sigma_1^2)`, as
        azula's samplers do, for a call.

        Arguments:
            shape: The shape :math:`(B, *)`.
            mean: The mean :math:`\mu` of the data, which broadcasts to the shape.
            var: Their variance :math:`s^2`, likewise.
            place: The type and the device, as `torch.Tensor.to` takes them.
        """
        alpha, sigma = (scale.to(**place) for scale in self.denoiser.schedule(torch.ones(())))
        std = torch.sqrt(alpha**2 * var + sigma**2).expand(shape)
        return (alpha * mean).expand(shape) + std * torch.randn_like(std)

    def __call__(self, x: Tensor, **conditions: Any) -> Tensor:
        """Samples as many samples as `x` has rows, in its shape (B, *), type and device.

        Arguments:
            x: What :meth:`init` returned, or any tensor of that shape.
            conditions: What the denoiser is conditioned on. Tensors have a row for each of `x`,
                or one for all.

        Raises:
            ValueError: If `x` has no batch axis, or a condition has other rows.
            SamplingError: If a step fails, or all samples do.
        """
        if x.ndim < 2:
            raise ValueError(
                f"Sampler: x has shape {tuple(x.shape)}, and must have a batch axis and those of "
                "a sample; for one sample give x[None]."
            )
        for name, value in conditions.items():
            if isinstance(value, Tensor) and value.ndim and len(value) not in (1, len(x)):
                raise ValueError(
                    f"Sampler: the condition {name} has {len(value)} rows for {len(x)} samples; "
                    "give one for each, or one for all."
                )
        denoiser = self.denoiser
        if conditions:
            denoiser = wrap(denoiser, "azula", conditions=conditions)
            denoiser.data_moments = getattr(self.denoiser, "data_moments", None)
        self.result = sample(
            denoiser,
            self.constraint,
            len(x),
            x.shape[1:],
            method=self.method,
            seed=drawn_seed(),
            dtype=x.dtype,
            device=x.device,
            progress=False if self.silent else None,
        )
        return self.result.samples

    def step(self, x_t: Tensor, t: Tensor, s: Tensor, **conditions: Any) -> Never:
        """Refuses a step of azula's: it is of one state at a time, and methods are of many.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "Sampler has no step from t to s: methods weigh samples against one another, and "
            "sample some again. Call the sampler, as in sampler(sampler.init(shape))."
        )
