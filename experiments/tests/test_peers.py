"""Other authors' code: how it is found, and what it is given."""

import sys

import pytest
import torch

from experiments import peers
from experiments.studies import solutions as study
from feasibly.constraints import Equality, Linear
from feasibly.network import Network
from feasibly.oracles import Gaussian
from feasibly.schedules import Flow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEASIBLY_PEERS", str(tmp_path))
    return tmp_path


def test_a_missing_checkout_names_the_command_that_gets_it(folder):
    with pytest.raises(peers.Missing, match=r"git clone https://github.com/cpfpengfei/PCFM"):
        peers.load("PCFM", "pcfm_sampling")


def test_a_missing_checkout_leaves_its_rows_out(folder, capsys):
    setting = {"case": "exact, flow", "label": "ECI's own, 5 mixes", "seed": 0}
    assert study.measure_heat(setting) == []
    assert "is left out. There is no checkout of ECI-sampling" in capsys.readouterr().out


def test_a_module_is_loaded_without_what_its_package_does(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "peer_PCFM", raising=False)
    package = folder / "PCFM" / "pcfm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError")
    (package / "one_of_a_test.py").write_text("from .other_of_a_test import x")
    (package / "other_of_a_test.py").write_text("x = 3")
    (package / "third_of_a_test.py").write_text("import no_such_module")
    assert peers.load("PCFM", "one_of_a_test").x == 3
    with pytest.raises(peers.Missing, match="pip install torchdiffeq tqdm"):
        peers.load("PCFM", "third_of_a_test")


def test_the_velocity_of_a_flow_carries_noise_to_the_data():
    """For normal data of variance 1/4, the flow at the end is half of the noise."""
    model = Gaussian(torch.zeros(3), torch.eye(3) / 4, Flow(tau=1e-6))
    v = peers.velocity(Network(model))
    noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    u, steps = noise, 400
    for i in range(steps):
        u = u + v(i / steps, u) / steps
    torch.testing.assert_close(u, noise / 2, rtol=0.02, atol=0.0)


PPR = """
import torch


class PPRSampler:
    def __init__(self, denoiser, y, A, silent, **settings):
        self.denoiser, self.y, self.A, self.settings = denoiser, y, A, settings

    def init(self, shape):
        return torch.ones(shape)

    def __call__(self, x):
        t = torch.tensor(0.5)
        alpha, sigma = self.denoiser.schedule(t)
        assert self.A(x).shape == (len(x), 1) and self.y == 0
        return self.settings["steps"] * self.denoiser(alpha * x, t).mean
"""


def test_azula_s_sampler_gets_the_denoiser_the_residual_and_its_settings(folder, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("peer_azula")]:
        monkeypatch.delitem(sys.modules, name)
    package = folder / "azula" / "azula" / "guidance"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ppr.py").write_text(PPR)
    model = Network(Gaussian(torch.zeros(3), torch.eye(3), Flow()))
    total = Equality(lambda x: x.sum(dim=1), tolerance=1e-6)
    found = peers.azula_ppr(model, total, 4, (3,), steps=2)
    alpha = model.schedule(torch.tensor(0.5))[0]
    expected = 2 * model(alpha * torch.ones(4, 3), torch.tensor(0.5))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (peers.azula_mmps, {"iterations": 4}),
        (peers.azula_jfps, {"iterations": 4}),
        (peers.azula_diffpir, {"iterations": 4}),
        (peers.azula_pgdm, {}),
        (peers.azula_tds, {"steps": 64}),
    ],
)
def test_azula_s_samplers_come_near_the_value_of_a_normal_prior(sampler, options):
    pytest.importorskip("azula")
    model = Network(Gaussian(torch.ones(3), 4 * torch.eye(3), Flow()))
    total = Linear(torch.ones(1, 3), torch.tensor([6.0]), tolerance=1e-2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = sampler(model, total, 256, (3,), **options)
    assert x.shape == (256, 3)
    assert total.residual(x).square().mean() < 1  # of 12 + 9 without the value
    assert x.var(dim=0).mean() > 0.5  # of 8 / 3 exactly


def test_a_sampler_for_matrices_refuses_a_curve():
    pytest.importorskip("azula")
    model = Network(Gaussian(torch.zeros(3), torch.eye(3), Flow()))
    sphere = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-6)
    with pytest.raises(ValueError, match="linear"):
        peers.azula_pgdm(model, sphere, 4, (3,))
