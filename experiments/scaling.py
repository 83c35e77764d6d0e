"""What does a gradient through the decoder cost, as the grid grows?
`python -m experiments.scaling --help`."""

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
import tyro
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from feasibly.constraints import FrameDecoder
from feasibly.denoisers import Correlated, Karras
from feasibly.nn import SphereAutoencoder, SphereNet, ZonalCovariance
from feasibly.schedules import LogLogit

GRIDS = ((32, 64), (64, 128), (128, 256))


@dataclass(frozen=True)
class Scaling:
    """Print what a gradient costs on three grids, with the shipped networks' widths.

    Arguments:
        hours: How many hours are observed.
        members: The number of members at a time.
    """

    hours: int = 3
    members: int = 1

    def run(self) -> None:
        print(self)
        print(
            "grid, then of the network, of the network with the covariance of the shipped "
            "denoiser, of the decoder as it is and frame by frame: GFLOP, MB kept for the "
            "gradient, CPU s"
        )
        for rows, columns in GRIDS:
            parts = [self.measure(*case) for case in self.cases(rows, columns)]
            print(f"{rows} x {columns}: " + "; ".join(parts), flush=True)

    def cases(self, rows: int, columns: int) -> list[tuple[Callable[[Tensor], Tensor], Tensor]]:
        """The functions to differentiate, each with its argument."""
        autoencoder = SphereAutoencoder(rows=rows).requires_grad_(False)
        net = SphereNet(rows=rows // 8).requires_grad_(False)
        schedule = LogLogit(1e-3, 1e2, spread=2.0)
        plain = Karras(net, schedule)
        covariance = ZonalCovariance(24, 16, rows // 8, columns // 8)
        shipped = Correlated(net, schedule, covariance)
        z = torch.randn(self.members, 24, 16, rows // 8, columns // 8)
        frames = list(range(0, 24, 24 // self.hours))[: self.hours]
        return [
            (lambda x: plain(x, torch.tensor(0.5)).mean, z),
            (lambda x: shipped(x, torch.tensor(0.5)).mean, z),
            (lambda x: autoencoder.decode(x[:, frames]), z),
            (FrameDecoder(autoencoder.decode, frames), z),
        ]

    def measure(self, function: Callable[[Tensor], Tensor], x: Tensor) -> str:
        """Counts and times a function and its gradient."""
        kept = 0
        seen: set[int] = set()

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            if tensor.data_ptr() not in seen and not isinstance(tensor, torch.nn.Parameter):
                seen.add(tensor.data_ptr())
                kept += tensor.numel() * tensor.element_size()
            return tensor

        def gradient(*_: Any) -> None:
            z = x.clone().requires_grad_()
            torch.autograd.grad(function(1 * z).square().sum(), z)  # FlopCounterMode: no leaf

        gradient()  # the first call sets things up
        start = process_time()
        gradient()
        seconds = process_time() - start
        z = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(z)
        counter = FlopCounterMode(display=False)
        with counter:
            gradient()
        flops = counter.get_total_flops() / 1e9 / self.members
        return f"{flops:.2f} {kept / 1e6 / self.members:.1f} {seconds / self.members:.3f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    tyro.cli(Scaling).run()
