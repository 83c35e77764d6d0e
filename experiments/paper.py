"""The paper's numbers, as it prints them; everything that shows them reads them here.

*Predict-Project-Renoise: Sampling Diffusion Models under Hard Constraints* (Rochman-Sharabi &
Louppe, 2026), https://arxiv.org/abs/2601.21033.
"""

TOLERANCE = {"data2d": 4e-6, "ks": 4e-4}
"""The violation up to which a sample counts as feasible (Section 5)."""

DATA2D = {
    "PPR": {"feasible": 0.790, "knn": 0.375, "knn_spread": 0.026},
    "DPS": {"feasible": 0.010, "knn": 0.279, "knn_spread": 0.046},
    "MMPS": {"feasible": 0.036, "knn": 0.340, "knn_spread": 0.034},
    "TS": {"feasible": 0.001, "knn": 0.124, "knn_spread": 0.027},
    "CPS": {"feasible": 0.316, "knn": 0.373, "knn_spread": 0.030},
    "PDM": {"feasible": 0.014, "knn": 0.002, "knn_spread": 0.000},
    "HDC": {"feasible": 0.303, "knn": 0.375, "knn_spread": 0.030},
}
"""Table 2, whose row Trust is TS: the feasible share, the k-NN rate and its stated spread."""

_KS = ("feasible", "rmse", "crps", "skill", "spread", "max_norm")

KS = {
    "PPR": dict(zip(_KS, (0.827, 0.503, 0.177, 0.365, 0.385, 1.80), strict=True)),
    "DPS": dict(zip(_KS, (0.000, 1.089, 0.352, 0.666, 0.865, 17.11), strict=True)),
    "MMPS": dict(zip(_KS, (0.010, 0.830, 0.265, 0.519, 0.672, 19.28), strict=True)),
    "TS": dict(zip(_KS, (0.000, 0.614, 0.206, 0.427, 0.487, 2.01), strict=True)),
    "CPS": dict(zip(_KS, (0.000, 1.179, 0.436, 0.805, 0.890, 4.50), strict=True)),
    "PDM": dict(zip(_KS, (0.008, 1.137, 0.463, 0.831, 0.798, 4.48), strict=True)),
    "HDC": dict(zip(_KS, (0.000, 1.152, 0.425, 0.787, 0.870, 4.36), strict=True)),
}
"""Table 3, of the sine of three frames."""

KS_RESIDUALS = 384
"""The residuals of that sine: three frames of 128 points."""

EVALUATIONS = {
    "PPR": {"steps": 64, "forward": 1216, "backward": 1024},
    "DPS": {"steps": 1024, "forward": 2048, "backward": 1024},
    "MMPS": {"steps": 1024, "forward": 5120, "backward": 20480},
    "TS": {"steps": 192, "forward": 24960, "backward": 12288},
    "CPS": {"steps": 1024, "forward": 1024, "backward": 0},
    "PDM": {"steps": 384, "forward": 24576, "backward": 0},
    "HDC": {"steps": 1024, "forward": 1024, "backward": 0},
}
"""The network evaluations of its table of results on KS (Appendix C)."""
