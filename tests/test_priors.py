import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from feasibly import Ancestral, Karras, priors
from feasibly.denoisers import Correlated
from feasibly.metrics import knn_cross_edge_rate
from feasibly.nn import ModulatedMLP, SphereNet, ZonalCovariance
from feasibly.problems import shallow_water
from feasibly.problems.data2d import DISTRIBUTIONS
from feasibly.problems.weather import VARIABLES
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

FOLDER = priors.home()
SHIPPED = ("banana", "checkerboard")
SHAPES = {"banana": (2,), "checkerboard": (2,), "ks": (64, 64), "weather": (24, 16, 4, 8)}
OPTIONS = {"dim": 2, "width": 8, "layers": 2, "frequencies": 3}


@pytest.fixture(scope="module")
def shipped_day():
    """The planet's day that is shipped, which no prior has seen, with shape (24, 3, 32, 64)."""
    xarray = pytest.importorskip("xarray")
    path = Path(shallow_water.__file__).parent / "weather_day.nc"
    with xarray.open_dataset(path, engine="scipy") as file:
        day = torch.stack([torch.tensor(file[name].values) for name in VARIABLES], dim=1)
    day[:, 0] -= shallow_water.Planet.geopotential
    return day.float()


@pytest.fixture
def made():
    """A small prior that differs from a fresh one in everything that a file must hold."""
    torch.manual_seed(0)
    backbone = ModulatedMLP(**OPTIONS)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Karras(backbone, LogLogit(2e-3, 50.0, 1.5), sigma_data=0.5)


@pytest.fixture
def path(tmp_path, made):
    priors.save(made, tmp_path / "made.safetensors", OPTIONS)
    return tmp_path / "made.safetensors"


def test_a_covariance_is_kept_in_full(tmp_path):
    torch.manual_seed(0)
    options = {"frames": 4, "latent": 2, "rows": 2, "channels": 16, "blocks": 1}
    sizes = {"frames": 4, "channels": 2, "rows": 2, "columns": 4, "leading": 2}
    model = Correlated(SphereNet(**options), LogLogit(), ZonalCovariance(**sizes))
    model.covariance.fit(torch.randn(64, 4, 2, 2, 4).cumsum(dim=1))
    priors.save(model, tmp_path / "made.safetensors", options, torch.float16, sizes)
    found = priors.load(str(tmp_path / "made.safetensors"))
    assert isinstance(found, Correlated)
    for name, kept in model.covariance.named_buffers():
        assert torch.equal(found.covariance.get_buffer(name), kept)
    x, t = torch.randn(3, 4, 2, 2, 4), torch.tensor(0.5)
    torch.testing.assert_close(found(x, t).mean, model(x, t).mean, rtol=1e-2, atol=1e-2)


def rewrite(path, weights=None, **changes):
    """Writes the file again, with another description of its weights, or other weights."""
    with safe_open(path, framework="pt") as file:
        spec = json.loads(file.metadata()["feasibly"])
        kept = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(kept | (weights or {}), path, metadata={"feasibly": json.dumps(spec | changes)})


def assert_refused(path):
    with pytest.raises(ValueError, match="damaged") as error:
        priors.load(str(path))
    assert str(path) in str(error.value)
    assert "Install or train it again" in str(error.value)


def test_the_priors_of_the_problems_are_shipped():
    assert set(SHIPPED) == set(DISTRIBUTIONS)
    assert set(SHAPES) == set(priors.available())


@pytest.mark.parametrize("name", priors.available())
def test_a_shipped_prior_is_ready_to_sample(name):
    denoiser = priors.load(name)
    assert not any(module.training for module in denoiser.modules())
    assert not any(parameter.requires_grad for parameter in denoiser.parameters())
    x_0 = denoiser(torch.zeros(3, *SHAPES[name]), torch.tensor(0.5)).mean
    assert x_0.shape == (3, *SHAPES[name])
    assert x_0.dtype == torch.float32
    assert x_0.isfinite().all()


def test_a_shipped_autoencoder_is_ready_to_use():
    autoencoder = priors.load_autoencoder("weather-autoencoder")
    assert not any(parameter.requires_grad for parameter in autoencoder.parameters())
    z = torch.zeros(2, 24, 16, 4, 8)
    fields = autoencoder.decode(z)
    assert fields.shape == (2, 24, 3, 32, 64)
    assert fields.isfinite().all()
    assert autoencoder.encode(fields).shape == z.shape


def test_the_shipped_autoencoder_keeps_a_day_as_its_card_says(shipped_day):
    card = (FOLDER / "weather-autoencoder.md").read_text()
    autoencoder = priors.load_autoencoder("weather-autoencoder")
    error = autoencoder.decode(autoencoder.encode(shipped_day)) - shipped_day
    relative = error.square().mean(dim=(0, 2, 3)).sqrt() / autoencoder.scale.flatten()
    for name, value in zip(VARIABLES, relative.tolist(), strict=True):
        said = float(re.search(rf"\| {name} \| [^|]+ \| ([\d.]+) \|", card)[1])
        assert value <= 1.5 * said, "another day, and errors not weighted by area"


def test_the_shipped_prior_of_weather_denoises_better_than_its_linear_part(shipped_day):
    sigma = 0.3
    denoiser = priors.load("weather")  # which gets another network below
    z = priors.load_autoencoder("weather-autoencoder").encode(shipped_day)[None]
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    error = denoiser.mean(z + sigma * noise, torch.tensor(sigma)) - z
    denoiser.backbone.forward = lambda x, label: torch.zeros_like(x)
    linear = denoiser.mean(z + sigma * noise, torch.tensor(sigma)) - z
    # measured on eight days: 0.92; weights of another network give more than 1
    assert error.square().mean() < 0.96 * linear.square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_unconditional_samples_of_a_shipped_prior_are_good(name):
    # The priors put 99.9 % on the support: 98 % of 1024 is 19 standard errors below. The k-NN
    # rate of two sets of one distribution has a standard deviation of 0.0063 (60 draws), and 0.47
    # is 4.7 of them below 0.5: a false alarm of 2e-6.
    distribution = DISTRIBUTIONS[name]()
    x = sampled(on(Ancestral(steps=64), priors.load(name)), 1024, (2,), seed=0).samples
    data = distribution.sample(1024, torch.Generator().manual_seed(0))
    assert distribution.in_support(x).double().mean() >= 0.98
    assert knn_cross_edge_rate(x, data) >= 0.47


def test_a_saved_prior_is_read_back_identical(path, made):
    loaded = priors.load(str(path))
    assert repr(loaded.schedule) == repr(made.schedule)
    assert loaded.sigma_data == made.sigma_data
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    for t in torch.linspace(0, 1, 9):
        assert torch.equal(loaded(x, t).mean, made(x, t).mean)


def test_an_unknown_prior_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no prior 'nope'.*banana.*checkerboard"):
        priors.load("nope")


def test_a_missing_file_is_refused_by_name(tmp_path):
    missing = tmp_path / "missing.safetensors"
    with pytest.raises(ValueError, match=r"missing\.safetensors.*experiments train"):
        priors.load(str(missing))


def test_a_truncated_file_is_refused(path):
    data = path.read_bytes()
    for share in (0.0, 0.001, 0.1, 0.5, 0.9999):
        path.write_bytes(data[: int(share * len(data))])
        assert_refused(path)


@pytest.mark.parametrize(
    "metadata",
    [None, {"author": "x"}, {"feasibly": "{"}, {"feasibly": "[]"}, {"feasibly": "{}"}],
    ids=["none", "other", "no JSON", "a list", "empty"],
)
def test_a_file_without_a_description_is_refused(path, metadata):
    save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
    assert_refused(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": "Transformer"},
        {"schedule": "Linear"},
        {"backbone_options": OPTIONS | {"width": 16}},
        {"backbone_options": OPTIONS | {"layers": 1}},
        {"backbone_options": OPTIONS | {"depth": 1}},
        {"schedule_options": {"beta": 1.0}},
        {"schedule_options": {"sigma_min": 1.0, "sigma_max": 0.1}},
        {"backbone_options": "dim"},
        {"sigma_data": math.nan},
        {"sigma_data": 0.0},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_refused(path, changes):
    rewrite(path, **changes)
    assert_refused(path)


@pytest.mark.parametrize(
    "options",
    [{"width": 4096}, {"layers": 10**9}, {"layers": 1e9}, {"frequencies": 10**12}, {"dim": -1}],
    ids=str,
)
def test_a_network_larger_than_its_file_is_not_made(path, options, monkeypatch):
    reset = torch.nn.Linear.reset_parameters

    def made(layer):
        assert layer.weight.device == torch.device("meta")  # where it takes no memory
        reset(layer)

    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", made)
    rewrite(path, backbone_options=OPTIONS | options)
    assert_refused(path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(path, made, value):
    with torch.no_grad():
        made.backbone.hidden[1].weight[3, 4] = value
    with pytest.raises(ValueError, match=r"backbone\.hidden\.1\.weight holds .* not finite"):
        priors.save(made, path, OPTIONS)
    rewrite(path, weights={"backbone.hidden.1.weight": made.backbone.hidden[1].weight.detach()})
    assert_refused(path)


def test_a_description_that_fits_is_accepted(path, made):
    # or the test above would show nothing
    rewrite(path, backbone_options=OPTIONS)
    x = torch.ones(1, 2)
    t = torch.tensor(0.5)
    assert torch.equal(priors.load(str(path))(x, t).mean, made(x, t).mean)
