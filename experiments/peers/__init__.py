"""Samplers of other authors, run from checkouts of their repositories.

Nothing of theirs is part of this repository. Clone what you want to compare into a folder `peers`
beside this one's files, or name another folder by the environment variable `FEASIBLY_PEERS`.
"""

__all__ = [
    "PEERS",
    "Missing",
    "Peer",
    "azula_dps",
    "azula_mmps",
    "azula_ppr",
    "commit",
    "eci",
    "load",
    "optional",
    "pcfm",
    "velocity",
]

from .azula_samplers import azula_dps, azula_mmps, azula_ppr
from .checkouts import PEERS, Missing, Peer, commit, load, optional
from .flows import eci, pcfm, velocity
