import pytest
import torch

from feasibly.ensemble import memory

CPU = torch.device("cpu")
MB = 2**20


@pytest.mark.parametrize(
    ("member", "free", "sharing", "chunk"),
    [(100, 2000, 1, 10), (100, 2000, 4, 2), (1000, 1000, 1, 1), (1, 10**12, 1, 1024)],
)
def test_a_chunk_takes_half_of_the_free_memory(member, free, sharing, chunk):
    assert memory.fitting(member, free, sharing) == chunk


def test_a_peak_is_seen_after_it_has_passed():
    def action():
        block = torch.ones(64 * MB // 4)
        return float(block.sum())

    memory.peak(action, CPU)
    total, taken = memory.peak(action, CPU)
    assert total == 64 * MB // 4
    assert 60 * MB < taken < 120 * MB


def test_there_is_free_memory():
    assert MB < memory.room(CPU) < 2**50


def test_the_limit_of_a_container_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    free = memory.room(CPU)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(memory.room(CPU) - free) < 2**32
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory.room(CPU) == 4000


def test_a_lack_of_memory_is_known_by_its_cause():
    lack = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")
    outer = ValueError("Step 3 failed")
    outer.__cause__ = lack
    for error in (lack, outer, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        assert memory.is_exhausted(error)
    assert not memory.is_exhausted(RuntimeError("shapes differ"))
    assert not memory.is_exhausted(None)
    with pytest.raises(RuntimeError) as huge:
        torch.empty(2**60)
    assert memory.is_exhausted(huge.value)
