from types import SimpleNamespace

import pytest
import torch
from torch import nn

import feasibly
from feasibly.models.diffusers import Shifted
from feasibly.models.tables import AlphaBar, TimeTable
from feasibly.schedules import rates

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")


class Model(nn.Module):
    """An exact network in the call of diffusers, told the step of a table of alpha-bar or what
    else `scales` takes."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, sample, timestep, class_labels=None):
        return SimpleNamespace(sample=self.net(sample, timestep))


def table(scheduler):
    """Scales at a step of the scheduler, and between steps linear in log-SNR.

    Between steps there is nothing to compare with, since no scheduler says what its model means
    there: this interpolates as the adapter does, so that the tests hold on to that convention and
    do not judge it. At the steps the values are the scheduler's own table, and there, and in the
    tests against `scheduler.step` below, a wrong adapter fails.
    """
    alpha_bar = scheduler.alphas_cumprod.double()
    log_snr = (alpha_bar / (1 - alpha_bar)).log()
    log_snr = log_snr[log_snr.isfinite()]

    def scales(u):
        low = u.floor().long().clamp(max=len(log_snr) - 2)
        snr = log_snr[low] + (u - low) * (log_snr[low + 1] - log_snr[low])
        alpha, sigma = torch.sigmoid(snr).sqrt(), torch.sigmoid(-snr).sqrt()
        return alpha, sigma, alpha, sigma

    return scales


def model(scheduler, exact, scales=None):
    kinds = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
    kind = kinds.get(scheduler.config.get("prediction_type"), "velocity")
    return Model(exact(kind, scales or table(scheduler)))


TABLES = ["DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler"]
EULER = ["EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler"]


CASES = [(name, "epsilon") for name in (*TABLES, *EULER)]
CASES += [(name, p) for name in (TABLES[0], EULER[0]) for p in ("v_prediction", "sample")]


@pytest.mark.parametrize(("name", "prediction"), CASES)
def test_tables_give_the_posterior_mean(name, prediction, exact, gap):
    scheduler = getattr(diffusers, name)(prediction_type=prediction)
    assert gap(feasibly.wrap(model(scheduler, exact), "diffusers", scheduler)) < 1e-5


@pytest.mark.parametrize("betas", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_at_the_steps_of_a_table_the_schedule_is_the_table(betas):
    scheduler = diffusers.DDPMScheduler(beta_schedule=betas)
    schedule = AlphaBar(scheduler.alphas_cumprod)
    kept = len(schedule.log_nsr)
    assert kept >= 999
    alpha, sigma = schedule(torch.linspace(0, 1, kept, dtype=torch.float64))
    alpha_bar = scheduler.alphas_cumprod[:kept].double()
    torch.testing.assert_close(alpha, alpha_bar.sqrt(), rtol=1e-9, atol=0)
    torch.testing.assert_close(sigma, (1 - alpha_bar).sqrt(), rtol=1e-9, atol=0)
    fine = torch.linspace(0, 1, 9999, dtype=torch.float64)
    assert (schedule(fine)[1].diff() > 0).all()


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("name", ["DDPMScheduler", "DDIMScheduler"])
def test_the_estimate_is_that_of_the_schedulers_own_step(name, prediction):
    scheduler = getattr(diffusers, name)(prediction_type=prediction, clip_sample=False)
    scheduler.set_timesteps(1000)

    class Net(nn.Module):
        def forward(self, sample, timestep):
            return (sample.tanh() + timestep[:, None] / 1000,)

    adapter = feasibly.wrap(Net(), "diffusers", scheduler)
    x = torch.randn(4, 2, dtype=torch.float64)
    for step in (1, 10, 500, 998):
        told = torch.full((4,), step, dtype=torch.float64)
        output = Net()(x, told)[0]
        expected = scheduler.step(output, step, x).pred_original_sample
        found = adapter(x, torch.tensor(step / 999, dtype=torch.float64)).mean
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_estimate_is_that_of_eulers_own_step():
    """On states of unit signal, which are ours divided by alpha."""
    scheduler = diffusers.EulerDiscreteScheduler(prediction_type="v_prediction")
    scheduler.set_timesteps(1000)

    class Net(nn.Module):
        def forward(self, sample, timestep):
            return (sample.tanh() + timestep[:, None] / 1000,)

    adapter = feasibly.wrap(Net(), "diffusers", scheduler)
    for step in (999, 400, 3):
        scheduler.set_timesteps(1000)
        t = torch.tensor(step / 999, dtype=torch.float64)
        alpha, sigma = adapter.schedule(t)
        x = torch.randn(4, 2, dtype=torch.float64) * (1 + (sigma / alpha) ** 2).sqrt()
        inner = scheduler.scale_model_input(x, torch.tensor(float(step)))
        output = Net()(inner, torch.full((4,), step, dtype=torch.float64))[0]
        expected = scheduler.step(output, torch.tensor(float(step)), x).pred_original_sample
        torch.testing.assert_close(adapter(alpha * x, t).mean, expected, rtol=1e-4, atol=1e-4)


def test_eulers_continuous_time_is_a_quarter_of_the_log_of_sigma(exact, gap):
    scheduler = diffusers.EulerDiscreteScheduler(
        prediction_type="v_prediction", timestep_type="continuous"
    )

    def scales(told):
        noise = (4 * told).exp()
        alpha = 1 / (1 + noise**2).sqrt()
        return alpha, noise * alpha, alpha, alpha

    assert gap(feasibly.wrap(model(scheduler, exact, scales), "diffusers", scheduler)) < 1e-5


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("spacing", ["karras", "exponential"])
def test_edm_schedulers_give_the_posterior_mean(prediction, spacing, exact, mixture, gap):
    data = 0.5
    scheduler = diffusers.EDMEulerScheduler(
        prediction_type=prediction, sigma_schedule=spacing, sigma_data=data
    )
    oracle = mixture(None)

    class Net(nn.Module):
        def forward(self, sample, timestep):
            sigma = (4 * timestep).exp()[:, None]
            scale = (sigma**2 + data**2).sqrt()
            x = sample * scale
            output = oracle.mean(x, sigma) - (data / scale) ** 2 * x
            sign = 1 if prediction == "epsilon" else -1
            return (sign * output * scale / (sigma * data),)

    assert gap(feasibly.wrap(Net(), "diffusers", scheduler)) < 1e-5


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_match_schedulers_give_the_posterior_mean(shift, exact, gap):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)

    def scales(told):
        s, one = told / 1000, torch.ones_like(told)
        return 1 - s, s, -one, one

    adapter = feasibly.wrap(model(scheduler, exact, scales), "diffusers", scheduler)
    assert gap(adapter) < 1e-5
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    inner = 0.001 + 0.998 * t
    torch.testing.assert_close(adapter.schedule(t)[1], shift * inner / (1 + (shift - 1) * inner))
    # the scheduler's own table, at the times that it was made of
    own = scheduler.sigmas.double()[1:-1]
    k = torch.arange(999, 1, -1, dtype=torch.float64) / 1000
    torch.testing.assert_close(
        adapter.schedule((k - 0.001) / 0.998)[1], own[: len(k)], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("prediction", ["flow_prediction", "epsilon", "sample"])
def test_other_schedulers_may_follow_a_flow(prediction, exact, gap):
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type=prediction, use_flow_sigmas=True, flow_shift=3.0
    )

    def scales(told):
        s, one = told / 1000, torch.ones_like(told)
        return 1 - s, s, -one, one

    adapter = feasibly.wrap(model(scheduler, exact, scales), "diffusers", scheduler)
    assert "Shifted(shift=3, tau=0.001)" in repr(adapter)
    assert gap(adapter) < 1e-5


def test_a_shift_has_rates_in_its_own_clock():
    d_alpha, d_sigma = rates(Shifted(3.0), torch.tensor(0.3, dtype=torch.float64))
    torch.testing.assert_close(torch.stack([d_alpha, d_sigma]), torch.tensor([-1.0, 1.0]).double())
    with pytest.raises(ValueError, match="positive shift"):
        Shifted(0.0)


@pytest.mark.parametrize("name", ["DDPMScheduler", "EulerDiscreteScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_zero_terminal_snr_ends_one_step_before(name, prediction, exact, gap):
    scheduler = getattr(diffusers, name)(
        prediction_type=prediction, rescale_betas_zero_snr=True, beta_schedule="scaled_linear"
    )
    adapter = feasibly.wrap(model(scheduler, exact), "diffusers", scheduler)
    alpha, sigma = adapter.schedule(torch.tensor(1.0, dtype=torch.float64))
    expected = scheduler.alphas_cumprod[998].double().sqrt()
    torch.testing.assert_close(alpha, expected, rtol=1e-6, atol=0)
    assert 100 < sigma / alpha < 1e5
    assert gap(adapter) < 1e-5
    assert "999 steps, of 1000" in repr(adapter)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AlphaBar(torch.tensor([0.1, 0.5])),
        lambda: AlphaBar(torch.tensor([0.9])),
        lambda: AlphaBar(torch.tensor([1.0, 0.5])),
        lambda: TimeTable(torch.ones_like, lambda s: s, [0.0, 1.0], "zero"),
        lambda: TimeTable(torch.ones_like, lambda s: s, [2.0, 1.0], "reversed"),
    ],
)
def test_tables_that_make_no_schedule_are_refused(make):
    with pytest.raises(ValueError, match=r"decreases|times"):
        make()
