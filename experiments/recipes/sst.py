"""The prior of monthly sea-surface temperature along the equator."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor

from feasibly.denoisers import Karras
from feasibly.problem import Problem
from feasibly.run import run
from feasibly.samplers import Ancestral

from ..tasks import sst
from ..tasks.learned import HOME
from .base import Denoising, TrainConfig, size, table

CARD = """| data | monthly sea-surface temperature, 5° S to 5° N, 39 months from April 2006: \
{windows:,} overlapping windows of 16 x 32 points, as anomalies and their negatives |
| source | the UK Met Office's OSTIA analysis, `ostia_monthly.nc` of the package \
iris-sample-data; British Crown copyright, Open Government Licence |
| network | the best linear denoiser, whose gains an MLP of {parameters:,} parameters corrects |

## Unconditional quality

{n} samples (second order, 128 steps), and the training windows, in units of their standard
deviation.

| measure | prior | data |
|---|---|---|
{rows}

## Loss relative to the best linear denoiser's

Held out are the twelve months from October 2009 on. Bands are those below.

| windows | mean | by noise level, lowest first |
|---|---|---|
{losses}
"""


class SST(Denoising):
    """The prior of windows, the same wherever they lie."""

    config = TrainConfig("sst", steps=4_000, batch=256)
    ends = ("",)  # Adam alone
    licence = "MIT; the data are under the Open Government Licence"
    home = HOME

    def data(self, folder: Path) -> None:
        self.windows = sst.data()

    def model(self) -> sst.Prior:
        model = sst.Prior()
        model.fit(self.windows.train)
        return model

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        train = self.windows.train  # the denoiser is odd: negatives are in it
        return train[torch.randint(len(train), (n,), generator=generator)]

    def save(self, model: Karras, path: Path) -> None:
        save_file({k: v.half().contiguous() for k, v in model.state_dict().items()}, path)

    def load(self, name: str) -> sst.Prior:
        return sst.prior(Path(name))

    def card(self, model: Karras, n: int) -> str:
        train, held_out = self.windows.train, self.windows.held_out
        posed = Problem(model, None, sst.SHAPE, batch_size=512)
        samples = run([Ancestral(steps=128).bind(posed)], n, seed=1).samples
        bands = {
            "training": self.relative(model, train),
            "held out": self.relative(model, held_out),
        }
        return CARD.format(
            windows=len(train),
            parameters=size(model),
            n=f"{n:,}",
            rows=table(measures(samples), measures(train)),
            losses="\n".join(
                f"| {name} | {sum(row) / len(row):.3f} | {', '.join(f'{v:.2f}' for v in row)} |"
                for name, row in bands.items()
            ),
        )

    @torch.no_grad()
    def relative(self, model: Karras, x: Tensor) -> list[float]:
        """Returns the loss of each band, relative to that without the network."""
        generator = Generator().manual_seed(self.config.seed + 1)  # not the training stream
        found = torch.zeros(2, self.bands)
        for _ in range(16):
            some = x[torch.randint(len(x), (self.config.batch,), generator=generator)]
            state = generator.get_state()
            for row, one in zip(found, (model, self.model()), strict=True):
                generator.set_state(state)
                row += self.loss(one, some, generator).reshape(self.bands, -1).mean(dim=1)
        return (found[0] / found[1]).tolist()


def measures(x: Tensor) -> dict[str, float]:
    """Returns what should be alike for a prior's samples and for data, with shape (B, 16, 32)."""
    fine = x - sst.spread(sst.blocks(x))
    return {
        "standard deviation": x.std().item(),
        "of the means of blocks": sst.blocks(x).std().item(),
        "of departures from them": fine.std().item(),
        "kurtosis of the departures": (fine.pow(4).mean() / fine.var().square()).item(),
    }
