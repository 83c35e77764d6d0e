"""Appa's adapter, on a small model in the layout of the released folders, with stand-in code."""

import importlib.util
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from feasibly import schedules
from feasibly.errors import ConstraintError, DenoiserError
from feasibly.weather.appa import Appa
from feasibly.weather.appa_files import code

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

STANDIN = Path(__file__).parent / "standin"
ROWS, COLUMNS = 17, 32
LATENT = (3, 6, 4)
LAP = Path("autoencoders/workshop/0")
DUMP = LAP / "latents/workshop"
RUN = DUMP / "denoisers/workshop/0"
START = "2021-06-01T00"
AE = {
    "name": "cae_f8c4",
    "shape": [ROWS, COLUMNS],
    "resize": 8,
    "noise_level": 0.3,
    "lat_channels": 4,
    "hid_channels": [8, 8],
    "checkpointing": False,
    "in_channels": 71,
    "context_channels": 6,
    "latent_shape": list(LATENT),
}
BACKBONE = {
    "name": "vit_small",
    "arch": "vit",
    "mod_features": 8,
    "hid_channels": 16,
    "hid_blocks": 2,
    "patch_size": [2, 1, 1],
    "window_size": None,
    "checkpointing": True,
    "blanket_size": 24,
}
TRAIN = {
    "noise_schedule": "rectified",
    "sigma_min": 1e-3,
    "sigma_max": 1e3,
    "blanket_size": 24,
    "blanket_dt": 1,
    "inject_ae_noise": True,
}


@pytest.fixture(autouse=True)
def no_code_left():
    """Imports of the stand-in end with the test."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "appa"]:
        del sys.modules[name]


def write(root, train=None, ae=None, frames=24):
    """A folder in Appa's layout."""
    torch.manual_seed(0)
    net = BACKBONE | {"blanket_size": frames}
    ae, train = AE | (ae or {}), TRAIN | (train or {})
    autoencoder = code(STANDIN, "appa.nn.cae").conv_ae(**ae)
    backbone = code(STANDIN, "appa.nn.vit").ViDiT(in_channels=4, shape=LATENT[:2], **net)
    for folder in (DUMP / "ae", RUN):
        (root / folder).mkdir(parents=True)
    settings = yaml.safe_dump({"ae": ae, "train": {"sub_pressure_levels": True}})
    (root / LAP / "config.yaml").write_text(settings)
    (root / DUMP / "ae/config.yaml").write_text(settings)
    (root / RUN / "config.yaml").write_text(yaml.safe_dump({"backbone": net, "train": train}))
    torch.save(autoencoder.state_dict(), root / DUMP / "ae/model.pth")
    torch.save(backbone.state_dict(), root / RUN / "model_best.pth")
    statistics = {"mean": torch.linspace(-1, 1, 4), "std": torch.linspace(0.4, 2, 4)}
    torch.save(statistics, root / DUMP / "stats.pth")
    (root / DUMP / "era5.h5").write_bytes(b"not read")
    (root / RUN / "optimizer_last.pth").write_bytes(b"nor this")
    return root


@pytest.fixture
def root(tmp_path):
    return write(tmp_path)


@pytest.fixture
def appa(root):
    return Appa(root, STANDIN)


def latents(members=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(members, 24, *LATENT, dtype=dtype, generator=generator)


def test_it_loads_and_says_what_it_is(appa):
    assert appa.shape == (24, *LATENT)
    assert isinstance(appa.schedule, schedules.RectifiedVE)
    assert appa.fields.names[:8] == ("t2m", "u10", "v10", "msl", "sst", "tp", "t50", "t100")
    index = {name: k for k, name in enumerate(appa.fields.names)}
    assert (index["t850"], index["z500"], index["q700"]) == (16, 52, 67)
    assert len(index) == 71
    for module in (appa.backbone, appa.autoencoder):
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
    assert "latents (24, 3, 6, 4), RectifiedVE" in repr(appa)


def test_the_denoiser_is_edms_preconditioning_of_the_backbone(appa):
    denoiser = appa.denoiser(START)
    x = latents().double()
    appa.backbone.double()
    for t in torch.linspace(0, 1, 9, dtype=torch.float64):
        sigma = ((t + (1 - t) * 1e-3) / (t * (1 / 1e3 - 1) + 1)).reshape(1, 1)
        x_t = (x + sigma * latents(seed=1)).flatten(start_dim=1)
        c_noise = 10 * sigma.log().squeeze(-1).expand(2)
        dates = appa.dates(START).expand(2, -1, -1)
        output = appa.backbone(x_t / (sigma**2 + 1).sqrt(), c_noise, date=dates)
        expected = x_t / (sigma**2 + 1) + sigma / (sigma**2 + 1).sqrt() * output
        found = denoiser(x_t.reshape(x.shape), t).mean
        torch.testing.assert_close(found.flatten(start_dim=1), expected, rtol=1e-10, atol=1e-10)


def test_dates_are_the_calendars(appa):
    for start in ("2020-02-28T20", "2021-02-28T20", "1999-12-31T01", "1969-12-31T23"):
        first = datetime.fromisoformat(f"{start}:00")
        moments = [first + timedelta(hours=k) for k in range(24)]
        expected = [[m.year, m.month, m.day, m.hour] for m in moments]
        assert appa.dates(start).tolist() == [expected]


def test_frames_are_as_far_apart_as_in_training(tmp_path):
    appa = Appa(write(tmp_path, train={"blanket_dt": 6}), STANDIN)
    assert appa.dates(START)[0, :6, 3].tolist() == [0, 6, 12, 18, 0, 6]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rectified", schedules.RectifiedVE),
        ("loglogit", schedules.LogLogit),
        ("loglinear", schedules.VE),
    ],
)
def test_the_schedule_is_the_configurations(tmp_path, name, kind):
    train = {"noise_schedule": name, "sigma_min": 1e-2, "sigma_max": 500.0}
    found = Appa(write(tmp_path, train=train), STANDIN).schedule
    assert type(found) is kind
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    alpha, sigma = found(t)
    assert alpha.tolist() == [1, 1, 1]
    middle = {"rectified": 0.505 / 0.501, "loglogit": 5**0.5, "loglinear": 5**0.5}[name]
    assert sigma[1].item() == pytest.approx(middle, rel=1e-12)
    if name != "loglogit":  # whose ends are off by a factor
        assert sigma[[0, 2]].tolist() == pytest.approx([1e-2, 500.0], rel=1e-9)


def test_an_unknown_schedule_is_refused(tmp_path):
    with pytest.raises(DenoiserError, match=r"noise_schedule, one of \['rectified'"):
        Appa(write(tmp_path, train={"noise_schedule": "cosine"}), STANDIN)


@pytest.mark.parametrize("injected", [True, False])
def test_fields_are_decoded_from_latents_in_their_own_units(tmp_path, injected):
    """With the noise that latents had in training in their standard deviation, and none now."""
    appa = Appa(write(tmp_path, train={"inject_ae_noise": injected}), STANDIN)
    z = latents()
    found = appa.decode(z, frames=[12, 3], channels=["z500", "t2m"])
    assert found.shape == (2, 2, 2, ROWS, COLUMNS)
    mean, std = torch.linspace(-1, 1, 4), torch.linspace(0.4, 2, 4)
    std = (std**2 + 0.09).sqrt() if injected else std
    plain = appa.autoencoder.decoder((z[:, 12] * std + mean).permute(0, 3, 1, 2))
    torch.testing.assert_close(found[:, 0, 0], plain[:, 52, :ROWS, 8 : 8 + COLUMNS])
    torch.testing.assert_close(found[:, 0, 1], plain[:, 0, :ROWS, 8 : 8 + COLUMNS])
    assert appa.decode(z).shape == (2, 24, 71, ROWS, COLUMNS)
    assert torch.equal(appa.decode(z, [3])[:, 0], appa.decode(z)[:, 3])  # twice the same


def test_frames_are_decoded_one_at_a_time_and_again_for_a_gradient(appa):
    seen = []
    appa.autoencoder.decoder.register_forward_hook(lambda *a: seen.append(len(a[1][0])))
    z = latents().requires_grad_()
    decoded = appa.decode(z, frames=[1, 2], channels=["msl"])
    assert seen == [1] * 4
    (gradient,) = torch.autograd.grad(decoded.square().sum(), z)
    assert seen == [1] * 8
    appa.recompute = False
    (expected,) = torch.autograd.grad(appa.decode(z, [1, 2], ["msl"]).square().sum(), z)
    torch.testing.assert_close(gradient, expected)


def observed(appa, frames=(12,), channels=("t2m", "z500"), share=0.1):
    """Standardised fields of other latents at some of the points."""
    with torch.no_grad():
        y = appa.decode(latents(1, seed=5), frames, channels)[0]
    generator = torch.Generator().manual_seed(6)
    return y, torch.rand(y.shape, generator=generator) < share


def test_the_violation_is_the_sum_of_squares_where_it_is_observed(appa):
    y, mask = observed(appa, (3, 12))
    constraint = appa.observation(y, [3, 12], ["t2m", "z500"], tolerance=1e-3, mask=mask)
    z = latents()
    gap = (appa.decode(z, [3, 12], ["t2m", "z500"]) - y) * mask
    torch.testing.assert_close(constraint.violation(z), gap.square().sum(dim=(1, 2, 3, 4)))
    marked = appa.observation(
        torch.where(mask, y, torch.nan), [3, 12], ["t2m", "z500"], tolerance=1e-3
    )
    torch.testing.assert_close(marked.violation(z), constraint.violation(z))
    assert constraint.violation(latents(1, seed=5)).item() < 1e-8


@pytest.fixture
def stores(root):
    """The stores of data/: statistics on all 37 levels, and where the sea is."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("zarr", reason="zarr is not installed")
    from feasibly.weather.appa_fields import LEVELS, ON_LEVELS, SURFACE
    from feasibly.weather.era5 import NAMES

    levels, rng = LEVELS[191], np.random.default_rng(0)
    data = {NAMES[s].long: ("statistic", rng.uniform(1, 2, 2)) for s in SURFACE}
    data |= {
        NAMES[s].long: (("statistic", "level"), rng.uniform(1, 2, (2, 37))) for s in ON_LEVELS
    }
    stats = xarray.Dataset(data, {"statistic": ["mean", "std"], "level": list(levels)})
    stats.to_zarr(root / "data/stats_era5_1993-2021-1h-1440x721.zarr", zarr_format=2)
    sea = rng.uniform(size=(ROWS, COLUMNS)) < 0.6
    xarray.Dataset({"sea_surface_temperature_mask": (("latitude", "longitude"), sea)}).to_zarr(
        root / "data/masks_era5_1993-2021-1h-1440x721.zarr", zarr_format=2
    )
    return stats, torch.from_numpy(sea)


def test_fields_have_units(stores, root):
    stats, _ = stores
    fields = Appa(root, STANDIN).fields
    u = torch.randn(3, 2, ROWS, COLUMNS, dtype=torch.float64)
    standard = fields.standardise(u, ["sst", "q850"])
    q = stats["specific_humidity"].sel(level=850).values
    expected = (u[:, 1] - q[0]) / q[1]
    torch.testing.assert_close(standard[:, 1], expected)
    torch.testing.assert_close(fields.physical(standard, ["sst", "q850"]), u)


def test_the_seas_temperature_is_observed_over_the_sea_only(stores, root):
    _, sea = stores
    appa = Appa(root, STANDIN)
    assert torch.equal(appa.fields.sea, sea)
    y, z = torch.zeros(1, 2, ROWS, COLUMNS), latents()
    constraint = appa.observation(y, [12], ["sst", "t2m"], tolerance=1.0)
    fields = appa.decode(z, [12], ["sst", "t2m"])[:, 0]
    expected = (fields[:, 0] ** 2 * sea).sum(dim=(1, 2)) + (fields[:, 1] ** 2).sum(dim=(1, 2))
    torch.testing.assert_close(constraint.violation(z), expected)


def test_without_masks_the_sea_must_be_marked(appa):
    y = torch.zeros(1, 1, ROWS, COLUMNS)
    with pytest.raises(DenoiserError, match="masks_era5"):
        appa.observation(y, [12], ["sst"], tolerance=1.0)
    y[..., :5] = torch.nan
    constraint = appa.observation(y, [12], ["sst"], tolerance=1.0)
    z = latents()
    expected = appa.decode(z, [12], ["sst"])[..., 5:].square().sum(dim=(1, 2, 3, 4))
    torch.testing.assert_close(constraint.violation(z), expected)
    with pytest.raises(DenoiserError, match="stats_era5"):
        appa.fields.physical(y, ["sst"])


def test_of_several_denoisers_one_must_be_named(root):
    other = root / RUN.parent.parent / "other/0"
    shutil.copytree(root / RUN, other)
    with pytest.raises(DenoiserError, match=r"2 denoisers.*other/0.*workshop/0"):
        Appa(root, STANDIN)
    assert Appa(other, STANDIN).folder == other
    with pytest.raises(DenoiserError, match="no denoisers at autoencoders"):
        Appa(root / "data", STANDIN)


@pytest.mark.parametrize("name", ["model.pth", "model_last.pth"])
def test_other_names_of_the_weights_are_tolerated(root, name):
    (root / RUN / "model_best.pth").rename(root / RUN / name)
    (root / DUMP / "ae/model.pth").rename(root / DUMP / "ae/model_best.pth")
    Appa(root, STANDIN)


class Unsafe:
    """What a pickle may hold besides tensors."""


def test_all_files_that_are_missing_or_damaged_are_named_at_once(root):
    (root / RUN / "model_best.pth").unlink()
    torch.save(Unsafe(), root / DUMP / "ae/model.pth")
    shutil.copy(root / DUMP / "stats.pth", root / DUMP / "stats.prev.pth")
    (root / DUMP / "stats.pth").write_bytes(b"half a file")
    (root / RUN / "config.yaml").unlink()
    with pytest.raises(DenoiserError) as error:
        Appa(root, STANDIN)
    for part in (
        f"{root / RUN / 'model_best.pth'} is missing (or model.pth or model_last.pth)",
        f"{root / RUN / 'config.yaml'} is missing",
        f"{root / DUMP / 'ae/model.pth'} cannot be read",
        f"{root / DUMP / 'stats.pth'} cannot be read",
        "the save before it is stats.prev.pth",
    ):
        assert part in str(error.value)
    assert "ae/config.yaml" not in str(error.value)


def test_files_that_do_not_fit_together_are_refused(root):
    settings = yaml.safe_load((root / DUMP / "ae/config.yaml").read_text())
    settings["ae"]["lat_channels"] = 5
    (root / DUMP / "ae/config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(DenoiserError, match="autoencoder cannot be built"):
        Appa(root, STANDIN)


def test_statistics_of_other_latents_are_refused(root):
    torch.save({"mean": torch.zeros(3), "std": torch.ones(3)}, root / DUMP / "stats.pth")
    with pytest.raises(DenoiserError, match="3 channels for latents of 4"):
        Appa(root, STANDIN)


def test_graph_autoencoders_are_refused(tmp_path):
    with pytest.raises(DenoiserError, match=r"'ico7to6_c64'.*only convolutional"):
        Appa(write(tmp_path, ae={"name": "ico7to6_c64"}), STANDIN)


def test_xformers_is_stood_in_for_during_the_import_only(appa):
    """Where it is missing; its own modules stay as they are where it is not."""
    if importlib.util.find_spec("xformers"):
        assert hasattr(sys.modules["xformers"], "__version__")
    else:
        assert not any(name.split(".")[0] == "xformers" for name in sys.modules)
    assert str(STANDIN) not in sys.path


def test_code_that_is_not_there_or_another_copy_is_said(root, tmp_path):
    with pytest.raises(DenoiserError, match=r"github.com/montefiore-sail/appa .*checkout"):
        code(tmp_path / "nowhere", "appa.nn.absent")
    copy = tmp_path / "copy"
    shutil.copytree(STANDIN, copy)
    Appa(root, STANDIN)
    with pytest.raises(DenoiserError, match="one copy of Appa's"):
        Appa(root, copy)


def test_mistakes_in_observations_are_explained(appa):
    y = torch.zeros(1, 1, ROWS, COLUMNS)
    with pytest.raises(ConstraintError, match="y must have shape"):
        appa.observation(y, [11, 12], ["t2m"], tolerance=1.0)
    with pytest.raises(ConstraintError, match=r"no d2m, t300000;.*50, 100"):
        appa.observation(y, [12], ["d2m", "t300000"], tolerance=1.0)
    with pytest.raises(ConstraintError, match="Nothing is observed"):
        appa.observation(y, [12], ["t2m"], tolerance=1.0, mask=torch.zeros(1, dtype=torch.bool))
    with pytest.raises(ConstraintError, match="Latents have shape"):
        appa.decode(torch.zeros(2, 24, 72))
