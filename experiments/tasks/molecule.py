"""Alanine dipeptide: the ten heavy atoms of a molecule with two backbone torsions, phi and psi.

The 10,000 frames of molecular dynamics come with the code of "efficient constrained diffusion"
(MIT licence), and are read from a checkout, see :mod:`experiments.peers`. In them phi stays within
about 10 degrees of -70, and psi is free.

A sample is the positions of the atoms in the frame of three of them, so that it has no rotation
and no translation: CA is the origin, N lies on the first axis, and C in the plane of the first
two. The 24 coordinates that this leaves free are whitened by their covariance. A distribution
given phi and bonds does not depend on the coordinates, since the residuals are phi and lengths.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from feasibly.constraints import Composite, Constraint, Equality
from feasibly.oracles import GaussianMixture
from feasibly.schedules import Schedule

from .. import peers

PEER = "efficient-constrained-diffusion"
ELEMENTS = "CCONCCCONC"
BONDS = ((0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (4, 6), (6, 7), (6, 8), (8, 9))
PHI, PSI = (1, 3, 4, 6), (3, 4, 6, 8)
N, CA, C = 3, 4, 6
FREE = [i for i in range(30) if i not in (10, 11, 12, 13, 14, 20)]
"""Which of the 30 coordinates are not zero in the molecule's own frame."""

ATOL = 1e-6
"""The accuracy of each bond, in nm, and of phi, in radians."""


def dihedral(x: Tensor, atoms: tuple[int, ...]) -> Tensor:
    """Returns the torsion about the middle bond of four atoms, in radians, with shape (B)."""
    a, axis, b = x[:, atoms].diff(dim=1).unbind(dim=1)
    one, other = torch.cross(a, axis, dim=1), torch.cross(axis, b, dim=1)
    sine = axis.norm(dim=1) * (a * other).sum(dim=1)
    return torch.atan2(sine, (one * other).sum(dim=1))


def lengths(x: Tensor) -> Tensor:
    """Returns the lengths of the bonds, with shape (B, 9)."""
    i, j = zip(*BONDS, strict=True)
    return (x[:, i] - x[:, j]).norm(dim=2)


def wrapped(angle: Tensor) -> Tensor:
    """Returns angles in (-pi, pi]. Unlike a sine, it has one zero a turn."""
    return torch.atan2(angle.sin(), angle.cos())


def body(x: Tensor) -> Tensor:
    """Turns and moves molecules into their own frames, with shape (B, 24)."""
    first, second = (x[:, i] - x[:, CA] for i in (N, C))
    e = torch.nn.functional.normalize(first, dim=1)
    f = torch.nn.functional.normalize(second - (second * e).sum(1, keepdim=True) * e, dim=1)
    axes = torch.stack([e, f, torch.cross(e, f, dim=1)], dim=2)
    return ((x - x[:, CA, None]) @ axes).flatten(start_dim=1)[:, FREE]


@dataclass(frozen=True)
class Molecule:
    """The frames, and the whitening by those that are not held out.

    Attributes:
        frames: All frames, in nm, with shape (10000, 10, 3).
        held_out: Which of them no prior is trained on: every tenth.
    """

    frames: Tensor
    held_out: Tensor
    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, frames: Tensor) -> "Molecule":
        held_out = torch.arange(len(frames)) % 10 == 0
        y = body(frames)[~held_out]
        return cls(frames, held_out, y.mean(dim=0), torch.linalg.cholesky(y.T.cov()))

    def whiten(self, x: Tensor) -> Tensor:
        """Maps molecules, with shape (B, 10, 3), to samples, with shape (B, 24)."""
        y = (body(x) - self.mean).T
        return torch.linalg.solve_triangular(self.root, y, upper=False).T

    def atoms(self, z: Tensor) -> Tensor:
        """Maps samples to the positions of their atoms, in nm."""
        x = z.new_zeros(len(z), 30)
        x[:, FREE] = self.mean.to(z) + z @ self.root.to(z).T
        return x.reshape(-1, 10, 3)

    def mixture(self, schedule: Schedule) -> GaussianMixture:
        """Returns the exact denoiser of a model of the samples: a normal distribution for each 10
        degrees of psi with enough frames to fit one."""
        z, bins = self.whiten(self.frames), (dihedral(self.frames, PSI).rad2deg() / 10).floor()
        parts = [z[bins == k] for k in range(-18, 18) if (bins == k).sum() >= 60]
        weights = torch.tensor([float(len(part)) for part in parts])
        mu = torch.stack([part.mean(dim=0) for part in parts])
        return GaussianMixture(weights, mu, torch.stack([p.T.cov() for p in parts]), schedule)

    @property
    def bonds(self) -> Tensor:
        """The mean lengths of the bonds, in nm, with shape (9)."""
        return lengths(self.frames).mean(dim=0)

    def fixed_phi(self, degrees: float) -> Constraint:
        value = math.radians(degrees)
        return Equality(lambda z: wrapped(dihedral(self.atoms(z), PHI) - value), atol=ATOL)

    def fixed_bonds(self) -> Constraint:
        mean = self.bonds
        return Equality(lambda z: lengths(self.atoms(z)) - mean.to(z), atol=ATOL)

    def constraint(self, degrees: float | None, bonds: bool) -> Constraint:
        """Returns the constraint on phi, unless it is None, and on the bonds, if so."""
        parts = [] if degrees is None else [self.fixed_phi(degrees)]
        parts += [self.fixed_bonds()] if bonds else []
        return parts[0] if len(parts) == 1 else Composite(parts)


@lru_cache(maxsize=1)
def dipeptide() -> Molecule:
    """Reads the frames.

    Raises:
        Missing: If there is no checkout.
    """
    path = peers.folder(PEER) / "dipeptide" / "dipeptide.npy"
    return Molecule.of(torch.from_numpy(np.load(path)).double() / 10)
