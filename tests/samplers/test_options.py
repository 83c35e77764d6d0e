"""Options of all baselines: bad ones, costs, and those with which one method is another."""

import math

import pytest
import torch

from feasibly.constraints import Equality, GaussianRandomField, LevelSet
from feasibly.oracles import Gaussian
from feasibly.samplers import (
    CDIM,
    CPS,
    DPS,
    DPSPC,
    ECI,
    HDC,
    MMPS,
    PCFM,
    PDM,
    Ancestral,
    PredictorCorrector,
    ProximalLangevin,
    ReSample,
    TrustSampling,
)
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.samplers.conftest import COV, CURVE, LINE, STEP, plane

NORMAL = Gaussian(torch.zeros(2), COV, LogLogit())
UNREACHABLE = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")

REFUSED = {
    CDIM: {"c": (-0.1, math.nan), "iterations": (-1,)},
    CPS: {"gamma_max": (-1.0, math.nan)},
    DPS: {"zeta": (-0.1, math.nan), "units": ("ve",)},
    DPSPC: {"zeta": (-1.0,), "units": ("edm",), "corrections": (-1,), "delta": (0.0,)},
    ECI: {"mixes": (0,), "resample": (0,)},
    HDC: {"gamma": (-1.0,), "every": (0,)},
    MMPS: {
        "sigma_y": (-1.0,),
        "solver": ("lu",),
        "iterations": (0,),
        "corrections": (-1,),
        "delta": (2.0,),
        "rtol": (-1.0,),
    },
    PCFM: {"penalty": (-1.0, math.nan)},
    PDM: {"repeats": (0,), "kappa": (0.0, 1.5, math.nan), "where": ("pixels",)},
    PredictorCorrector: {"corrections": (-1,), "delta": (0.0, 2.0)},
    ProximalLangevin: {"lmbda": (0.0, math.nan), "start": (-0.1, 1.0), "corrections": (-1,)},
    ReSample: {"zeta": (-1.0,), "travel": (-1,), "gamma": (-1.0,), "every": (0,)},
    TrustSampling: {
        "iterations": (-1,),
        "length": (0.0,),
        "bound": (0.0, math.nan),
        "quantile": (0.0, 1.1),
    },
}


@pytest.mark.parametrize("method", REFUSED)
def test_bad_options_are_refused(method):
    for option, values in REFUSED[method].items():
        for value in values:
            with pytest.raises(ValueError, match=rf"{method.__name__}\({option}=...\)"):
                method(**{option: value})


@pytest.mark.parametrize("method", [ECI, PDM])
def test_there_is_no_eta(method):
    with pytest.raises(TypeError, match="eta"):
        method(eta=0.0)


def test_constraints_that_a_method_cannot_take_are_refused():
    with pytest.raises(ValueError, match=r"needs a Linear constraint.*LevelSet"):
        on(CDIM(), NORMAL, LevelSet(GaussianRandomField(0)))
    with pytest.raises(ValueError, match=r"closed form.*LevelSet"):
        sampled(on(ECI(steps=3), NORMAL, CURVE), 2, (2,))


# what runs take, forward and backward, which is their budget; minimizers ask nothing of networks
COSTS = [
    (on(DPS(steps=7), NORMAL, CURVE), 8, 7),
    (on(DPSPC(steps=5, corrections=3), NORMAL, CURVE), 21, 20),
    (on(MMPS(steps=5, corrections=3), NORMAL, CURVE), 20, 20),
    (on(HDC(steps=6), NORMAL, UNREACHABLE), 6, 0),
    (on(CPS(steps=6), NORMAL, UNREACHABLE), 6, 0),
    (on(PDM(steps=4, repeats=3), NORMAL, LINE), 12, 0),
    (on(PDM(steps=4, repeats=3, where="x_0"), NORMAL, LINE), 24, 0),
    (on(ECI(steps=5, mixes=3), NORMAL, LINE), 15, 0),
    (on(PCFM(steps=6, penalty=0.5), NORMAL, LINE), 6, 0),
    (on(ProximalLangevin(steps=6, corrections=2), NORMAL, LINE), 18, 0),
    (on(TrustSampling(steps=4, iterations=5, bound=math.inf), NORMAL, CURVE), 24, 20),
    (on(PredictorCorrector(steps=6, corrections=2, output="state"), NORMAL), 18, 0),
    (on(Ancestral(steps=4), NORMAL), 5, 0),
]


@pytest.mark.parametrize(("kernel", "forward", "backward"), COSTS)
def test_a_run_costs_its_budget(kernel, forward, backward):
    spent = sampled(kernel, 3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (forward, backward) == kernel.budget()
    assert (spent.member_forward, spent.member_backward) == (3 * forward, 3 * backward)


def first_order(**options):
    return on(Ancestral(order=1, spacing="time", **options), NORMAL)


CORRECTIONS = {"corrections": 2, "delta": 0.3}
SAME = {
    "CDIM": (on(CDIM(steps=6, iterations=0), NORMAL, LINE), first_order(steps=6, eta=0.0)),
    "CPS": (
        on(CPS(steps=6, gamma_max=0.0, eta=0.5), NORMAL, LINE),
        first_order(steps=6, eta=0.5, output="projected"),
    ),
    "DPS": (on(DPS(steps=6, zeta=0.0), NORMAL, CURVE), first_order(steps=6)),
    "DPSPC, not guided": (
        on(DPSPC(steps=6, zeta=0.0, **CORRECTIONS), NORMAL, CURVE),
        on(PredictorCorrector(steps=6, **CORRECTIONS), NORMAL),
    ),
    "DPSPC, not corrected": (
        on(DPSPC(steps=6, zeta=0.2, corrections=0), NORMAL, CURVE),
        on(DPS(steps=6, zeta=0.2), NORMAL, CURVE),
    ),
    "HDC": (
        on(HDC(steps=6, gamma=0.0, output="state"), NORMAL, LINE),
        first_order(steps=6, eta=0.0, output="state"),
    ),
    "MMPS": (
        on(MMPS(steps=6, sigma_y=1e6, **CORRECTIONS), NORMAL, CURVE),
        on(PredictorCorrector(steps=6, output="projected", **CORRECTIONS), NORMAL),
    ),
    "PCFM": (on(PCFM(steps=6, minimize=STEP), NORMAL, LINE), on(ECI(steps=6), NORMAL, LINE)),
    "PredictorCorrector": (
        on(PredictorCorrector(steps=6, corrections=0), NORMAL),
        first_order(steps=6),
    ),
    "TrustSampling": (
        on(TrustSampling(steps=6, iterations=0, output="denoised"), NORMAL, CURVE),
        first_order(steps=6),
    ),
    "TrustSampling, without trust": (
        on(TrustSampling(steps=6, bound=1e-9, output="denoised"), NORMAL, CURVE),
        first_order(steps=6),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_without_its_own_part_a_method_is_another(name):
    one, other = (sampled(s, 6, (2,), dtype=torch.float64).samples for s in SAME[name])
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-6 if name == "MMPS" else 1e-9)


def test_a_cost_may_depend_on_the_number_of_residuals():
    kernel = on(MMPS(steps=5, corrections=3, iterations=3), NORMAL, plane(2, 2))
    assert [kernel.budget(m) for m in (1, 2, 9)] == [(20, 20), (20, 40), (20, 60)]
