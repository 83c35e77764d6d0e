"""What a run's parts do with fixed states: a few numbers that tell two runs apart.

Code, and tensors inside a constraint or among the conditions of a network, cannot be written down.
So a store keeps what its parts returned, and who resumes must find the same, up to rounding.
"""

__all__ = ["PARTS", "Probe", "differences", "probe"]

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import members as batch
from ..constraints.base import Constraint
from ..network import Network, own_mode
from ..randomness import MemberNoise, generator

Probe = Mapping[str, tuple[float | None, ...]]
"""The numbers of each part, None where one was not finite."""

PARTS = ("schedule", "denoiser", "constraint")

TIMES = 9
"""The number of times of the schedule that are compared."""

SKETCH = 4
"""The numbers kept of an output: its mean, its deviation, and two products with noise."""

SCALES = (1.0, 4.0)
"""The sizes of the states that a constraint is evaluated for: bounds let small ones pass."""

RTOL, HALF_RTOL = 1e-3, 3e-2
"""How far numbers may differ, relative to the output: of half-precision networks, farther."""

SLICE = 2**20


@own_mode()
def probe(
    denoiser: Any,
    constraint: Constraint | None,
    members: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Probe:
    """Evaluates the parts of a run: the denoiser's schedule at nine times, the denoiser at
    :math:`t = 0.5`, where runs begin, and the residual, for the first members, one in the middle
    and the last.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint, or None.
        members: The number of members of the run; no others are asked of a conditional network.
        shape: The shape of one sample.
        dtype: The type of the samples.
        device: Where to sample.
    """
    last = members - 1
    times = torch.linspace(0, 1, TIMES, dtype=dtype, device=device)
    found: dict[str, list[float | None]] = {name: [] for name in PARTS}
    for t in times:
        found["schedule"] += [_number(float(v)) for v in denoiser.schedule(t)]
    t = times[TIMES // 2]
    alpha_t, sigma_t = denoiser.schedule(t)
    # in pairs, as a dry run does: some networks fail on a batch of one, some machines on many
    for pair in dict.fromkeys([(0, min(1, last)), (members // 2, last)]):
        z = MemberNoise(0, pair, shape, dtype=dtype, device=device)()
        with batch.calling(pair, device):
            network = Network(denoiser)
            made = network((alpha_t**2 + sigma_t**2).sqrt() * z, t)
            # where runs begin depends on the mean and spread that it knows of its data
            found["denoiser"] += [*_sketches(made), *_sketches(network.noisy(z, times[-1]))]
            if constraint is not None:
                for scale in SCALES:
                    found["constraint"] += _sketches(constraint.residual(scale * z))
    return {name: tuple(values) for name, values in found.items()}


def differences(stored: Probe, here: Probe, denoiser: Any = None) -> list[str]:
    """Returns the parts that differ; what is not finite on either side is not compared.

    Arguments:
        stored: The numbers in the store.
        here: Those of this run.
        denoiser: The denoiser, on whose precision the allowed rounding depends.
    """
    loose = HALF_RTOL if _is_half(denoiser) else RTOL
    wrong = []
    for name in PARTS:
        a, b = stored[name], here[name]
        rtol = loose if name == "denoiser" else RTOL
        size = 1 if name == "schedule" else SKETCH
        same = len(a) == len(b) and all(
            _agree(a[k : k + size], b[k : k + size], rtol) for k in range(0, len(a), size)
        )
        if not same:
            wrong.append(name)
    return wrong


def _agree(a: Sequence[float | None], b: Sequence[float | None], rtol: float) -> bool:
    pairs = [(p, q) for p, q in zip(a, b, strict=True) if p is not None and q is not None]
    if len(pairs) < len(a):
        return True
    # a product with noise is as large as the output by chance only: its size is that of all
    size = max(math.hypot(*side) for side in zip(*pairs, strict=True)) if len(a) > 1 else 0.0
    return all(abs(p - q) <= rtol * max(abs(p), abs(q), size) for p, q in pairs)


def _sketches(output: Tensor) -> Iterator[float | None]:
    """The sketch of each row."""
    for row in output.detach().flatten(start_dim=1):
        noise, total = generator(0, 0, 7), torch.zeros(SKETCH, dtype=torch.float64)
        for part in row.split(SLICE):  # a sample may be large, and there is noise for each number
            v = part.to("cpu", torch.float64)
            n = torch.randn((SKETCH - 2, len(v)), generator=noise, dtype=torch.float64)
            total += torch.cat([v.sum()[None], v.square().sum()[None], n @ v])
        size = max(1, len(row))
        mean = float(total[0]) / size
        spread = math.sqrt(max(0.0, float(total[1]) / size - mean**2))
        # divided so that it is as large as the deviation, and one number in many still counts
        products = (total[2:] / math.sqrt(size)).tolist()
        yield from map(_number, (mean, spread, *products))


def _number(value: float) -> float | None:
    return float(f"{value:.9g}") if math.isfinite(value) and abs(value) < 1e150 else None


def _is_half(denoiser: Any) -> bool:
    if not isinstance(denoiser, nn.Module):
        return False
    half = (torch.float16, torch.bfloat16)
    kinds: list[Any] = [p.dtype for p in denoiser.parameters()]
    kinds += [getattr(module, "dtype", None) for module in denoiser.modules()]
    return any(kind in half for kind in kinds)
