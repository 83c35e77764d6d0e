import numpy as np
import pytest
import torch

from experiments.recipes import RECIPES, weather
from experiments.recipes.weather import symmetric
from feasibly import priors
from feasibly.nn import SphereAutoencoder

SIZE = {"fields": 3, "rows": 32, "latent": 16, "channels": (16, 16, 16)}


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    coarse = torch.from_numpy(generator.normal(size=(2 * 30 * 3, 1, 4, 8)))
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 64), mode="bicubic")
    fields = smooth.reshape(2, 30, 3, 32, 64) * torch.tensor([1700.0, 15, 15])[:, None, None]
    np.save(tmp_path / "weather.npy", fields.numpy().astype(np.float16))
    return tmp_path


def test_symmetries_turn_and_reflect_whole_days():
    day = torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(0)).expand(
        200, -1, -1, -1
    )
    images = symmetric(day, torch.Generator().manual_seed(0))
    mirrored = torch.tensor([1.0, 1.0, -1.0])[:, None, None] * day[0].flip(-2)
    known = [day[0].roll(x, -1) for x in range(64)] + [mirrored.roll(x, -1) for x in range(64)]
    known = torch.stack(known)
    which = [int((known == image).flatten(1).all(dim=1).nonzero()[0]) for image in images]
    assert len(set(which)) > 60, "many of the 128 images appear"
    assert 0.3 < sum(w >= 64 for w in which) / 200 < 0.7


def test_both_priors_train_on_simulated_fields(folder, monkeypatch):
    monkeypatch.setattr(weather.WeatherAutoencoder, "backbone", SIZE)
    first = RECIPES["weather-autoencoder"]()
    first.data(folder)
    generator = torch.Generator().manual_seed(0)
    model = first.model()
    x = first.batch(8, generator, symmetries=True)
    assert x.shape == (8, 3, 32, 64)
    assert first.loss(model, x, generator).shape == (8,)
    path = folder / "autoencoder.safetensors"
    first.save(model, path)
    loaded = priors.load_autoencoder(str(path))
    assert isinstance(loaded, SphereAutoencoder)
    torch.testing.assert_close(loaded.encode(x), model.encode(x), atol=2e-2, rtol=0)
    assert loaded.encode(x).std() == pytest.approx(1, abs=0.1)

    monkeypatch.setattr(weather, "AUTOENCODER", str(path))
    monkeypatch.setattr(priors, "digest", lambda name: "00000000")
    second = RECIPES["weather"]()
    second.data(folder)
    window = second.batch(4, generator, symmetries=False)
    assert window.shape == (4, 24, 16, 4, 8)
    fields = torch.from_numpy(np.load(folder / "weather.npy")).float()
    latents = loaded.encode(fields)
    starts = [latents[i, h : h + 24] for i in range(2) for h in range(7)]
    nearest = [min((w - s).abs().max().item() for s in starts) for w in window]
    assert max(nearest) < 1e-2, "windows of consecutive hours"


def test_missing_or_short_data_are_refused(tmp_path):
    with pytest.raises(ValueError, match="experiments data weather"):
        RECIPES["weather"]().data(tmp_path)
    np.save(tmp_path / "weather.npy", np.zeros((2, 10, 3, 32, 64), dtype=np.float16))
    with pytest.raises(ValueError, match="at least 24 hours"):
        RECIPES["weather-autoencoder"]().data(tmp_path)
