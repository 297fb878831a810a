"""Damaged files of stored graphs, neighborhoods and models: an error with an id, or the doctor."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from raygnn import doctor
from raygnn.config import load_config
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.ingest.build_bundle import check_arrays, ingest
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, Part
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.errors import RaygnnError
from raygnn.inference.applied_model import load_module, set_up_task
from raygnn.outputs.model_export import write_model
from raygnn.outputs.saved_model import SavedModel
from raygnn.presample import presample
from raygnn.runtime.data_checks import find_spec
from raygnn.sampling.stored_samples import StoredSamples
from tests.fuzz.cases import cases
from tests.small_runs import small_config

_EDGE = ("paper", "cites", "paper")


def _tables() -> GraphTables:
    rng = np.random.default_rng(0)
    names = np.array([f"paper {number}" for number in rng.permutation(200)])
    words = (rng.random((200, 64)) < 0.03).astype(np.float32)
    papers = node_rows(
        names, {"x": rng.random((200, 3)), "words": words}, {"y": rng.integers(0, 3, 200)}
    )
    source, target = rng.integers(0, 200, (2, 900))
    times = rng.integers(0, 50, 900)
    cites = edge_rows(names[source], names[target], weight=rng.random(900, np.float32), time=times)
    likes = {(_EDGE, "positive"): edge_rows(names[source[:50]], names[target[:50]])}
    return GraphTables({"paper": papers}, {_EDGE: cites}, label_edges=likes)


def _read_graph(bundle: Bundle) -> None:
    for type_ in (*bundle.node_types, *bundle.edge_types):
        for name in bundle.columns(type_):
            column = bundle.column(type_, name)
            assert isinstance(column, SparseColumn) or column.sum() is not None
    bundle.csc(_EDGE)


def _read_bundle(folder: Path) -> None:
    bundle = Bundle.open(folder)
    check_arrays(bundle)
    _read_graph(bundle)
    bundle.id_map("paper").lookup(pa.array(["paper 3", "paper x"]))
    bundle.take_ids("paper", np.arange(200)).to_pylist()
    bundle.csr(_EDGE)
    bundle.alias(_EDGE, "weight")


def _read_parts(folder: Path) -> None:
    outline = Outline.build(folder, folder.parent / "cache", {_EDGE: ()})
    for number in range(2):
        _read_graph(Part(folder, number, outline))


def _read_samples(folder: Path) -> None:
    samples = StoredSamples.open(str(folder))
    samples.record.check_files(str(folder))
    for name, split in samples.record.splits.items():
        stored = samples.of_split(name, 0)
        assert stored is not None
        for index in range(split.num_batches):
            stored.row(0, index)


def _reader_of_model(bundle: Bundle) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        saved = SavedModel.open(str(folder))
        load_module(saved, set_up_task(saved, saved.fitted(bundle), torch.device("cpu")))

    return read


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """By kind, a folder and its reader."""
    folder = tmp_path_factory.mktemp("stored")
    tables = write_tables(_tables(), str(folder / "tables"))
    bundle = ingest(tables, cache_dir=folder / "cache")
    partition(tables, folder / "parts", Partitioning(num_parts=2))
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    config = small_config(
        folder,
        data={"uri": tables, "splits": splits, "cache_dir": str(folder / "cache")},
        scaling__num_workers=0,
        loader__batch_size=64,
    )
    presample(config, folder / "samples", num_epochs=1)
    loaded = load_config(config)
    spec = find_spec(loaded, bundle)
    assert spec is not None
    model = set_up_task(
        SavedModel("", loaded, spec, ""), spec.fitted(bundle), torch.device("cpu")
    ).build_model()
    write_model(model.state_dict(), str(folder / "model"), loaded.saved_yaml(), spec.to_json())
    _read_bundle(bundle.path)  # builds the derived arrays
    found = {
        "bundle": (bundle.path, _read_bundle),
        "parts": (folder / "parts", _read_parts),
        "samples": (folder / "samples", _read_samples),
        "model": (folder / "model", _reader_of_model(bundle)),
    }
    for path, read in found.values():
        read(path)
        assert _is_healthy(path)
    return found


def _is_healthy(folder: Path) -> bool:
    kind = next(check for name, check in doctor._STORED.items() if (folder / name).exists())
    try:
        return all(finding.level == "ok" for finding in kind(str(folder)))
    except RaygnnError as error:
        _check_has_id(error)
        return False


def _check_has_id(error: RaygnnError) -> None:
    assert error.id is not None, error


def _damaged(content: bytes, draw: random.Random) -> bytes:
    damage = draw.choice(["flip", "cut", "zeros", "type"])
    place = draw.randrange(max(len(content), 1))
    if damage == "type" and content[:1] == b"{":
        return _with_other_type(json.loads(content), draw)
    if damage == "cut":
        return content[:place]
    if damage == "zeros":
        return content[:place] + bytes(len(content[place : place + 64])) + content[place + 64 :]
    changed = bytearray(content)
    if changed:
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _with_other_type(content: Any, draw: random.Random) -> bytes:
    """A record with one value of another type; half of them with the checksum of their content."""
    values: list[tuple[Any, Any]] = []
    stack = [content]
    while stack:
        found = stack.pop()
        keys = list(found) if isinstance(found, dict) else range(len(found))
        values += [(found, key) for key in keys]
        stack += [found[key] for key in keys if isinstance(found[key], dict | list) and found[key]]
    parent, key = draw.choice(values)
    others = [None, "x", -1, 2.5, [], {}, [1, "a"], {"a": 1}, True, 1 << 70]
    parent[key] = draw.choice([other for other in others if type(other) is not type(parent[key])])
    if draw.random() < 0.5:
        content.pop("checksum", None)
        return dump_record(content).encode()
    return json.dumps(content).encode()


def _is_sealed(content: bytes) -> bool:
    try:
        parse_record(content)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", ["bundle", "parts", "samples", "model"])
def test_damage_is_an_error_or_found_by_the_doctor(
    kind: str, stored: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, read = stored[kind]
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    files = [name for name in files if not name.name.endswith((".lock", ".claim"))]
    for number in cases(12, 1):
        for name in files:
            draw = random.Random(f"{number} {name}")
            content = (folder / name).read_bytes()
            changed = _damaged(content, draw)
            if changed == content:
                continue
            copy = tmp_path / "copy"
            shutil.copytree(folder, copy, symlinks=True)
            (copy / name).write_bytes(changed)
            shown = f"case {number}: {name}"
            try:
                is_sound = _is_healthy(copy)
                read(copy)
            except RaygnnError as error:
                _check_has_id(error)
            except Exception as error:
                raise AssertionError(shown) from error
            else:
                assert not is_sound or _is_sealed(changed), shown
            shutil.rmtree(copy)
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
