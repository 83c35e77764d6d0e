"""Methods, one file each, and what several of them share: `base`, `guidance`, `projection`,
`moments`, and the parts of :class:`SMC`."""

from .ancestral import Ancestral
from .base import Method
from .calibrated import CalibratedPPR
from .cdim import CDIM
from .cps import CPS
from .dps import DPS
from .dps_pc import DPSPC
from .eci import ECI
from .hdc import HDC
from .mmps import MMPS
from .pcfm import PCFM
from .pdm import PDM
from .post_hoc import PostHoc
from .ppr import PPR
from .predictor_corrector import PredictorCorrector
from .proximal import ProximalLangevin
from .rejection import Rejection
from .resample import ReSample
from .smc import SMC
from .truncated import TruncatedPPR
from .trust import TrustSampling
from .tuned import TunedPPR

METHODS: dict[str, type[Method]] = {
    "ppr": PPR,
    "ppr-tuned": TunedPPR,
    "truncated": TruncatedPPR,
    "calibrated": CalibratedPPR,
    "smc": SMC,
    "rejection": Rejection,
    "dps": DPS,
    "dps-pc": DPSPC,
    "mmps": MMPS,
    "hdc": HDC,
    "resample": ReSample,
    "cps": CPS,
    "proximal": ProximalLangevin,
    "trust": TrustSampling,
    "pdm": PDM,
    "cdim": CDIM,
    "eci": ECI,
    "pcfm": PCFM,
    "post-hoc": PostHoc,
    "ancestral": Ancestral,
    "predictor-corrector": PredictorCorrector,
}
"""Every method, by the name that the command line has for it."""

__all__ = [
    "CDIM",
    "CPS",
    "DPS",
    "DPSPC",
    "ECI",
    "HDC",
    "METHODS",
    "MMPS",
    "PCFM",
    "PDM",
    "PPR",
    "SMC",
    "Ancestral",
    "CalibratedPPR",
    "Method",
    "PostHoc",
    "PredictorCorrector",
    "ProximalLangevin",
    "ReSample",
    "Rejection",
    "TruncatedPPR",
    "TrustSampling",
    "TunedPPR",
]
