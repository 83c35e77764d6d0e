import math

import pytest
import torch
from torch import nn

from feasibly.denoisers import Karras
from feasibly.nn import FiLM, ModulatedMLP, SineEmbedding
from feasibly.schedules import LogLogit


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


def test_a_modulation_without_weights_is_the_identity():
    film, h = FiLM(3, 5), normal(4, 5)
    nn.init.zeros_(film.linear.weight)
    assert torch.equal(film(h, normal(4, 3)), h)


def test_a_modulation_scales_and_shifts():
    film, h, condition = FiLM(3, 5), normal(4, 5), normal(4, 3, seed=1)
    a, b = film.linear(condition).split(5, dim=1)
    torch.testing.assert_close(film(h, condition), (1 + a) * h + b)


def test_an_untrained_network_returns_zero():
    # so that training starts from the denoiser of a normal
    assert torch.equal(ModulatedMLP(width=8)(normal(5, 2), normal(5)), torch.zeros(5, 2))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_output_has_the_shape_of_the_input(dim):
    network, x = trained(dim=dim), normal(7, dim).double()
    for noise in (torch.tensor(0.3).double(), normal(7).double()):
        assert network(x, noise).shape == x.shape


def test_one_noise_label_for_all_equals_the_same_label_for_each():
    network, x = trained(), normal(7, 2).double()
    shared, each = (
        network(x, torch.tensor(0.3).double()),
        network(x, torch.full((7,), 0.3).double()),
    )
    torch.testing.assert_close(shared, each, rtol=1e-6, atol=1e-6)


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


def test_gradients_agree_with_finite_differences():
    network = trained()
    x, noise = normal(3, 2).double().requires_grad_(), normal(3, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(network, (x, noise))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_at_the_origin_are_finite(dtype):
    x = torch.zeros(2, 2, dtype=dtype, requires_grad=True)
    output = trained().to(dtype)(x, torch.zeros(2, dtype=dtype))
    (g,) = torch.autograd.grad(output.sum(), x)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert g.isfinite().all()


def test_every_parameter_learns_once_the_last_layer_is_not_zero():
    network = trained()
    network(normal(9, 2).double(), normal(9).double()).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name


def test_a_state_dictionary_holds_parameters_only():
    # frequencies are settings, which a checkpoint should not override
    network = ModulatedMLP(width=8)
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}


def test_a_loaded_network_computes_the_same():
    network, x, noise = trained(), normal(4, 2).double(), normal(4).double()
    other = ModulatedMLP(width=16, layers=2, frequencies=4).double()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(x, noise), network(x, noise))


def test_forward_mode_agrees_with_reverse_mode():
    # Gauss-Newton pushes tangents through the network
    network, noise = trained(), torch.tensor(0.3).double()
    x, tangent, cotangent = (normal(3, 2, seed=i).double() for i in range(3))
    _, pushed = torch.func.jvp(lambda x: network(x, noise), (x,), (tangent,))
    x = x.requires_grad_()
    (pulled,) = torch.autograd.grad(network(x, noise), x, cotangent)
    torch.testing.assert_close((pushed * cotangent).sum(), (tangent * pulled).sum())


def test_it_is_a_backbone_of_a_karras_denoiser():
    denoiser = Karras(trained(), LogLogit()).double()
    x_t, t = normal(5, 2).double(), torch.linspace(0, 1, 5).double()
    mean = denoiser(x_t, t).mean
    assert mean.isfinite().all()
    shared = denoiser(x_t, torch.tensor(0.25).double()).mean[1]
    assert math.isclose(shared[0].item(), mean[1, 0].item(), rel_tol=1e-9)
