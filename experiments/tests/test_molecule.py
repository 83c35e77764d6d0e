import math

import pytest
import torch

from experiments.peers import Missing
from experiments.studies import molecule as study
from experiments.tasks import molecule as task
from experiments.tasks.molecule import PHI, PSI, Molecule, body, dihedral, lengths, wrapped


def frames(n=300, seed=0):
    """Random molecules: a walk along the bonds, whose steps are 0.15 nm before they are shaken."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    steps = 0.15 * torch.nn.functional.normalize(steps, dim=1)
    x = torch.zeros(10, 3, dtype=torch.float64)
    for (i, j), step in zip(task.BONDS, steps, strict=True):
        x[j] = x[i] + step
    return x + 0.02 * torch.randn(n, 10, 3, generator=generator, dtype=torch.float64)


@pytest.fixture
def molecule():
    return Molecule.of(frames())


@pytest.mark.parametrize("degrees", [-170.0, -70.0, 10.0, 90.0])
def test_a_torsion_is_the_angle_that_four_points_were_placed_at(degrees):
    """Looking along the middle bond, clockwise is positive (IUPAC)."""
    a = math.radians(degrees)
    four = torch.tensor([[1, 0, -0.3], [0, 0, 0], [0, 0, 2], [math.cos(a), math.sin(a), 2.7]])
    found = dihedral(four.double()[None], (0, 1, 2, 3))
    assert math.degrees(found.item()) == pytest.approx(degrees)


def test_the_own_frame_forgets_rotation_and_place_and_keeps_shape_and_handedness(molecule):
    white = molecule.whiten(molecule.frames)[~molecule.held_out]
    torch.testing.assert_close(white.T.cov(), torch.eye(24).double())
    x = molecule.frames[:50]
    generator = torch.Generator().manual_seed(1)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator).double())
    turn = turn * torch.linalg.det(turn)
    torch.testing.assert_close(body(x @ turn + 3.0), body(x))
    back = molecule.atoms(molecule.whiten(x))
    torch.testing.assert_close(torch.cdist(back, back), torch.cdist(x, x))
    for torsion in (PHI, PSI):
        torch.testing.assert_close(dihedral(back, torsion), dihedral(x, torsion))
    assert (body(-x) - body(x)).abs().max() > 0.01  # its mirror image is another molecule


def test_the_constraint_is_what_it_says_and_opposite_phi_is_no_solution(molecule):
    z = molecule.whiten(molecule.frames[:1])
    phi = math.degrees(dihedral(molecule.frames[:1], PHI).item())
    for turn, expected in ((0.0, 0.0), (360.0, 0.0), (1.0, -1.0), (180.0, 180.0), (359.0, 1.0)):
        found = molecule.fixed_phi(phi + turn).residual(z).rad2deg().abs()
        assert found.item() == pytest.approx(abs(expected), abs=1e-9)
    off = lengths(molecule.frames[:1]) - molecule.bonds
    torch.testing.assert_close(molecule.fixed_bonds().residual(z), off)
    assert molecule.constraint(-70.0, bonds=True).residual(z).shape == (1, 10)
    assert wrapped(torch.tensor(2 * math.pi - 0.1)).item() == pytest.approx(-0.1, abs=1e-6)


def test_chance_is_the_distance_between_samples_of_one_histogram():
    """Of two bins of 1/2 the distance is that of two binomial shares: |N(0, 1/4n + 1/4m)|."""
    mean, high = study.floor([5, 5], 1000, 4000)
    std = math.sqrt(1 / 4000 + 1 / 16000)
    assert mean == pytest.approx(math.sqrt(2 / math.pi) * std, rel=0.1)
    assert high == pytest.approx(1.96 * std, rel=0.1)
    assert study.distance([1, 3], [2, 2]) == pytest.approx(0.25)
    assert study.histogram(torch.tensor([-math.pi, math.pi]))[:: study.BINS - 1] == [1, 1]


def test_in_the_data_phi_is_held_and_bonds_hardly_depend_on_psi():
    try:
        x = task.dipeptide().frames
    except Missing as error:
        pytest.skip(str(error))
    assert (wrapped(dihedral(x, PHI) + math.radians(70)).rad2deg().abs() < 20).all()
    bonds = task.dipeptide().bonds
    assert ((bonds > 0.12) & (bonds < 0.16)).all()
    weights = study.likelihood(x)
    assert (weights.std() / weights.mean()).item() < 0.05
    near, other = study.reference(x, "phi = -70"), study.reference(x, "bonds, phi = -70")
    assert study.distance(near["psi"], other["psi"]) < 0.01
