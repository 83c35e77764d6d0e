"""Paths of a robot arm with seven joints round two obstacles: the data, the arm and a prior.

The data are 400 paths of 20 postures, of the repository of Landing (MIT licence), of which the
files alone are read. Each goes from one place to another at one height, outside of the first of
two balls and inside of the second, or the other way round: its label. The arm is Franka Emika's
Panda, by the table of its manual.

A posture is seven angles in radians, where the files have cosines and sines: so every sample is a
posture, differences are joint velocities, and 140 equalities fewer have to hold. Angles are
continued along a path. The first three axes meet in the shoulder, so that (q1 + pi, -q2, q3 + pi)
is the same posture as (q1, q2, q3); we keep the one whose second angle is positive. Then no angle
of the data comes near to a full turn.

References:
    | Efficient Diffusion Models under Nonconvex Equality and Inequality Constraints via Landing
    | https://github.com/KraitGit/efficient-constrained-diffusion
    | https://frankaemika.github.io/docs/control_parameters.html (the arm)
"""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly.constraints import Composite, Constraint, Equality, Inequality
from feasibly.denoisers import Karras
from feasibly.files import load_tensors
from feasibly.schedules import LogLogit

from ..peers import folder
from .darcy import MLP
from .learned import HOME

PEER = "efficient-constrained-diffusion"
POINTS, JOINTS = 20, 7
SHAPE = (POINTS, JOINTS)
HELD_OUT = 100
"""How many paths are held out, drawn at random."""

LINKS = (
    (0.0, 0.0, 0.333),
    (-1.0, 0.0, 0.0),
    (1.0, 0.0, 0.316),
    (1.0, 0.0825, 0.0),
    (-1.0, -0.0825, 0.384),
    (1.0, 0.0, 0.0),
    (1.0, 0.088, 0.0),
)
"""Of each joint, in Craig's convention: the sine of the twist, which is a right angle or none, and
the offsets along x and z in metres."""

HAND = 0.107
REACH = 0.855
"""The arm's length in metres, as its maker states it."""

START, GOAL = torch.tensor([[0.4, -0.5, 0.205], [0.4, 0.5, 0.205]])
OBSTACLES = torch.tensor([[0.4, -0.3, 0.205], [0.4, 0.3, 0.205]])
RADIUS = 0.1
EXACT = 1e-6 * REACH
MIDDLE, ABREAST = 10, 5
"""The posture that passes a waypoint, and one that is abreast of the first obstacle."""


def skeleton(q: Tensor) -> Tensor:
    """Returns where the arm's joints and its hand are, in metres, with shape (*, 8, 3), for
    angles `q`, with shape (*, 7)."""
    R = torch.eye(3, dtype=q.dtype).expand(*q.shape[:-1], 3, 3)
    p = torch.zeros_like(q[..., :3])
    found = []
    for angle, (twist, a, d) in zip(q.unbind(-1), LINKS, strict=True):
        p = p + R @ torch.tensor([a, -twist * d, (twist == 0) * d], dtype=q.dtype)
        c, s = angle.cos()[..., None], angle.sin()[..., None]
        x, y, z = R.unbind(-1)
        if twist:
            y, z = twist * z, -twist * y
        R = torch.stack((c * x + s * y, c * y - s * x, z), dim=-1)
        found.append(p)
    return torch.stack([*found, p + HAND * R[..., 2]], dim=-2)


def hand(q: Tensor) -> Tensor:
    """Returns where the hand is, with shape (*, 3)."""
    return skeleton(q)[..., -1, :]


def depth(q: Tensor) -> Tensor:
    """Returns how deep each posture is inside of an obstacle, by the moving joints and the hand,
    with shape (B, 20). It is negative outside."""
    joints = skeleton(q)[..., [2, 3, 4, 6, 7], :]  # others are fixed, or in one of these places
    distance = (joints[..., None, :] - OBSTACLES.to(q)).norm(dim=-1)
    return RADIUS - distance.amin(dim=(-2, -1))


def modes(q: Tensor) -> Tensor:
    """Returns the way of each path: its label, and 2 more where the elbow is turned to the other
    side, with shape (B). A way past both obstacles on one side is mode 4: no datum takes it."""
    x = hand(q)[..., 0]
    first, second = x[:, ABREAST] < GOAL[0], x[:, POINTS - 1 - ABREAST] < GOAL[0]
    return torch.where(first == second, 4, first + 2 * (q[:, 0, 4] > 0))


def constraint(task: str) -> Constraint:
    """Returns the constraint of a task of :data:`TASKS`."""
    places = TASKS[task]()

    def missed(q: Tensor) -> Tensor:
        r = (hand(q[:, list(places)]) - torch.stack(list(places.values())).to(q)).flatten(1)
        return torch.cat([r, hand(q[:, 1:-1])[..., 2] - GOAL[2]], dim=1) if task == WHOLE else r

    return Composite([Equality(missed, EXACT**2), Inequality(depth, atol=EXACT)])


def _goal() -> dict[int, Tensor]:
    return {POINTS - 1: GOAL}


def _waypoint() -> dict[int, Tensor]:
    _, held_out = paths()
    return _goal() | {MIDDLE: hand(held_out[modes(held_out) == 0][0, MIDDLE])}


def _ends() -> dict[int, Tensor]:
    return {0: START} | _goal()


WAYPOINT, WHOLE = "goal and waypoint", "whole task"
TASKS = {
    "goal": _goal,
    WAYPOINT: _waypoint,
    WHOLE: _ends,
}
"""Of each task the places where the hand has to be, by the posture. All paths of the data have one
goal, so the waypoint is from a held-out path. The last task is that of the data's authors."""


@lru_cache(maxsize=1)
def paths() -> tuple[Tensor, Tensor]:
    """Returns the paths to train on and those held out, with shapes (300, 20, 7), (100, 20, 7).

    Raises:
        Missing: If there is no checkout of the repository.
    """
    file = folder(PEER) / "robot_arm" / f"robot_7dof_joints_T_{POINTS}_paths.npy"
    q = continued(np.load(file).astype(np.float64))
    order = torch.randperm(len(q), generator=Generator().manual_seed(0))
    return q[order[HELD_OUT:]], q[order[:HELD_OUT]]


def continued(pairs: np.ndarray) -> Tensor:
    """Returns the angles of cosines and sines, with shape (N, T, 14), as the module says."""
    cos, sin = np.split(pairs, 2, axis=2)
    q = torch.from_numpy(np.unwrap(np.arctan2(sin, cos), axis=1))
    other = q[:, 0, 1] < 0
    q[other, :, 0] -= math.pi
    q[other, :, 1] *= -1
    q[other, :, 2] -= math.pi * q[other, :1, 2].sign()
    return q


class ArmPrior(Karras):
    """A network next to the best linear denoiser of the data's principal components."""

    center: Tensor
    axes: Tensor
    variance: Tensor

    def __init__(self, width: int = 320, layers: int = 3) -> None:
        D = POINTS * JOINTS
        super().__init__(MLP(D, width, layers), LogLogit(), sigma_data=0.5)
        self.register_buffer("center", torch.zeros(D))
        self.register_buffer("axes", torch.eye(D))
        self.register_buffer("variance", torch.ones(D))

    def fit(self, x: Tensor) -> None:
        """Takes the principal components from data `x`, with shape (N, 20, 7)."""
        x = x.flatten(start_dim=1)
        self.center.copy_(x.mean(dim=0))
        variance, axes = torch.linalg.eigh((x - x.mean(dim=0)).T.cov(correction=0))
        self.axes.copy_(axes)
        self.variance.copy_(variance.clamp_min(1e-6))

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.reshape(-1, 1)
        scale = torch.sqrt(sigma**2 + self.sigma_data**2)
        z = (x.flatten(start_dim=1) - self.center) @ self.axes
        output = self.backbone(z / scale, sigma.log().reshape(-1) / 4)
        linear = self.variance / (sigma**2 + self.variance) * z
        found = linear + sigma * self.sigma_data / scale * output
        return (self.center + found @ self.axes.T).reshape(x.shape)


def prior(path: Path = HOME / "arm.safetensors") -> ArmPrior:
    """Loads the trained denoiser of paths, with shape (20, 7)."""
    weights, _ = load_tensors(path)
    model = ArmPrior()
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model.eval().requires_grad_(False)
