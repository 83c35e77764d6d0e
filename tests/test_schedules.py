import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly import schedules
from feasibly.schedules import (
    EDM,
    VE,
    VP,
    Cosine,
    Flow,
    LogLogit,
    Rectified,
    RectifiedVE,
    Schedule,
    SubVP,
    clock,
    rates,
)

check = settings(derandomize=True, deadline=None, max_examples=30)

SCHEDULES = [
    LogLogit(),
    LogLogit(1e-4, 1e4, spread=4.0),
    VE(),
    VE(1e-2, 50.0),
    EDM(),
    EDM(1e-3, 100.0, rho=3.0),
    VP(),
    VP(0.01, 5.0, tau=1e-3),
    Cosine(),
    Cosine(tau=0.05),
    Rectified(),
    Rectified(tau=1e-4),
    RectifiedVE(),
    RectifiedVE(1e-2, 50.0),
    SubVP(),
    SubVP(0.2, 8.0, tau=1e-2),
    Flow(),
    Flow(lambda s: torch.sin(math.pi / 2 * s), lambda s: torch.cos(math.pi / 2 * s), tau=1e-2),
]
schedule_of_all = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)

times = st.floats(0, 1)


def sigmas() -> st.SearchStrategy[tuple[float, float]]:
    low = st.floats(-4, 0).map(lambda e: 10**e)
    ratio = st.floats(0.5, 5).map(lambda e: 10**e)
    return st.tuples(low, ratio).map(lambda pair: (pair[0], pair[0] * pair[1]))


# from 1e-5, since float32 cannot tell 1 - tau from 1 much below
taus = st.floats(-5, -1).map(lambda e: 10**e)


def log_logit(ends: tuple[float, float], share: float) -> LogLogit:
    # eps = 1/2, a constant schedule, is reached at spread = log2(sigma_max / sigma_min) / 2
    return LogLogit(*ends, spread=share * math.log2(ends[1] / ends[0]) / 2)


log_logits = st.builds(log_logit, sigmas(), st.floats(0.1, 0.9))
any_schedule = st.one_of(
    log_logits,
    st.builds(lambda ends: VE(*ends), sigmas()),
    st.builds(lambda ends, rho: EDM(*ends, rho), sigmas(), st.floats(1, 10)),
    st.builds(VP, st.floats(0.01, 1), st.floats(2, 30), taus),
    st.builds(Cosine, taus),
    st.builds(Rectified, taus),
    st.builds(lambda ends: RectifiedVE(*ends), sigmas()),
    st.builds(SubVP, st.floats(0.01, 1), st.floats(2, 30), taus),
    st.builds(Flow, tau=taus),
)


def double(t: float) -> torch.Tensor:
    return torch.tensor(t, dtype=torch.float64)


def test_every_schedule_of_the_module_is_tested():
    public = {getattr(schedules, name) for name in schedules.__all__}
    public = {each for each in public if isinstance(each, type)} - {Schedule}
    assert public == {type(schedule) for schedule in SCHEDULES}


@given(any_schedule, times, times)
@check
def test_signal_to_noise_decreases_in_time(schedule, t_1, t_2):
    gap = abs(t_1 - t_2)
    (a_s, s_s), (a_t, s_t) = schedule(double(min(t_1, t_2))), schedule(double(max(t_1, t_2)))
    assert a_t / s_t <= a_s / s_s * (1 + 1e-12)
    assert a_t <= a_s * (1 + 1e-12)
    assert s_s <= s_t * (1 + 1e-12)
    if gap > 1e-6:
        assert a_t / s_t < a_s / s_s


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(any_schedule, times)
@check
def test_scales_are_positive_and_finite_in_the_shape_and_dtype_of_time(dtype, schedule, t):
    time = torch.tensor([[t, 0.0], [1.0, t]], dtype=dtype)
    before = time.clone()
    for k, scale in enumerate(schedule(time)):
        assert scale.shape == time.shape
        assert scale.dtype == dtype
        assert scale.isfinite().all()
        assert (scale > 0).all()
        # each time on its own; a float32 time close to one cannot give 1 - t better than this
        alone = schedule(time[0, 0].double())[k]
        torch.testing.assert_close(scale[0, 0].double(), alone, rtol=1e-3, atol=1e-6)
    assert torch.equal(time, before)


def test_log_logit_default_ends_are_those_of_the_paper():
    sigma = LogLogit()(torch.tensor([0.0, 1.0], dtype=torch.float64))[1]
    assert sigma[0].item() == pytest.approx(1.1227e-3, rel=1e-4)
    assert sigma[1].item() == pytest.approx(89.07, rel=1e-4)


@given(log_logits, times)
@check
def test_log_logit_is_symmetric_about_the_geometric_mean(schedule, t):
    product = schedule(double(t))[1] * schedule(1 - double(t))[1]
    assert product.item() == pytest.approx(schedule.sigma_min * schedule.sigma_max, rel=1e-9)


@given(log_logits)
@check
def test_log_logit_ends_miss_the_nominal_ones_by_the_stated_factor(schedule):
    low, high = schedule(torch.tensor([0.0, 1.0], dtype=torch.float64))[1]
    eps = (schedule.sigma_min / schedule.sigma_max) ** (0.5 / schedule.spread)
    factor = (1 - eps) ** schedule.spread
    assert low.item() == pytest.approx(schedule.sigma_min / factor, rel=1e-9)
    assert high.item() == pytest.approx(schedule.sigma_max * factor, rel=1e-9)


@pytest.mark.parametrize("schedule", [VE(2e-3, 70.0), EDM(2e-3, 70.0)], ids=repr)
def test_exploding_schedules_start_and_end_at_their_bounds(schedule):
    alpha, sigma = schedule(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(sigma, torch.tensor([2e-3, 70.0], dtype=torch.float64))
    assert (alpha == 1).all()


def test_ve_is_log_linear_and_edm_is_linear_in_its_root():
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    for transformed in (VE()(t)[1].log(), EDM(rho=7.0)(t)[1] ** (1 / 7)):
        torch.testing.assert_close(
            transformed.diff(n=2), torch.zeros(7).double(), atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("schedule", [VP(), VP(0.2, 8.0), Cosine(), Cosine(0.1)], ids=repr)
@given(t=times)
@check
def test_variance_preserving_scales_lie_on_the_unit_circle(schedule, t):
    alpha, sigma = schedule(double(t))
    assert (alpha**2 + sigma**2).item() == pytest.approx(1, abs=1e-14)


@given(taus, times)
@check
def test_rectified_scales_sum_to_one(tau, t):
    alpha, sigma = Rectified(tau)(double(t))
    assert (alpha + sigma).item() == pytest.approx(1, abs=1e-15)


def test_vp_solves_the_equation_of_its_linear_rate():
    beta_0, beta_1 = 0.1, 20.0
    schedule = VP(beta_0, beta_1, tau=1e-4)
    t = torch.linspace(0, 1, 11, dtype=torch.float64).requires_grad_()
    (rate,) = torch.autograd.grad(schedule(t)[0].log().sum(), t)
    time = 1e-4 + (1 - 1e-4) * t.detach()
    # d log(alpha) / dt = - beta(t) / 2, by the chain rule through t -> tau + (1 - tau) t
    torch.testing.assert_close(rate, -(beta_0 + time * (beta_1 - beta_0)) / 2 * (1 - 1e-4))


def test_vp_noise_keeps_full_relative_accuracy_near_the_data():
    schedule = VP(tau=1e-8)
    # log(alpha) is about -5e-10, where 1 - alpha^2 has lost seven digits
    sigma = schedule(double(0.0))[1].item()
    log_alpha = -(1e-16) * (20.0 - 0.1) / 4 - 1e-8 * 0.1 / 2
    assert sigma == pytest.approx(math.sqrt(-math.expm1(2 * log_alpha)), rel=1e-12, abs=0)


BAD = {
    "log-logit zero": lambda: LogLogit(sigma_min=0.0),
    "log-logit order": lambda: LogLogit(2.0, 1.0),
    "log-logit infinite": lambda: LogLogit(1.0, math.inf),
    "log-logit nan": lambda: LogLogit(math.nan, 1.0),
    "log-logit spread": lambda: LogLogit(spread=0.0),
    # eps = 10^(-1/4) > 1/2, for which the noise would shrink with time
    "log-logit backwards": lambda: LogLogit(0.1, 10.0, spread=4.0),
    "ve negative": lambda: VE(-1.0, 1.0),
    "rectified ve": lambda: RectifiedVE(1.0, 1.0),
    "ve equal": lambda: VE(1.0, 1.0),
    "edm order": lambda: EDM(80.0, 2e-3),
    "edm rho": lambda: EDM(rho=-7.0),
    "vp beta": lambda: VP(beta_0=0.0),
    "vp order": lambda: VP(20.0, 0.1),
    "vp tau": lambda: VP(tau=0.0),
    "cosine zero": lambda: Cosine(tau=0.0),
    "cosine large": lambda: Cosine(tau=1.0),
    "rectified zero": lambda: Rectified(tau=0.0),
    "rectified half": lambda: Rectified(tau=0.5),
    "flow zero": lambda: Flow(tau=0.0),
    "flow half": lambda: Flow(tau=0.5),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD.keys())
def test_bad_parameters_are_refused_with_the_name_of_the_schedule(make):
    with pytest.raises(
        ValueError, match=r"^(LogLogit|VE|EDM|VP|Cosine|Rectified|RectifiedVE|Flow) needs"
    ):
        make()


def test_repr_gives_the_schedule_back():
    for schedule in SCHEDULES:
        if not repr(schedule).startswith("Flow(A"):  # with functions of the user's
            again = eval(repr(schedule), vars(schedules))
            assert vars(again) == pytest.approx(vars(schedule))


@schedule_of_all
def test_rates_are_the_derivatives_with_respect_to_the_schedules_own_clock(schedule):
    t, h = double(0.4), 1e-5
    (a_0, s_0), (a_1, s_1) = schedule(t - h), schedule(t + h)
    span = schedule.time(t + h) - schedule.time(t - h)
    d_alpha, d_sigma = rates(schedule, t)
    torch.testing.assert_close(d_alpha, (a_1 - a_0) / span, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(d_sigma, (s_1 - s_0) / span, rtol=1e-6, atol=1e-8)


def test_the_clock_of_a_schedule_is_what_its_formula_is_written_in():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(Rectified(0.01).time(t), Rectified(0.01)(t)[1])
    torch.testing.assert_close(Flow(tau=0.01).time(t), Flow(tau=0.01)(t)[0])
    s = VP().time(t)
    torch.testing.assert_close(VP()(t)[0], torch.exp(-(s**2) * 19.9 / 4 - s * 0.05))
    torch.testing.assert_close(clock(VE())(t), t)
    torch.testing.assert_close(clock(lambda t: (1 - t, t))(t), t)


def test_sub_vp_has_the_square_of_the_noise_of_vp():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    (a, s), (a_vp, s_vp) = SubVP(tau=1e-2)(t), VP(tau=1e-2)(t)
    torch.testing.assert_close(a, a_vp)
    torch.testing.assert_close(s, s_vp**2)


def test_rectified_flow_in_exploding_form_has_its_noise_to_signal_ratio():
    t = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    alpha, sigma = Rectified(1e-9)(t)
    torch.testing.assert_close(RectifiedVE(1e-9, 1e9)(t)[1], sigma / alpha, rtol=1e-6, atol=0)
