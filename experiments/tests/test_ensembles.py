import pytest
import torch

from experiments.ensembles import identical, memory, throughput

pytest.importorskip("zarr")
pytestmark = pytest.mark.slow


def test_members_are_compared_and_each_number_has_a_peak_and_a_time(tmp_path):
    rows = identical(tmp_path / "identical", 4, ("data2d", 2, torch.float64))
    assert [row["within_1e-5"] for row in rows] == [4] * 5
    assert max(row["largest"] for row in rows) < 1e-9
    rows = memory(tmp_path / "memory", members=(2, 3))
    assert [row["members"] for row in rows] == [2, 3]
    assert all(row["peak_mb"] > 100 for row in rows)
    rows = throughput(tmp_path / "throughput", members=4, task=("data2d", 2))
    assert [row["processes"] for row in rows] == [1, 2]
    assert rows[0]["speedup"] == 1
