import math, torch, time, sys
from small import *
import feasibly


def paths(n, T=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    # turn rate: an OU process, bounded
    r = torch.zeros(n)
    th = (torch.rand(n, generator=g) - 0.5) * 2.0
    x = torch.stack((-1.6 * torch.ones(n), 2.0 * (torch.rand(n, generator=g) - 0.5)), 1)
    out = [x]
    step = 0.12
    for _ in range(T - 1):
        r = 0.8 * r + 0.12 * torch.randn(n, generator=g)
        th = th + r.clamp(-0.4, 0.4)
        x = x + step * torch.stack((th.cos(), th.sin()), 1)
        out.append(x)
    return torch.stack(out, 1)


if __name__ == "__main__":
    x = paths(4096)
    print(
        x.shape,
        x.std(),
        x.flatten(0, 1).mean(0),
        x.flatten(0, 1).std(0),
        x.amax((0, 1)),
        x.amin((0, 1)),
    )
    torch.manual_seed(0)
    net = VectorNet(64)
    print(sum(p.numel() for p in net.parameters()))
    den = feasibly.Karras(net, feasibly.schedules.LogLogit())

    def loss(b):
        return den.loss(b, torch.rand(len(b)), torch.randn_like(b)).mean()

    data = paths(32768, seed=1)
    t = time.process_time()
    N = int(sys.argv[1])
    l = fit(net, loss, lambda n: data[torch.randint(len(data), (n,))], N, batch=256)
    print(time.process_time() - t)
    for i in range(0, N, N // 8):
        print(i, sum(l[i : i + N // 8]) / (N // 8))
    torch.save(net.state_dict(), "/tmp/w/tr.pt")
    net.eval().requires_grad_(False)
    s = feasibly.Ancestral(den, steps=64).sample(256, (32, 2)).samples
    d = s.diff(dim=1).norm(dim=2)
    print(
        "speed",
        d.mean(),
        d.std(),
        "turn",
    )
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    f, a = plt.subplots(1, 2, figsize=(10, 5))
    for p in s[:40]:
        a[0].plot(*p.T, lw=0.7)
    for p in x[:40]:
        a[1].plot(*p.T, lw=0.7)
    f.savefig("/tmp/w/tr.png")
