"""Samplers that take longer steps at low noise."""

import math
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from ..minimizers.base import QUIET
from .base import Sampler


@dataclass(frozen=True, repr=False, eq=False)
class Sparse(Sampler):
    """A sampler that takes longer steps below a noise level.

    Where the denoiser is nearly affine over what noise varies, the posterior of a state is nearly
    Gaussian, and long steps are right.

    Arguments:
        sparse: The noise level below which steps are longer.
        longer: How many times as long they are: one of so many `steps` is taken.
    """

    _: KW_ONLY
    sparse: float = field(default=0.0, metadata=QUIET)
    longer: int = field(default=2, metadata=QUIET)

    def times(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> Tensor:
        if not self.sparse:
            return super().times(dtype, device)
        times = super().times(torch.float64, device)
        above = sum(self.noise_level(t) > self.sparse for t in times[:-1])
        return torch.cat([times[:above], times[above : -1 : self.longer], times[-1:]]).to(dtype)

    @property
    def taken(self) -> int:
        return len(self.times()) - 1 if self.sparse else self.steps

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "longer")
        if not (isinstance(self.sparse, int | float) and 0 <= self.sparse < math.inf):
            raise ValueError(
                f"{type(self).__name__}(sparse=...) must be a noise level, got {self.sparse!r}."
            )
