"""Tables that raygnn writes for itself; bundles and folders that reach other nodes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import raygnn.train
from raygnn.config import LoadedConfig, load_config
from raygnn.data.bundle import Bundle
from raygnn.errors import DataError
from raygnn.outputs.run_start import open_run_folder
from raygnn.runtime import ray_train
from raygnn.runtime.data_source import open_bundle, open_trial_bundle, tables_uri
from raygnn.runtime.node_bundle import _read_bundle
from tests.errors import raises
from tests.small_runs import small_bundle, small_config

_DATA = {"synthetic": {"type": "planted_partition", "num_nodes": 60, "num_classes": 3, "seed": 0}}


def _open(cache: Path) -> Bundle:
    return open_bundle(load_config({"data": {**_DATA, "cache_dir": str(cache)}}), None)


@pytest.mark.parametrize("pattern", ["graph.yaml", "edges/*/part-00001-*", "written.json"])
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

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock, "FileLock", fail)
    assert _open(tmp_path).path == first.path
    next((tmp_path / "tables").glob("*/written.json")).unlink()
    with raises("data-cache-unusable", "/tables"):
        _open(tmp_path)


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises("data-cache-unusable", "folder tables", "/file"):
        _open(tmp_path / "file")


def _trial(cache: Path, *overrides: str, source: bool = True) -> LoadedConfig:
    data = {**(_DATA if source else {}), "cache_dir": str(cache)}
    return load_config({"data": data}, overrides)


@pytest.mark.parametrize(
    ("override", "is_ingested"),
    [
        ("--data.splits={type: hash, fractions: [0.5, 0.2, 0.3]}", False),
        ("--data.splits={type: per_class, train: 3}", False),
        ("--optimizer.args.lr=0.1", False),
        ("--data.undirected=true", True),
        ("--data.reverse_edges=true", True),
        ("--data.reverse_edges=[node__to__node]", True),
        ("--data.feature_dtype=float16", True),
        ("--data.on_error=drop", True),
        ("--data.synthetic.seed=1", True),
    ],
)
@pytest.mark.parametrize("source", [True, False])
def test_a_trial_ingests_only_what_makes_another_bundle(
    tmp_path: Path, capsys, override: str, is_ingested: bool, source: bool
) -> None:
    """Also where the sweep was given the graph as an object, and the trial has its tables only."""
    sweep = _trial(tmp_path, source=source)
    given = None
    if source:
        bundle = open_bundle(sweep, None)
    else:
        graph = Data(x=torch.randn(6, 2), edge_index=torch.tensor([[0, 1, 2], [3, 4, 5]]))
        bundle, given = open_bundle(sweep, graph), tables_uri(sweep, graph)
    capsys.readouterr()
    if not source and "synthetic" in override:
        named = "--data.synthetic={type: rmat, num_nodes: 8, num_edges: 9}"
        with raises("data-source-twice"):
            open_trial_bundle(_trial(tmp_path, named, source=False), sweep, str(bundle.path), given)
        return
    trial = _trial(tmp_path, override, source=source)
    opened = open_trial_bundle(trial, sweep, str(bundle.path), given)
    assert (opened.path != bundle.path) is is_ingested
    assert ("ingest: wrote bundle" in capsys.readouterr().out) is is_ingested


def test_attributes_of_pyg_that_are_not_read_are_named(tmp_path: Path, capsys) -> None:
    graph = Data(x=torch.randn(6, 2), edge_index=torch.tensor([[0, 1], [3, 4]]), pos=torch.ones(6))
    tables_uri(_trial(tmp_path, source=False), graph)
    assert "attributes of data that are not read: pos" in capsys.readouterr().out


def test_an_error_about_a_graph_in_memory_says_where_to_set_it(tmp_path: Path) -> None:
    graph = Data(x=torch.randn(6, 2), edge_index=torch.tensor([[0, 1], [3, 4]]))
    config = small_config(tmp_path, scaling__num_workers=0)
    config.pop("data", None)
    with pytest.raises(DataError) as raised:
        raygnn.train.fit(config, data=graph)
    assert "graph.yaml" in str(raised.value)
    assert "y labels" in raised.value.__notes__[0]


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
