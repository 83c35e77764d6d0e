"""Sample pretrained diffusion and flow models under hard constraints."""

from . import (
    constraints,
    ensemble,
    metrics,
    minimizers,
    models,
    oracles,
    samplers,
    schedules,
    weather,
    wrappers,
)
from .api import plan, sample
from .audits import Audit, audit
from .checks.self_test import self_test
from .constraints import (
    Bounds,
    Composite,
    Constraint,
    Decoded,
    EachMember,
    Equality,
    Inequality,
    LevelSet,
    Linear,
    Observation,
    Scalar,
)
from .denoisers import Denoiser, Karras, Posterior
from .errors import (
    CalibrationWarning,
    ConstraintError,
    DenoiserError,
    InfeasibleWarning,
    SamplingError,
    StoreError,
)
from .figures import plot
from .fitness import Check, check
from .models import LatentDecoder, wrap
from .result import Result, Snapshot
from .samplers import (
    DPS,
    PPR,
    SMC,
    Ancestral,
    CalibratedPPR,
    Method,
    TunedPPR,
)
from .wrappers import Chunked, MixedPrecision

__version__ = "0.2.0"

__all__ = [
    "DPS",
    "PPR",
    "SMC",
    "Ancestral",
    "Audit",
    "Bounds",
    "CalibratedPPR",
    "CalibrationWarning",
    "Check",
    "Chunked",
    "Composite",
    "Constraint",
    "ConstraintError",
    "Decoded",
    "Denoiser",
    "DenoiserError",
    "EachMember",
    "Equality",
    "Inequality",
    "InfeasibleWarning",
    "Karras",
    "LatentDecoder",
    "LevelSet",
    "Linear",
    "Method",
    "MixedPrecision",
    "Observation",
    "Posterior",
    "Result",
    "SamplingError",
    "Scalar",
    "Snapshot",
    "StoreError",
    "TunedPPR",
    "audit",
    "check",
    "constraints",
    "ensemble",
    "metrics",
    "minimizers",
    "models",
    "oracles",
    "plan",
    "plot",
    "sample",
    "samplers",
    "schedules",
    "self_test",
    "weather",
    "wrap",
    "wrappers",
]
