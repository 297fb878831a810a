"""Tables that raygnn writes for itself are whole, or they are written again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.errors import DataError, ResourceError
from raygnn.runtime import data_source
from raygnn.runtime.data_source import open_bundle

_DATA = {"synthetic": {"type": "planted_partition", "num_nodes": 60, "num_classes": 3, "seed": 0}}


def _open(cache: Path) -> Bundle:
    return open_bundle(load_config({"data": {**_DATA, "cache_dir": str(cache)}}), None)


@pytest.mark.parametrize("pattern", ["graph.yaml", "edges/*/part-00001-*", "../*.json"])
@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_generated_tables_that_lost_a_file_are_written_again(
    tmp_path: Path, pattern: str, damage: str
) -> None:
    first = _open(tmp_path)
    (tables,) = [path for path in (tmp_path / "tables").iterdir() if path.is_dir()]
    (path,) = tables.glob(pattern)
    whole = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(b"")
    assert _open(tmp_path).path == first.path
    assert path.read_bytes() == whole


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_cache_that_takes_nothing_serves_what_it_has(monkeypatch, tmp_path: Path, number: int):
    first = _open(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(data_source, "FileLock", fail)
    assert _open(tmp_path).path == first.path
    next((tmp_path / "tables").glob("*.json")).unlink()
    with pytest.raises(ResourceError, match=r"data.cache_dir: .*/synthetic-.* cannot be written"):
        _open(tmp_path)


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data.cache_dir=.*/file' is invalid: tables cannot be"):
        _open(tmp_path / "file")
