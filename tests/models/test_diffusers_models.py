"""Models of diffusers in memory and in folders, and what is refused."""

import json
import logging
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import feasibly
from feasibly.cli.load import load_denoiser
from feasibly.errors import DenoiserError
from feasibly.schedules import VP, Flow, Rectified
from tests.helpers import on, sampled

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")


def unet(**options):
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        **({"out_channels": 1} | options),
    )


def dit(**options):
    torch.manual_seed(0)
    net = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=2,
        num_layers=1,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
        **options,
    )
    # its last layers begin at zero, and would hide what goes in
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net


def same(net, adapter, scheduler, shape, **conditions):
    """Whether the estimate is that of the model in memory, by the scheduler's own formula."""
    scheduler.set_timesteps(1000)
    x = torch.randn(2, *shape)
    for step in (1, 500, 990):
        output = net(x, torch.tensor([step, step]), **conditions).sample[:, : shape[0]]
        alpha_bar = scheduler.alphas_cumprod[step]
        expected = {
            "epsilon": (x - (1 - alpha_bar).sqrt() * output) / alpha_bar.sqrt(),
            "v_prediction": alpha_bar.sqrt() * x - (1 - alpha_bar).sqrt() * output,
        }[scheduler.config.prediction_type]
        found = adapter(x, torch.tensor(step / 999), **conditions).mean
        scale = expected.abs().max()
        torch.testing.assert_close(found / scale, expected / scale, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_unet_saved_and_reloaded(tmp_path, caplog):
    logging.getLogger("diffusers").addHandler(caplog.handler)
    net, scheduler = unet().eval(), diffusers.DDPMScheduler()
    diffusers.DDPMPipeline(net, scheduler).save_pretrained(tmp_path / "pipeline")
    net.save_pretrained(tmp_path / "net")
    scheduler.save_pretrained(tmp_path / "scheduler")
    for adapter in (
        feasibly.wrap(tmp_path / "pipeline"),
        feasibly.wrap(str(tmp_path / "net"), schedule=tmp_path / "scheduler"),
        feasibly.wrap(net, schedule=scheduler),
        feasibly.wrap(diffusers.DDPMPipeline(net, scheduler)),
    ):
        same(net, adapter, scheduler, (1, 8, 8))
        assert not adapter.net.training
    assert "DDPMScheduler, prediction_type epsilon" in repr(adapter)
    logging.getLogger("diffusers").removeHandler(caplog.handler)
    assert "accelerate" not in caplog.text  # which it can do without


@pytest.mark.parametrize("schedule", [VP(), Flow(), Rectified()], ids=repr)
def test_steps_are_not_taken_for_times(schedule):
    """Without data nothing else shows that a model is given times in [0, 1] in place of steps."""
    kind = "eps" if isinstance(schedule, VP) else "velocity"
    with pytest.raises(DenoiserError, match=r"trained on the steps .*time=lambda t: 999 \* t"):
        feasibly.wrap(unet(), kind, schedule)
    for time in (lambda t: 999 * t, lambda t: t):
        feasibly.wrap(unet(), kind, schedule, time=time)
    feasibly.wrap(unet(), "score_sde", VP())


@torch.no_grad()
def test_a_dit_with_labels_and_a_learned_variance_saved_and_reloaded(tmp_path):
    net = dit(out_channels=4).eval()
    scheduler = diffusers.DDIMScheduler(prediction_type="v_prediction")
    net.save_pretrained(tmp_path / "transformer")
    scheduler.save_pretrained(tmp_path / "scheduler")
    labels = torch.tensor([3, 7])
    adapter = feasibly.wrap(tmp_path, conditions={"class_labels": labels})
    same(net, adapter, scheduler, (2, 8, 8), class_labels=labels)
    x, t = torch.randn(2, 2, 8, 8), torch.tensor(0.5)
    own = adapter(x, t).mean
    torch.testing.assert_close(own, adapter(x, t, class_labels=labels).mean)
    assert (own - adapter(x, t, class_labels=labels.flip(0)).mean).abs().max() > 1e-4
    assert "learned variance" in repr(adapter)
    drawn = sampled(on(feasibly.Ancestral(steps=4), adapter), [1], (2, 8, 8)).samples
    whole = sampled(on(feasibly.Ancestral(steps=4), adapter), [0, 1], (2, 8, 8)).samples
    torch.testing.assert_close(drawn[0], whole[1], rtol=1e-3, atol=1e-3)


SCHEDULERS = {
    "LCMScheduler": ({}, "distilled model"),
    "ScoreSdeVeScheduler": ({}, "alphas_cumprod"),
    "FlowMatchEulerDiscreteScheduler": ({"invert_sigmas": True}, "invert_sigmas True"),
    "UniPCMultistepScheduler": (
        {"prediction_type": "v_prediction", "use_flow_sigmas": True},
        "'v_prediction'.* is not supported: for a flow",
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_that_are_not_supported_are_refused(name):
    options, message = SCHEDULERS[name]
    with pytest.raises(DenoiserError, match=message):
        feasibly.wrap(unet(), schedule=getattr(diffusers, name)(**options))


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(DenoiserError, match="does not say what it predicts"):
        feasibly.wrap(unet())
    with pytest.raises(DenoiserError, match="cannot be read as a folder"):
        feasibly.wrap(tmp_path / "nowhere")
    with pytest.raises(DenoiserError, match=r"got NoneType|got DDPMScheduler"):
        feasibly.wrap(diffusers.DDPMScheduler())


def test_a_missing_library_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(DenoiserError, match="pip install diffusers"):
        feasibly.wrap(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DenoiserError, match="pip install huggingface_hub"):
        feasibly.wrap("hub:somebody/digits")


@pytest.mark.parametrize("name", ["DiffusionPipeline", "DDPMScheduler", "nn", "Nothing", ["a"]])
def test_a_folder_may_name_a_model_and_nothing_else(name, tmp_path, monkeypatch):
    loaded = []
    for cls in (diffusers.DiffusionPipeline, diffusers.DDPMScheduler):
        monkeypatch.setattr(cls, "from_pretrained", lambda *a, **k: loaded.append(a))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": name}))
    with pytest.raises(DenoiserError, match=r"names the class .* which is no model") as raised:
        feasibly.wrap(tmp_path)
    assert repr(name) in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    assert not loaded


def test_a_folder_may_name_a_scheduler_and_nothing_else(tmp_path):
    (tmp_path / "scheduler_config.json").write_text('{"_class_name": "DiffusionPipeline"}')
    with pytest.raises(DenoiserError, match="'DiffusionPipeline', which is no scheduler"):
        feasibly.wrap(unet(), "diffusers", tmp_path)


def test_pickled_weights_are_not_loaded(tmp_path):
    net, scheduler = unet().eval(), diffusers.DDPMScheduler()
    net.save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(DenoiserError, match=r"pickle.*safe_serialization=True"):
        feasibly.wrap(tmp_path, schedule=scheduler)
    # and what the message says helps
    safe = diffusers.UNet2DModel.from_pretrained(
        tmp_path, use_safetensors=False, low_cpu_mem_usage=False
    )
    safe.save_pretrained(tmp_path, safe_serialization=True)
    feasibly.wrap(tmp_path, schedule=scheduler)


@torch.no_grad()
def test_a_model_of_the_hub_is_loaded_from_the_cache_without_a_network(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    net, scheduler = unet().eval(), diffusers.DDPMScheduler()
    folder = tmp_path / "models--somebody--digits"
    for model in ("unet", "scheduler"):
        (net if model == "unet" else scheduler).save_pretrained(
            folder / "snapshots" / ("a" * 40) / model
        )
    for name in ("main", "second"):
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / name).write_text("a" * 40)
    for name in ("hub:somebody/digits", "hub:somebody/digits@second"):
        same(net, feasibly.wrap(name), scheduler, (1, 8, 8))
    same(net, load_denoiser("hub:somebody/digits"), scheduler, (1, 8, 8))  # by a command
    for name in ("hub:somebody/letters", "hub:somebody/digits@third"):
        with pytest.raises(
            DenoiserError, match=f"cannot be reached, .* does not contain '{name}'"
        ):
            feasibly.wrap(name)
    with pytest.raises(DenoiserError, match="The name is 'hub:organisation/name'"):
        feasibly.wrap("hub:some body/digits")


def test_no_pickles_and_no_code_are_taken_from_the_hub(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    files = (
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        "scheduler/scheduler_config.json",
    )
    others = ("unet/diffusion_pytorch_model.bin", "pytorch_model.bin", "unet/unet.py")

    def download(model, revision, allow_patterns):
        assert (model, revision) == ("somebody/digits", "second")
        kept = hub.utils.filter_repo_objects([*files, *others], allow_patterns=allow_patterns)
        assert tuple(kept) == files
        unet().save_config(tmp_path / "unet")
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(DenoiserError, match="no weights as safetensors"):
        feasibly.wrap("hub:somebody/digits@second")


def test_what_the_hub_refuses_is_said(monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

    def refuse(*_, **__):
        raise OSError("403 Client Error.")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(DenoiserError, match="does not provide 'hub:a/b': 403 Client"):
        feasibly.wrap("hub:a/b")


def edited(folder, name, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("time_embedding_type", "fourier", r"network of 17,873 parameters or more"),
        ("block_out_channels", [2**15, 2**15], r"network of [\d,]{12,} parameters or more"),
        ("block_out_channels", [10**12, 10**12], r"network of [\d,]{12,} parameters or more"),
        ("layers_per_block", 10**9, r"network of 1,000,000,000 parameters or more"),
    ],
)
def test_weights_of_another_network_are_refused(name, value, words, tmp_path):
    scheduler, net = diffusers.DDPMScheduler(), unet()
    net.save_pretrained(tmp_path)
    scheduler.save_pretrained(tmp_path)
    assert feasibly.wrap(tmp_path).net is not None
    edited(tmp_path, name, value)
    with pytest.raises(DenoiserError, match=words):
        feasibly.wrap(tmp_path)


def test_weights_of_other_names_are_refused(tmp_path):
    unet().save_pretrained(tmp_path)
    diffusers.DDPMScheduler().save_pretrained(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    weights = load_file(path)
    weights["conv_inn.weight"] = weights.pop("conv_in.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(
        DenoiserError, match=r"1 missing \(conv_in.weight\); 1 unexpected \(conv_inn.weight\)"
    ):
        feasibly.wrap(tmp_path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    unet().save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(DenoiserError, match="is not a regular file"):
        feasibly.wrap(tmp_path)
