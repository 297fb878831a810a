"""Rows computed by 1, 2 and 3 ranks, on one host or on several, are the same and complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raygnn.errors import TrainingError
from raygnn.parallel import collectives
from raygnn.parallel.shared_rows import SharedRows
from tests.errors import raises

CHUNKS = [(0, 4), (4, 5), (5, 9), (9, 11)]


def _rows_of(first: int, last: int) -> torch.Tensor:
    return torch.arange(first, last).float().unsqueeze(1) * torch.tensor([1.0, 10.0])


def _compute(folder: Path, hosts: list[str]) -> tuple[torch.Tensor, torch.Tensor, int]:
    counted = []

    def rows_of(first: int, last: int) -> torch.Tensor:
        counted.append(first)
        return _rows_of(first, last)

    shared = SharedRows(folder, hosts[collectives.rank()])
    found = shared(CHUNKS, rows_of, 2)
    second = shared([(0, 3)], lambda first, last: found[8:11], 2)  # reads what others computed
    return found.clone(), second.clone(), len(counted)


@pytest.mark.parametrize("hosts", [["a"], ["a", "a"], ["a", "b"], ["a", "b", "a"]])
def test_every_rank_has_all_rows(ranks, tmp_path, hosts):
    results = ranks.run(_compute, len(hosts), tmp_path, hosts)
    for found, second, _ in results:
        assert torch.equal(found, _rows_of(0, 11))
        assert torch.equal(second, _rows_of(8, 11))
    counts = [count for *_, count in results]
    assert sum(counts) == len(CHUNKS)
    assert max(counts) - min(counts) <= 1
    assert not list(tmp_path.iterdir())


def test_nothing_is_no_file(tmp_path):
    shared = SharedRows(tmp_path)
    assert shared([], _rows_of, 2).shape == (0, 2)
    assert shared(CHUNKS, lambda first, last: torch.zeros(last - first, 0), 0).shape == (11, 0)


def _fail(folder: Path, hosts: list[str]) -> str:
    def rows_of(first: int, last: int) -> torch.Tensor:
        if first == 4:
            raise ValueError("broken chunk")
        return _rows_of(first, last)

    with pytest.raises(TrainingError) as caught:
        SharedRows(folder, hosts[collectives.rank()])(CHUNKS, rows_of, 2)
    return str(caught.value)


@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b"]])
def test_a_failing_rank_is_named_on_all(ranks, tmp_path, hosts):
    expected = "Rank 1 failed in encoding: ValueError: broken chunk [run-rank-failed]"
    assert ranks.run(_fail, 2, tmp_path, hosts) == [expected] * 2


def test_a_full_disk_is_told(tmp_path):
    with raises("run-rank-failed", "making room for rows"):
        SharedRows(tmp_path)([(0, 1 << 44)], _rows_of, 2)


def _fail_to_map(folder: Path) -> str:
    shared = SharedRows(folder, "a")
    with pytest.MonkeyPatch.context() as patch:
        if collectives.rank() == 1:
            patch.setattr("numpy.memmap", _no_memory)
        with pytest.raises(TrainingError) as caught:
            shared(CHUNKS, _rows_of, 2)
    return str(caught.value)


def _no_memory(*args: object, **options: object) -> None:
    raise OSError("Cannot allocate memory")


def test_rows_that_one_rank_cannot_map_are_told_by_all(ranks, tmp_path):
    expected = "Rank 1 failed in mapping rows: OSError: Cannot allocate memory [run-rank-failed]"
    assert ranks.run(_fail_to_map, 2, tmp_path) == [expected] * 2
    assert not list(tmp_path.iterdir())
