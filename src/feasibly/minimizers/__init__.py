r"""Minimizers of :math:`\|r(x)\|^2`, each member on its own."""

from .base import Minimizer, Minimum, Residual
from .first_order import SGD, Adam, Fromage, Muon, Polyak
from .gauss_newton import GaussNewton
from .lbfgs import LBFGS, WarmLBFGS

__all__ = [
    "LBFGS",
    "SGD",
    "Adam",
    "Fromage",
    "GaussNewton",
    "Minimizer",
    "Minimum",
    "Muon",
    "Polyak",
    "Residual",
    "WarmLBFGS",
]
