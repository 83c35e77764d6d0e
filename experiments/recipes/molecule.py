"""The prior of alanine dipeptide."""

from pathlib import Path

import torch
from torch import Generator, Tensor

from feasibly.denoisers import Karras

from ..tasks.molecule import dipeptide
from .base import TrainConfig
from .vectors import Vectors


class Dipeptide(Vectors):
    # more steps or a wider network learn the frames by heart: the held-out loss rises
    config = TrainConfig("dipeptide", steps=5_000, batch=512, lr_adam=1e-3)
    backbone = {"dim": 24, "width": 128, "layers": 3, "frequencies": 4}  # noqa: RUF012
    licence = "MIT, as of the data (the repository efficient-constrained-diffusion)"
    what = (
        "10,000 frames of alanine dipeptide, of which every tenth is held out: positions of the "
        "heavy atoms in the molecule's own frame, whitened; from "
        "https://github.com/KraitGit/efficient-constrained-diffusion (MIT)"
    )

    def data(self, folder: Path) -> None:
        molecule = dipeptide()
        z = molecule.whiten(molecule.frames)
        self.seen, self.unseen = z[~molecule.held_out], z[molecule.held_out]

    def sample(self, n: int, generator: Generator) -> Tensor:
        return self.seen[torch.randint(len(self.seen), (n,), generator=generator)]

    def card(self, model: Karras, n: int) -> str:
        losses = []
        for data in (self.seen[: len(self.unseen)], self.unseen):
            generator = Generator().manual_seed(0)
            x_0 = data.float().repeat(8, 1)
            t = torch.rand(len(x_0), generator=generator)
            noise = torch.randn(x_0.shape, generator=generator)
            losses.append(model.loss(x_0, t, noise).mean().item())
        held_out = "\nLoss on frames that it was trained on: {:.4f}; on those held out: {:.4f}.\n"
        return super().card(model, n) + held_out.format(*losses)
