"""What a worker looks for on its node before it trains; without a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.outputs.run_start import open_run_folder
from raygnn.runtime import ray_train
from raygnn.runtime.node_bundle import _read_bundle
from tests.errors import raises
from tests.small_runs import small_bundle, small_config


def test_a_folder_that_is_not_the_drivers_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_train, "_SEEN_WITHIN_S", 0.0)
    folder = open_run_folder(load_config(small_config(tmp_path)), "run")
    ray_train.check_folder_is_seen(folder, str(tmp_path))
    (tmp_path / "run" / "run.json").unlink()
    with raises("run-storage-not-shared"):
        ray_train.check_folder_is_seen(folder, str(tmp_path))
    # So does a folder of another start, as an earlier run may have left on that node.
    open_run_folder(load_config(small_config(tmp_path)), "run")
    with raises("run-storage-not-shared"):
        ray_train.check_folder_is_seen(folder, str(tmp_path))


def test_a_bundle_arrives_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("raygnn.runtime.node_bundle._CHUNK_BYTES", 1000)
    source = small_bundle(tmp_path).path
    (source / "empty.npy").touch()
    (source / "csr.lock").touch()
    (source / ".building-csr").mkdir()
    (source / ".building-csr" / "half.npy").write_bytes(b"half")
    copy = tmp_path / "copy"
    for name, content in _read_bundle(str(source)):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        with (copy / name).open("ab") as file:
            file.write(content)
    assert _files(copy) == _files(source) - {"csr.lock", ".building-csr/half.npy"}
    for name in _files(copy):
        assert (copy / name).read_bytes() == (source / name).read_bytes()
    assert Bundle.open(copy).num_nodes("node") == 300


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_pieces_are_what_ray_shares_without_copies(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert [(name, type(piece)) for name, piece in _read_bundle(str(tmp_path))] == [
        ("a", np.ndarray)
    ]
