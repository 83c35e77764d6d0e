"""Sample pretrained diffusion and flow models under hard constraints."""

from . import adapters, constraints, ensemble, metrics, minimizers, oracles, samplers, schedules
from .adapters import LatentDecoder, self_test, wrap
from .api import plan, sample
from .constraints import (
    Bounds,
    Composite,
    Constraint,
    Decoded,
    Equality,
    Inequality,
    LevelSet,
    Linear,
    Observation,
    Scalar,
)
from .denoisers import Chunked, Denoiser, Karras, MixedPrecision, Posterior
from .errors import (
    CalibrationWarning,
    ConstraintError,
    DenoiserError,
    InfeasibleWarning,
    SamplingError,
    StoreError,
)
from .result import Result, Snapshot
from .samplers import (
    PPR,
    Ancestral,
    CalibratedPPR,
    PostHoc,
    PredictorCorrector,
    Rejection,
    Sampler,
    TruncatedPPR,
)

__version__ = "0.1.0"

__all__ = [
    "PPR",
    "Ancestral",
    "Bounds",
    "CalibratedPPR",
    "CalibrationWarning",
    "Chunked",
    "Composite",
    "Constraint",
    "ConstraintError",
    "Decoded",
    "Denoiser",
    "DenoiserError",
    "Equality",
    "Inequality",
    "InfeasibleWarning",
    "Karras",
    "LatentDecoder",
    "LevelSet",
    "Linear",
    "MixedPrecision",
    "Observation",
    "PostHoc",
    "Posterior",
    "PredictorCorrector",
    "Rejection",
    "Result",
    "Sampler",
    "SamplingError",
    "Scalar",
    "Snapshot",
    "StoreError",
    "TruncatedPPR",
    "adapters",
    "constraints",
    "ensemble",
    "metrics",
    "minimizers",
    "oracles",
    "plan",
    "sample",
    "samplers",
    "schedules",
    "self_test",
    "wrap",
]
