import pytest

from experiments.ensembles import Identical, Memory, Setting, Throughput

pytest.importorskip("zarr")
pytestmark = pytest.mark.slow

SMALL = Setting(steps=2, dtype="float64")


def test_members_are_compared_with_those_of_one_process(tmp_path):
    rows = Identical(SMALL, members=4).run(tmp_path)
    assert [(row["processes"], row["chunk"]) for row in rows] == [
        (1, 16),
        (2, 16),
        (4, 16),
        (1, 1),
        (1, 3),
    ]
    assert all(row["within_1e-5"] == 4 and row["largest"] < 1e-9 for row in rows)


def test_each_number_of_members_has_a_peak_and_each_of_processes_a_time(tmp_path):
    rows = Memory(Setting(steps=2), members=(2, 3)).run(tmp_path / "memory")
    assert [row["members"] for row in rows] == [2, 3]
    assert all(row["peak_mb"] > 100 for row in rows)
    rows = Throughput(Setting(steps=2), members=4).run(tmp_path / "throughput")
    assert [row["processes"] for row in rows] == [1, 2]
    assert rows[0]["speedup"] == 1
