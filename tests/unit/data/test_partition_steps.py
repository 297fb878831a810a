"""Tasks of a partition that are run twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygnn.data.cache import building


def test_two_attempts_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    with building(folder) as first:
        (first / "result.json").write_text("first")
        with building(folder) as second:
            assert first != second
            (second / "result.json").write_text("second")
    assert (folder / "result.json").read_text() == "second"  # which was whole first
    assert [path.name for path in tmp_path.iterdir()] == ["task"]


def _fail(folder: Path) -> None:
    with building(folder) as half:
        (half / "half.npy").write_bytes(b"half")
        raise ValueError("x")


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"):
        _fail(tmp_path / "task")
    assert not list(tmp_path.iterdir())
