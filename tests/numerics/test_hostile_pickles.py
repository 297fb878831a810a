"""Files that run code when they are unpickled: no command does that unless it allows a module."""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import raygnn.infer
import raygnn.prepare.__main__
import raygnn.train
from raygnn.data.ingest.build_bundle import ingest
from raygnn.outputs.checkpoints.store import STATE
from tests.graph_writer import write_graph
from tests.small_runs import small_bundle, small_config

NUM_NODES = 40
DATA_SET = "torch_geometric.datasets.Planetoid"


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def planetoid(tmp_path: Path, marker: Path) -> dict[str, Any]:
    """A `data` section that leads a data set of PyG to pickles."""
    raw = tmp_path / "root" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for name in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(Touch(marker)))
    return {"type": DATA_SET, "args": {"root": str(tmp_path / "root"), "name": "Cora"}}


def _write_graph(folder: Path) -> str:
    source, target = np.random.default_rng(0).integers(0, NUM_NODES, (2, 100))
    nodes = {"id": np.arange(NUM_NODES), "y": np.arange(NUM_NODES) % 2, "x": np.arange(NUM_NODES)}
    edges = pa.table({"s": source, "t": target})
    spec = {"labels": {"y": "y"}, "features": {"x": "x"}}
    return str(write_graph(folder, pa.table(nodes), edges, spec))


@pytest.fixture
def graph(tmp_path: Path) -> str:
    return _write_graph(tmp_path / "g")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose checkpoints are all there."""
    folder = tmp_path_factory.mktemp("trained")
    data = {"uri": _write_graph(folder / "g"), "splits": {"type": "hash"}}
    assert _train(folder, data=data, checkpoint={"policy": "all"}) == 0
    return folder / "run"


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _train(tmp_path: Path, *options: str, **changes: Any) -> int:
    config = small_config(tmp_path, scaling__num_workers=0, training__max_epochs=1, **changes)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return raygnn.train.main([str(tmp_path / "config.yaml"), *options])


def test_data_sets_of_pyg_unpickle_only_where_they_are_allowed(tmp_path, planetoid, marker, capsys):
    assert _train(tmp_path, data=planetoid) == 2
    message = capsys.readouterr().err
    assert "Add --allow-module torch_geometric.datasets" in message
    assert "Traceback" not in message
    assert not marker.exists()
    # The attack is one: where the module is allowed, PyG does unpickle.
    _train(tmp_path, "--allow-module", "torch_geometric.datasets", data=planetoid)
    assert marker.exists()


def test_the_config_of_a_model_brings_nothing_along(
    tmp_path, graph, run, planetoid, marker, capsys
):
    config = yaml.safe_load((run / "config.yaml").read_text())
    function = "tests.numerics.test_hostile_pickles.touch"
    config |= {"init_env": function, "loop": function, "loggers": [{"type": "a.B"}]}
    config["callbacks"] = [{"on_setup": function}]
    config["data"] |= planetoid | {"uri": None, "cache_dir": str(tmp_path / "theirs")}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    infer = [str(run), "--out", str(tmp_path / "out"), "--scaling.num_workers", "0"]
    infer += ["--allow-module", "tests", "--allow-module", "torch_geometric.datasets"]
    assert raygnn.infer.main(infer) == 2
    message = capsys.readouterr().err
    assert "data.uri=None is invalid: the config of a model contains no graph" in message
    assert f"the training graph is --data.type {DATA_SET}" in message
    assert raygnn.infer.main([*infer, "--data.uri", graph]) == 0
    assert not marker.exists()
    assert not (tmp_path / "theirs").exists()


def touch() -> None:
    raise AssertionError("a function that the config of a model names was called")


def test_what_the_config_of_a_model_names_needs_its_module_allowed(tmp_path, graph, run, capsys):
    text = (run / "config.yaml").read_text()
    infer = [str(run), "--out", str(tmp_path / "out"), "--data.uri", graph]
    for section, path in (("model", "os.system"), ("task", "my.Task")):
        config = yaml.safe_load(text)
        config[section]["type"] = path
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        assert raygnn.infer.main(infer) == 2
        assert f"Add --allow-module {path.partition('.')[0]}" in capsys.readouterr().err


def _torch_archive(content: bytes) -> bytes:
    """A file as torch.save writes it, with another pickle in it."""
    buffer = io.BytesIO()
    torch.save({"model": {}}, buffer)
    changed = io.BytesIO()
    with zipfile.ZipFile(buffer) as whole, zipfile.ZipFile(changed, "w") as archive:
        for name in whole.namelist():
            is_pickle = name.endswith("data.pkl")
            archive.writestr(name, content if is_pickle else whole.read(name))
    return changed.getvalue()


@pytest.mark.parametrize("form", ["pickle", "archive"])
def test_files_of_torch_are_not_unpickled(tmp_path, graph, marker, capsys, form):
    content = pickle.dumps(Touch(marker), protocol=2)
    evil = content if form == "pickle" else _torch_archive(content)
    (tmp_path / "data.pt").write_bytes(evil)
    out = ["--out", str(tmp_path / "out")]
    assert raygnn.prepare.__main__.main(["pyg", str(tmp_path / "data.pt"), *out]) == 2
    data = {"uri": graph, "splits": {"type": "hash"}}
    places = {"file": tmp_path / "data.pt"}
    for name in ("model.safetensors", STATE):
        (tmp_path / f"with-{name}").mkdir()
        (tmp_path / f"with-{name}" / name).write_bytes(evil)
        places[name] = tmp_path / f"with-{name}"
    for uri in places.values():
        assert _train(tmp_path, data=data, checkpoint={"init_from": {"uri": str(uri)}}) != 0
        assert _train(tmp_path, data=data, checkpoint={"resume": str(uri)}) != 0
    assert not marker.exists()
    assert "Traceback" not in capsys.readouterr().err


def test_the_weights_of_a_model_are_not_unpickled(tmp_path, graph, run, marker):
    (run / "model.safetensors").write_bytes(pickle.dumps(Touch(marker)))
    infer = [str(run), "--out", str(tmp_path / "out"), "--data.uri", graph]
    assert raygnn.infer.main([*infer, "--scaling.num_workers", "0"]) != 0
    assert not marker.exists()


def test_checkpoints_are_not_unpickled(tmp_path, graph, run, marker):
    """Also where the manifest beside them has the right sha256."""
    data = {"uri": graph, "splits": {"type": "hash"}}
    evil = _torch_archive(pickle.dumps(Touch(marker), protocol=2))
    checkpoints = [path.parent for path in run.rglob("manifest.json")]
    assert checkpoints
    for folder in checkpoints:
        text = (folder / "manifest.json").read_text()
        for path in folder.glob("*.pt"):
            before = hashlib.sha256(path.read_bytes()).hexdigest()
            text = text.replace(before, hashlib.sha256(evil).hexdigest())
            text = text.replace(f'"num_bytes": {path.stat().st_size}', f'"num_bytes": {len(evil)}')
            path.write_bytes(evil)
        (folder / "manifest.json").write_text(text)
    uri = str(checkpoints[0])
    assert _train(tmp_path, data=data, checkpoint={"init_from": {"uri": uri}}, run__name="a") != 0
    assert _train(tmp_path, data=data, checkpoint={"resume": uri}, run__name="b") != 0
    assert not marker.exists()


def test_arrays_of_objects_are_not_unpickled(tmp_path, marker, capsys):
    array = np.array([Touch(marker)] * 3, object)
    np.savez(tmp_path / "graph.npz", adj_data=array, adj_indices=array, adj_indptr=array,
             adj_shape=array)  # fmt: skip
    out = ["--out", str(tmp_path / "out")]
    assert raygnn.prepare.__main__.main(["npz", str(tmp_path / "graph.npz"), *out]) == 2
    np.save(tmp_path / "graph.npy", array, allow_pickle=True)
    assert raygnn.prepare.__main__.main(["npz", str(tmp_path / "graph.npy"), *out]) == 2
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Touch(marker)))
    assert raygnn.prepare.__main__.main(["npz", str(tmp_path / "plain.npz"), *out]) == 2
    assert not marker.exists()
    assert "Traceback" not in capsys.readouterr().err


def test_bundles_are_not_unpickled(tmp_path, marker):
    """A cache folder that somebody else has filled."""
    bundle = small_bundle(tmp_path)
    for path in bundle.path.rglob("*.npy"):
        size = path.stat().st_size
        with path.open("wb") as file:
            np.save(file, np.array([Touch(marker)], object), allow_pickle=True)
            file.truncate(size)
    lines: list[str] = []
    cache = str(tmp_path / "cache")
    again = ingest(tmp_path / "tables", cache_dir=cache, progress=lines.append)
    assert again.path == bundle.path
    assert any("building again" in line for line in lines)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["arrow.py_extension_type", "ray.data.arrow_tensor", "objects"])
@pytest.mark.parametrize("column", ["id", "x", "y"])
def test_types_of_columns_are_not_unpickled(tmp_path, graph, marker, capsys, kind, column):
    """Extension types carry a description, or values, that their classes would unpickle."""
    import ray.data.extensions  # registers Ray's types

    assert ray.data.extensions
    (path,) = Path(graph).glob("nodes/**/*.parquet")
    table = pq.read_table(path)
    evil = pickle.dumps(Touch(marker))
    name = "ray.data.arrow_pickled_object" if kind == "objects" else kind
    metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": evil}
    values = [evil] * NUM_NODES
    if kind == "ray.data.arrow_tensor":
        values = [[1.0]] * NUM_NODES
    storage = pa.array(values, pa.large_binary() if kind == "objects" else None)
    field = pa.field(column, storage.type, metadata=metadata)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, field, storage), path)
    config = {"uri": graph, "splits": {"type": "hash"}}
    assert _train(tmp_path, data=config) == 2
    assert not marker.exists()
    assert "Traceback" not in capsys.readouterr().err
