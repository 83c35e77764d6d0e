"""Every mistake is caught and named, and what is right passes."""

import warnings

import numpy as np
import pytest
import torch

import feasibly
from feasibly.checks import readings
from feasibly.denoisers.predictions import PREDICTIONS
from feasibly.errors import DenoiserError
from feasibly.models.tables import AlphaBar
from feasibly.oracles import Gaussian
from feasibly.schedules import VP, Flow, LogLogit, Rectified, SubVP, rates

SCHEDULES = {"vp": VP(), "rectified": Rectified(), "straight": Flow()}
KINDS = list(PREDICTIONS)
# all that there are, and those of the path that decides
PATHS = [(kind, "vp") for kind in KINDS] + [("velocity", "rectified"), ("velocity", "straight")]
# each kind as two others, and those that are alike as one another
PAIRS = [(kind, KINDS[(i + j) % 5], "vp") for i, kind in enumerate(KINDS) for j in (1, 3)]
PAIRS += [("v", "velocity", "vp"), ("velocity", "eps", "straight")]
each_path = pytest.mark.parametrize(("kind", "path"), PATHS)


@pytest.mark.slow
@each_path
def test_what_is_right_passes_with_few_samples_and_many(kind, path, exact, paths, data):
    """A reading that is no better wins with three standard errors by a chance of 1e-3, and has
    to win by a hundredth besides."""
    for rows in (8, 512):
        feasibly.wrap(exact(kind, paths[path]), kind, SCHEDULES[path], data=data[:rows])


def test_an_error_that_no_chance_explains_is_its_own_lower_bound():
    """Also one that is infinite, or compared with a guess that is right."""
    errors = torch.tensor([[20.0, torch.inf, 1.0, 1.1], [20.0, 1.0, 1.0, 0.9]]).repeat(8, 1)
    guesses = torch.tensor([1.0, 1.0, 0.0, 1.0]).expand(16, 4)
    ratio, sure = readings._ratios(errors, guesses)
    assert ratio.tolist() == [20.0, torch.inf, torch.inf, 1.0]
    assert sure.tolist()[:3] == ratio.tolist()[:3]
    assert sure[3] < 0.95


def test_what_is_right_passes_on_data_drawn_from_the_same_seed():
    """The noise must not be the data over again."""
    normal = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    feasibly.self_test(Gaussian(torch.zeros(2), torch.eye(2), VP()), normal, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_sign_is_named(kind, exact, paths, data):
    path = "straight" if kind == "velocity" else "vp"
    net = exact(kind, paths[path])
    with pytest.raises(DenoiserError, match=r"wrong in the sign of the prediction.*negating"):
        feasibly.wrap(lambda x, s: -net(x, s), kind, SCHEDULES[path], data=data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_direction_of_time_is_named(kind, exact, paths, data):
    path = "straight" if kind == "velocity" else "vp"
    net, schedule = exact(kind, paths[path]), SCHEDULES[path]
    with pytest.raises(DenoiserError, match=r"wrong in the direction of time.*1 - t"):
        feasibly.wrap(lambda x, s: net(x, 1 - s), kind, schedule, data=data)
    # and what the message says helps
    time = schedule.time
    feasibly.wrap(
        lambda x, s: net(x, 1 - s), kind, schedule, time=lambda t: time(1 - t), data=data
    )


@pytest.mark.parametrize(("kind", "wrapped", "path"), PAIRS)
def test_a_wrong_prediction_type_is_named(kind, wrapped, path, exact, paths, data):
    with pytest.raises(DenoiserError, match=f"prediction type, which is {kind}.*kind='{kind}'"):
        feasibly.wrap(exact(kind, paths[path]), wrapped, SCHEDULES[path], data=data)


def test_a_flow_wrapped_as_one_from_data_to_noise_is_wrong_in_two_things(exact, paths, data):
    """Time and, with it, the sign of the velocity."""
    net = exact("velocity", paths["straight"])
    with pytest.raises(DenoiserError, match=r"time and the sign.*schedules\.Flow"):
        feasibly.wrap(net, "velocity", Rectified(), data=data)
    feasibly.wrap(net, "velocity", Flow(), data=data)


def test_a_wrong_unit_of_time_is_named(exact, paths, data):
    net = exact("eps", lambda label: paths["vp"](label / 999))
    with pytest.raises(DenoiserError, match=r"wrong in the unit of time.*999 times"):
        feasibly.wrap(net, "eps", VP(), data=data)
    feasibly.wrap(net, "score_sde", VP(), data=data)


def unit_interval(data):
    return (data - data.min()) / (data.max() - data.min())


RANGES = {  # what the network was trained on, what it is given, and what should be said
    "[-1, 1] for [0, 1]": (lambda u: 2 * u - 1, lambda u: u, r"in \[-1, 1\].*2 x - 1"),
    "[0, 1] for [-1, 1]": (lambda u: u, lambda u: 2 * u - 1, r"in \[0, 1\].*\(x \+ 1\) / 2"),
    "[-1, 1] for [0, 255]": (lambda u: 2 * u - 1, lambda u: 255 * u, r"in \[-1, 1\]"),
    "[0, 255] for [0, 1]": (lambda u: 255 * u, lambda u: u, r"in \[0, 255\].*255 x"),
    "standardised for physical": (
        lambda u: (u - u.mean()) / u.std(),
        lambda u: 280 + 40 * u,
        r"standardised.*\(x - \d+\) / ",
    ),
    "[-1, 1] for standardised": (
        lambda u: 2 * u - 1,
        lambda u: (u - u.mean()) / u.std(),
        r"in \[-1, 1\].*\(x \+ [\d.]+\) - 1",
    ),
    "twice as wide": (lambda u: 4 * u - 2, lambda u: 2 * u - 1, r"twice as wide.*2 x"),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_wrong_range_of_values_is_named(name, data):
    trained, given, message = RANGES[name]
    path = "straight" if name == "twice as wide" else "vp"
    u = unit_interval(data)
    oracle = Gaussian(trained(u).mean(dim=0), trained(u).T.cov(), SCHEDULES[path])
    with pytest.raises(
        DenoiserError, match="range of the values: the network knows data " + message
    ):
        feasibly.self_test(oracle, given(u))
    feasibly.self_test(oracle, trained(u))


def test_a_reversed_schedule_is_named(exact, paths, data):
    with pytest.raises(DenoiserError, match=r"runs the wrong way.*at 0 and .* at 1"):
        feasibly.wrap(exact("x0", paths["vp"]), "x0", lambda t: VP()(1 - t), data=data)


TWINS = {"VP": VP(), "SubVP": SubVP()}


def of_schedule(schedule):
    """What a network of a schedule knows of it, at the time that it is told."""

    def known(time):
        t = (time - schedule.tau) / (1 - schedule.tau)
        return *schedule(t), *rates(schedule, t)

    return known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "declared", "kind"),
    [("VP", "SubVP", kind) for kind in ("x0", "eps", "velocity")]
    + [("SubVP", "VP", kind) for kind in ("v", "score")],
)
def test_vp_and_subvp_are_told_apart(trained, declared, kind, exact, data):
    net = exact(kind, of_schedule(TWINS[trained]))
    with pytest.raises(DenoiserError, match=rf"wrong in the noise schedule.*schedule={trained}\("):
        feasibly.wrap(net, kind, TWINS[declared], data=data)
    feasibly.wrap(net, kind, TWINS[trained], data=data)


def test_a_schedule_that_is_wrong_by_far_is_named(exact, paths, data):
    with pytest.raises(DenoiserError, match=r"wrong in the noise schedule.*schedule=VP\("):
        feasibly.wrap(exact("eps", paths["vp"]), "eps", Rectified(), data=data)


def test_a_network_that_is_not_trained_is_refused(data):
    with pytest.raises(
        DenoiserError, match=r"No single change of the sign.*whether it is trained"
    ):
        feasibly.wrap(lambda x, s: 0.3 * x.flip(1) - 0.5, "eps", VP(), data=data)


def test_a_gradient_that_a_mistake_breaks_does_not_hide_the_mistake(exact, paths, data):
    """Told times 999 times too large, alpha vanishes and the network divides by it."""
    net = exact("eps", paths["vp"])
    with pytest.raises(DenoiserError, match=r"wrong in the unit of time.*999th"):
        feasibly.wrap(net, "eps", VP(), data=data.float(), time=lambda t: 999 * t)


def test_a_network_without_a_gradient_is_refused(exact, paths, data):
    net = exact("x0", paths["vp"])
    with pytest.raises(DenoiserError, match="no gradient"):
        feasibly.wrap(lambda x, s: net(x, s).detach(), "x0", VP(), data=data)
    with pytest.raises(DenoiserError, match=r"not finite.*square root"):
        feasibly.wrap(lambda x, s: net(x, s) + (0 * x).sqrt(), "x0", VP(), data=data)


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(4, 2),
        torch.full((4, 2), torch.nan),
        torch.randn(1, 2),
        torch.randn(8),
        torch.zeros(8, 2, dtype=torch.complex64),
        [[1.0, 2.0], [3.0, 4.0]],
        torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=32),
        np.array([["a", "b"], ["c", "d"]]),
        "data.npy",
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_data_that_tell_nothing_are_refused(bad, exact, paths):
    with pytest.raises(DenoiserError, match=r"needs (a few|several) different samples"):
        feasibly.wrap(exact("x0", paths["vp"]), "x0", VP(), data=bad)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_data_may_be_an_array(dtype, exact, paths, data):
    adapter = feasibly.wrap(exact("x0", paths["vp"]), "x0", VP())
    array = np.flip(data.numpy().astype(dtype), axis=0)  # of which a tensor cannot be a view
    found = feasibly.self_test(adapter, array)
    assert found.ratios == feasibly.self_test(adapter, torch.tensor(array.copy())).ratios


@pytest.mark.parametrize("kind", ["flow_matching", "torchcfm"])
def test_arguments_in_another_order_are_named(kind, exact, paths, data):
    net = exact("velocity", paths["straight"])
    if kind == "flow_matching":
        wrong, now, other = (lambda s, x: net(x, s[:, 0])), "x, time", "time, x"
    else:
        wrong, now, other = (lambda x, s: net(x[:, 0], s)), "time, x", "x, time"
    said = rf"failed on states of shape \(\d+, 2\).*net\({now}\); for net\({other}\)"
    with pytest.raises(DenoiserError, match=said):
        feasibly.wrap(wrong, kind, data=data)


def test_a_denoiser_without_a_schedule_is_refused(data):
    with pytest.raises(DenoiserError, match="no schedule"):
        feasibly.self_test(lambda x, t: x, data)


def test_rows_of_data_have_the_conditions_of_members():
    oracle = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())

    def net(x, sigma, shift):
        return oracle.mean(x - shift, sigma[:, None]) + shift

    generator = torch.Generator().manual_seed(0)
    shifts = 10 * torch.randn(64, 2, generator=generator)
    samples = shifts + torch.randn(64, 2, generator=generator)
    feasibly.wrap(net, "edm", conditions={"shift": shifts}, data=samples)
    with pytest.raises(DenoiserError, match=r"does not denoise|range"):
        feasibly.wrap(net, "edm", conditions={"shift": shifts.flip(0)}, data=samples)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "shape"), [(4, (2,)), (8, (16,)), (16, (2,))])
def test_what_is_right_passes_on_few_data_whatever_the_seed(rows, shape):
    """A ratio of few samples exceeds 1.1 by chance, and so does another reading's win."""
    oracle = Gaussian(torch.zeros(shape), torch.eye(*shape), VP())
    for seed in range(8):
        samples = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1000 + seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if samples.numel() < 64 else "error")
            feasibly.self_test(oracle, samples, seed=seed)


def test_data_too_few_to_tell_warn_and_do_not_refuse():
    samples = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    oracle = Gaussian(torch.zeros(2), torch.eye(2), VP())
    with pytest.warns(UserWarning, match=r"too few data to decide, 32 numbers.*range of the val"):
        found = feasibly.self_test(oracle, 10 * samples)
    assert not found.good
    with pytest.raises(DenoiserError, match="range of the values"):
        feasibly.self_test(oracle, 10 * torch.cat([samples, samples.flip(1)]))


def test_one_sample_at_which_it_fails_is_no_chance():
    """Its error is most of the standard error, which must not excuse it."""
    samples = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    oracle = Gaussian(torch.zeros(2), torch.eye(2), VP())

    def net(x, s):
        bad = 1e3 * (torch.arange(len(x)) % 256 == 7)[:, None]
        return oracle(x, s[0]).mean + bad.to(x)

    with pytest.raises(DenoiserError, match="times those of a trivial guess"):
        feasibly.wrap(net, "x0", VP(), data=samples)


@pytest.mark.parametrize(("trained", "used"), [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_zero_terminal_snr_is_told_apart_on_smooth_data(trained, used):
    """For Stable Diffusion's table. Where noise hides all of the data, nothing differs."""
    steps = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64)
    plain = AlphaBar((1 - steps.square()).cumprod(0))
    schedules = plain, plain.other()
    i = torch.arange(8, dtype=torch.float64)
    smooth = 0.95 ** (i[:, None] - i).abs()
    values, vectors = torch.linalg.eigh(torch.kron(smooth, smooth))
    z = torch.randn(1024, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = ((z * values.sqrt()) @ vectors.T).float()

    def at(schedule, u):  # an entry without signal is dropped, and the clock ends before it
        return schedule(u.double() / schedule.time(torch.tensor(1.0, dtype=torch.float64)))

    def net(x, u):
        alpha, sigma = (v[:, None] for v in at(schedules[trained], u))
        gain = alpha * values / (alpha**2 * values + sigma**2)
        x_0 = ((x.double() @ vectors) * gain) @ vectors.T
        return (alpha * (x.double() - alpha * x_0) / sigma - sigma * x_0).to(x)

    if trained == used:
        feasibly.wrap(net, "v", schedules[used], data=data)
        return
    with pytest.raises(DenoiserError, match="zero terminal SNR"):
        feasibly.wrap(net, "v", schedules[used], data=data)
