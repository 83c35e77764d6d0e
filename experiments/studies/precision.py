"""What do a compiled network, bfloat16 and the size of a batch change in the price of an
evaluation?

The network of Kuramoto-Sivashinsky, forward, and forward with a gradient of its input. All ways
take turns in one process.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from feasibly import priors

from ..records import Record
from ..study import Measurement
from ..tables import TEXT, Columns

SIZES = (1, 4, 16)
ROUNDS = 7


def ways(network: nn.Module) -> dict[str, Callable[..., Tensor]]:
    """Returns the network as it is, compiled, and in bfloat16."""
    half = _Half(network)
    return {"float32": network, "compiled": torch.compile(network), "bfloat16": half}


class _Half(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.network(*inputs).float()


def seconds(network: Callable[..., Tensor], x: Tensor, t: Tensor, gradient: bool) -> float:
    """Returns the seconds that one call takes."""
    x = x.clone().requires_grad_(gradient)
    start = time.perf_counter()
    with torch.set_grad_enabled(gradient):
        y = network(x, t)
        if gradient:
            torch.autograd.grad(y.square().sum(), x)
    return time.perf_counter() - start


def measure(setting: dict) -> list[Record]:
    """Measures all ways in turns, and the error of their outputs relative to float32."""
    network = priors.load("ks").backbone
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(setting["size"], 64, 64, generator=generator)
    t = torch.zeros(setting["size"])
    known, gradient = ways(network), setting["gradient"]
    for way in known.values():
        seconds(way, x, t, gradient)  # compiles
    times: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(ROUNDS):
        for name, way in known.items():
            times[name].append(seconds(way, x, t, gradient))
    with torch.no_grad():
        outputs = {name: way(x, t) for name, way in known.items()}
    exact = outputs["float32"]
    return [
        {
            "way": name,
            "seconds": median(times[name]) / setting["size"],
            "error": ((outputs[name] - exact).norm() / exact.norm()).item(),
            "threads": torch.get_num_threads(),
        }
        for name in known
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: times of a member over those of float32 in a batch of one,
    and the error of bfloat16's output."""
    found = []
    for gradient, size in dict.fromkeys((row["gradient"], row["size"]) for row in records):
        one, many = (
            {r["way"]: r for r in records if (r["gradient"], r["size"]) == (gradient, n)}
            for n in (1, size)
        )
        ratios = {way: row["seconds"] / one["float32"]["seconds"] for way, row in many.items()}
        what = "forward and backward" if gradient else "forward"
        error = many["bfloat16"]["error"]
        found.append({"what": what, "size": size, **ratios, "error": error})
    return found


COLUMNS: Columns = {
    "what": ("pass", TEXT),
    "size": ("members in a batch", "{}"),
    "float32": ("float32", "{:.2f}"),
    "compiled": ("compiled", "{:.2f}"),
    "bfloat16": ("bfloat16", "{:.2f}"),
    "error": ("bfloat16's error", "{:.1%}"),
}

MEASUREMENT = Measurement(
    name="precision",
    question="What do a compiled network, bfloat16 and the size of a batch change in the price?",
    problem="ks",
    settings=[{"size": n, "gradient": gradient} for gradient in (False, True) for n in SIZES],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
