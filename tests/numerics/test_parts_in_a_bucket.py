"""Parts of a graph in a bucket: what is fetched, that it is the same graph, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

import raygnn.infer
import raygnn.train
from raygnn.config import load_config
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.filesystem import delete, files_below, join, read_bytes, write_bytes
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, open_partitioned
from raygnn.data.partition.record import RECORD_NAME
from raygnn.outputs.worker_memory import needs_of
from raygnn.runtime.data_checks import pairs_read
from raygnn.runtime.launch import open_graph
from raygnn.sampling.parts import map_parts
from tests.errors import raises
from tests.faults.outcome import assert_equal_outcomes
from tests.folders import contents, upload
from tests.partitioned_graphs import Parted, ratings
from tests.partitioned_runs import LINKS, parts_config, planted_parts
from tests.small_runs import small_config
from tests.tiers import slow


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_parts(tmp_path_factory.mktemp("graph"), 3)


@pytest.fixture
def bucket(tmp_path: Path, parts: Path) -> str:
    return upload(parts, f"memory://{tmp_path.name}/parts")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that are fetched from the bucket, as `part-00000/nodes/...`."""
    files: list[str] = []
    fs = type(fsspec.filesystem("memory"))
    get_file = fs.get_file

    def noting(self: Any, there: str, here: str, **options: Any) -> Any:
        files.append(there.partition("/parts/")[2])
        return get_file(self, there, here, **options)

    monkeypatch.setattr(fs, "get_file", noting)
    return files


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _of_bucket(uri: str) -> dict[str, bytes]:
    return {name: read_bytes(join(uri, name)) for name in files_below(uri)}


def test_parts_are_written_into_a_bucket_byte_for_byte(
    parts: Path, cache: Path, tmp_path: Path
) -> None:
    uri, tables = f"memory://{tmp_path.name}/written", parts.parent / "tables"
    lines: list[str] = []
    record = partition(tables, uri, Partitioning(3), progress=lines.append)
    expected = contents(parts)
    del expected[".lock"]
    assert _of_bucket(uri) == expected
    assert not contents(cache)  # nothing stays on the disk
    assert [line for line in lines if "sent in" in line] == [
        line for line in lines if line.startswith("part ")
    ]
    assert lines[-1] == f"partition: wrote 3 parts to {uri}"
    assert partition(tables, uri, Partitioning(3), progress=lines.append) == record
    assert lines[-1].endswith("is already complete")
    with raises("partition-out-taken", uri):
        partition(tables, uri, Partitioning(2))
    delete(join(uri, "part-00002"))
    with raises("partition-missing", "part-00002"):
        partition(tables, uri, Partitioning(3))


def test_an_interrupted_upload_sends_the_parts_that_are_left(
    parts: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, tables = f"memory://{tmp_path.name}/written", parts.parent / "tables"
    fs = type(fsspec.filesystem("memory"))
    put_file, sent = fs.put_file, []

    def failing(self: Any, here: str, there: str, **options: Any) -> Any:
        if "part-00001/edges" in there and not sent.count("stop"):
            sent.append("stop")
            raise KeyboardInterrupt
        sent.append(there.partition("/written/")[2])
        return put_file(self, here, there, **options)

    monkeypatch.setattr(fs, "put_file", failing)
    with pytest.raises(KeyboardInterrupt):
        partition(tables, uri, Partitioning(3))
    assert "part-00000/part.json" in _of_bucket(uri)
    assert RECORD_NAME not in _of_bucket(uri)
    with raises("partition-missing", uri):
        open_partitioned(uri, cache)
    del sent[sent.index("stop") + 1 :]
    before = len(sent)
    partition(tables, uri, Partitioning(3))
    assert {name.partition("/")[0] for name in sent[before:]} == {"part-00001", "part-00002"}
    expected = contents(parts)
    del expected[".lock"]
    assert _of_bucket(uri) == expected
    assert not contents(cache / "partitions")


def test_an_outline_fetches_what_it_has_and_no_features_and_edges(
    parts: Path, bucket: str, tmp_path: Path, fetched: list[str]
) -> None:
    there, here = (
        Outline.build(uri, tmp_path / f"cache-{i}") for i, uri in enumerate((bucket, parts))
    )
    assert contents(there.path) == contents(here.path)
    files = {"ids.npy", "split.npy", "columns/y.npy"}
    assert {name.partition("/nodes/node/")[2] for name in fetched} <= files
    assert len(fetched) == 3 * len({name.partition("/")[2] for name in fetched})
    assert not any("edges" in name or name.endswith("/x.npy") for name in fetched)


@pytest.mark.parametrize("task", ["link_prediction", "edge_prediction"])
def test_an_outline_with_pairs_is_that_of_a_disk(tmp_path: Path, task: str) -> None:
    made = Parted.make(tmp_path, ratings(), 2, IngestOptions())
    args: dict[str, Any] = {"edge_type": "user__rates__film"}
    if task == "edge_prediction":
        args["label"] = "stars"
    loaded = load_config(small_config("runs", task={"type": task, "args": args}))
    pairs = pairs_read(loaded.config, made.whole)
    assert pairs
    uri = upload(made.parts, f"memory://{tmp_path.name}/parts")
    there = Outline.build(uri, tmp_path / "there", pairs)
    here = Outline.build(made.parts, tmp_path / "here", pairs)
    assert contents(there.path) == contents(here.path)
    assert any(name.startswith("edges/") for name in contents(there.path))


def test_opened_whole_it_is_the_bundle_of_the_folder(
    parts: Path, bucket: str, tmp_path: Path
) -> None:
    lines: list[str] = []
    there = open_partitioned(bucket, tmp_path / "there", lines.append)
    here = open_partitioned(parts, tmp_path / "here")
    assert contents(there.path) == contents(here.path)
    assert [line.split(":")[0] for line in lines[1:]] == ["part 0", "part 1", "part 2"]


@pytest.mark.parametrize("changes", [LINKS, *slow({})], ids=["links", "nodes"])
def test_training_and_inference_are_those_of_the_folder(
    parts: Path, bucket: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    written = {}
    for name, uri in (("bucket", bucket), ("folder", str(parts))):
        config = parts_config(tmp_path / name, parts, **changes)
        config["data"] |= {"uri": uri, "cache_dir": str(tmp_path / f"cache-{name}")}
        raygnn.train.fit(config)
        run, out = str(tmp_path / name / "run"), str(tmp_path / name / "out")
        graph = ["--data.mode", "partitioned", "--data.uri", uri]
        raygnn.infer.predict(run, out, graph)
        written[name] = [path.read_bytes() for path in sorted(Path(out).rglob("*.parquet"))]
    assert_equal_outcomes(tmp_path / "bucket" / "run", tmp_path / "folder" / "run")
    assert written["bucket"] == written["folder"]
    assert len(written["folder"]) > 0


def test_a_part_is_fetched_once_and_again_where_it_was_cut(
    bucket: str, tmp_path: Path, fetched: list[str]
) -> None:
    outline = Outline.build(bucket, tmp_path)
    fetched.clear()
    map_parts(bucket, outline)
    edges = [name for name in fetched if name.endswith("indices.npy")]
    assert [name.partition("/")[0] for name in sorted(edges)] == [
        f"part-{number:05d}" for number in range(3)
    ]
    fetched.clear()
    map_parts(bucket, outline)
    assert not fetched
    (cut,) = tmp_path.glob("bundles/*-fetched-part-00001/edges/*/indices.npy")
    cut.write_bytes(cut.read_bytes()[:-4])
    map_parts(bucket, outline)
    assert {name.partition("/")[0] for name in fetched} == {"part-00001"}


def test_what_a_node_needs_is_that_of_the_folder(parts: Path, bucket: str, tmp_path: Path) -> None:
    needs = []
    for uri in (bucket, str(parts)):
        config = parts_config(tmp_path, parts, scaling__num_workers=2)
        config["data"] |= {"uri": uri, "cache_dir": str(tmp_path / "cache")}
        loaded = load_config(config)
        needs.append(needs_of(loaded.config, open_graph(loaded, None), None))
    assert needs[0] == needs[1]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("no record", "partition-missing"),
        ("no part", "partition-missing"),
        ("cut file", "partition-damaged"),
        ("no file", "partition-damaged"),
        ("no sizes", "partition-damaged"),
        ("a file elsewhere", "partition-damaged"),
    ],
)
def test_what_is_wrong_in_the_bucket_is_refused_by_name(
    parts: Path, bucket: str, tmp_path: Path, damage: str, error: str
) -> None:
    part, noted = join(bucket, "part-00001"), parts / "part-00001" / "part.json"
    if damage == "no record":
        delete(join(bucket, RECORD_NAME))
    elif damage == "no part":
        delete(part)
    elif damage == "cut file":
        write_bytes(join(part, "nodes/node/ids.npy"), b"cut")
    elif damage == "no file":
        delete(join(part, "nodes/node/ids.npy"))
    else:
        change: dict[str, Any] = {
            "no sizes": {"file_sizes": ["ids.npy"]},
            "a file elsewhere": {"file_sizes": {"nodes/../../../taken.npy": 3}},
        }[damage]
        content = parse_record(noted.read_text()) | change
        write_bytes(join(part, "part.json"), dump_record(content).encode())
    where = bucket if damage == "no record" else part
    with raises(error, where):
        raygnn.train.fit(parts_config(tmp_path, parts, data={"mode": "partitioned", "uri": bucket}))


@pytest.mark.parametrize("place", ["fingerprint", "node type", "column"])
def test_names_that_lead_elsewhere_are_refused(
    parts: Path, bucket: str, tmp_path: Path, place: str
) -> None:
    content = parse_record((parts / RECORD_NAME).read_text())
    whole = content["whole"]
    if place == "fingerprint":
        whole["fingerprint"] = "../../taken"
    elif place == "node type":
        whole["nodes"] = {"../node": whole["nodes"]["node"]}
    else:
        whole["nodes"]["node"]["columns"][0]["name"] = "../../x"
    write_bytes(join(bucket, RECORD_NAME), dump_record(content).encode())
    with raises("partition-damaged", bucket, "is no name"):
        Outline.build(bucket, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
