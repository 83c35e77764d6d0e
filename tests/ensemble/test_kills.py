"""Twenty runs, killed at moments that nobody chose."""

import os
import signal
import time

import pytest
import torch

from feasibly.ensemble import Store, Summary
from tests.ensemble.conftest import MEMBERS, draw, values

pytestmark = pytest.mark.slow


def slowly(call, rows):
    time.sleep(0.005)


@pytest.mark.parametrize("trial", range(20))
@pytest.mark.parametrize("victims", [1, 2], ids=["one", "all"])
def test_a_run_of_two_processes_survives_kills(path, undisturbed, start, trial, victims):
    rng = torch.Generator().manual_seed(100 * victims + trial)
    size = 1 + trial % 3
    crew = [start(draw, path, fault=slowly, batch_size=size, rank=k, workers=2) for k in range(2)]
    time.sleep(float(torch.rand((), generator=rng)) * 1.5)
    for process in crew[:victims]:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    crew[1].join()
    before = {}
    if path.exists():
        store = Store(path)
        before = {r.member: store.get(r.member).tobytes() for r in Summary.read(store).records}
    if victims == 1:
        assert crew[1].exitcode == 0
        assert len(before) == MEMBERS
    drawn = []
    assert draw(path, fault=lambda call, rows: drawn.extend(rows)).counted == MEMBERS
    assert not set(drawn) & set(before)
    store = Store(path)
    assert all(store.get(m).tobytes() == content for m, content in before.items())
    torch.testing.assert_close(values(path), undisturbed, rtol=1e-5, atol=1e-6)
