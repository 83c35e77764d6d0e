import pytest
import torch
from torch import nn

from feasibly.nn import FiLM, ModulatedMLP, SineEmbedding


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trained(**arguments):
    """A small network whose last layer is not zero, as after training."""
    torch.manual_seed(0)
    network = ModulatedMLP(**{"width": 16, "layers": 2, "frequencies": 4, **arguments})
    nn.init.normal_(network.output.weight)
    return network.double()


@pytest.mark.parametrize("shape", [(), (5,), (5, 2)], ids=str)
def test_an_embedding_adds_an_axis_of_sines_and_cosines(shape):
    x = normal(*shape)
    features = SineEmbedding(6, low=0.5, high=16.0)(x)
    assert features.shape == (*shape, 12)
    sine, cosine = features.chunk(2, dim=-1)
    torch.testing.assert_close(sine**2 + cosine**2, torch.ones(*shape, 6))


def test_the_frequencies_of_an_embedding_run_from_lowest_to_highest_in_equal_ratios():
    x = torch.tensor(1e-3, dtype=torch.float64)
    # sin(w x) / x is w for small x, to a relative error of (w x)^2 / 6
    omega = SineEmbedding(6, low=0.5, high=16.0).double()(x)[:6] / x
    torch.testing.assert_close(omega, torch.logspace(-1, 4, 6, base=2).double(), rtol=1e-4, atol=0)


def test_a_modulation_scales_and_shifts():
    film, h, condition = FiLM(3, 5), normal(4, 5), normal(4, 3, seed=1)
    a, b = film.linear(condition).split(5, dim=1)
    torch.testing.assert_close(film(h, condition), (1 + a) * h + b)


def test_an_untrained_network_returns_zero():
    # so that training starts from the denoiser of a normal
    assert torch.equal(ModulatedMLP(width=8)(normal(5, 2), normal(5)), torch.zeros(5, 2))


def test_the_output_for_one_sample_ignores_the_others():
    network, x, noise = trained(), normal(5, 2).double(), normal(5, seed=1).double()
    together = network(x, noise)
    for i in range(5):
        alone = network(x[i : i + 1], noise[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-12, atol=1e-12)


def test_the_output_depends_on_the_noise_label_and_on_every_coordinate():
    network = trained(dim=3)
    x, noise = normal(5, 3).double().requires_grad_(), normal(5).double().requires_grad_()
    g_x, g_noise = torch.autograd.grad(network(x, noise).square().sum(), (x, noise))
    assert (g_x != 0).all()
    assert (g_noise != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_at_the_origin_are_finite(dtype):
    x = torch.zeros(2, 2, dtype=dtype, requires_grad=True)
    output = trained().to(dtype)(x, torch.zeros(2, dtype=dtype))
    (g,) = torch.autograd.grad(output.sum(), x)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert g.isfinite().all()


def test_a_state_dictionary_holds_parameters_only():
    # frequencies are settings, which a checkpoint should not override
    network = ModulatedMLP(width=8)
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}
