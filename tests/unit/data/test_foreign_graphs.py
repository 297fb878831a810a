"""A graph of somebody else's reads its own files and no others, and no file that never ends."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.manifest import Manifest
from raygnn.data.tables.files import list_files
from raygnn.errors import DataError
from tests.errors import raises

SECRET = "secret-of-another-folder"
NODES = "id,x\n1,0.5\n2,1.5\n3,2.5\n"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph of one node type, beside a folder of a user's own files."""
    (tmp_path / "g" / "nodes").mkdir(parents=True)
    (tmp_path / "g" / "nodes" / "a.csv").write_text(NODES)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "key.csv").write_text(f"id,x\n{SECRET},1\n")
    (tmp_path / "mine" / "key.txt").write_text(f"{SECRET}\n")
    return tmp_path / "g"


def _name(graph: Path, files: Any) -> None:
    manifest = {
        "format": "raygnn/graph-v1",
        "node_types": {"n": {"files": files, "id": "id", "features": {"x": "x"}}},
    }
    (graph / "graph.yaml").write_text(yaml.safe_dump(manifest))


def _ingest(graph: Path | str, cache: Path, *allowed: str | Path) -> int:
    options = IngestOptions(allow_outside=tuple(str(root) for root in allowed))
    return ingest(graph, options, cache).num_nodes("n")


OUTSIDE = [
    "ROOT/mine/key.csv",
    "../mine/key.csv",
    "../mine/*.csv",
    "nodes/../../mine/key.csv",
    "*/../../mine/key.csv",
    "file://ROOT/mine/key.csv",
    "local://ROOT/mine/*.csv",
    "FILE://ROOT/mine/key.csv",
    "http://127.0.0.1:9/key.csv",
    "https://127.0.0.1:9/*.csv",
    "memory://key.csv",
    "gs://bucket/key.csv",
    "simplecache::file://ROOT/mine/key.csv",
    "zip://key.csv::ROOT/mine/key.zip",
    "nodes/zip://key.csv::ROOT/mine/key.zip",
    "reference://key.csv::ROOT/mine/key.csv",
    "/dev/zero",
    "/dev/../ROOT/mine/key.csv",
]


@pytest.mark.parametrize("pattern", OUTSIDE)
def test_patterns_that_leave_the_folder_are_refused(
    graph: Path, tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("a file system was asked about a place outside of the graph")

    _name(graph, pattern.replace("ROOT", str(tmp_path)))
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.glob", refuse)
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.info", refuse)
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    with raises("data-outside", "node_types.n.files=") as caught:
        _ingest(graph, tmp_path / "cache")
    assert SECRET not in str(caught.value)
    assert "data.allow_outside" in str(caught.value)


@pytest.mark.parametrize(
    "pattern", ["~/key.csv", "nodes/http://127.0.0.1:9/key.csv", "data:text/csv;base64,aWQKMQo="]
)
def test_names_that_look_like_places_are_names(
    graph: Path, tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _name(graph, pattern)
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    with pytest.raises(DataError) as caught:
        _ingest(graph, tmp_path / "cache")
    assert caught.value.id in ("data-files-missing", "data-uri")


@pytest.mark.parametrize("link", ["a file", "a folder", "a chain", "broken"])
def test_links_that_leave_the_folder_are_refused(graph: Path, tmp_path: Path, link: str) -> None:
    (graph / "nodes" / "a.csv").unlink()
    target = tmp_path / "mine" / "key.csv"
    if link == "a folder":
        (graph / "deep").symlink_to(tmp_path / "mine")
        _name(graph, "deep/*.csv")
    elif link == "a chain":
        (graph / "link").symlink_to(target)
        (graph / "nodes" / "b.csv").symlink_to("../link")
        _name(graph, "nodes/*.csv")
    else:
        (graph / "nodes" / "b.csv").symlink_to(
            target if link == "a file" else tmp_path / "mine" / "gone.csv"
        )
        _name(graph, "nodes/b.csv")
    with raises("data-outside") as caught:
        _ingest(graph, tmp_path / "cache")
    assert SECRET not in str(caught.value)
    if link != "broken":
        shutil.copy(target, tmp_path / "mine" / "other.csv")
        target.write_text(NODES)
        (tmp_path / "mine" / "other.csv").unlink()
        assert _ingest(graph, tmp_path / "cache", tmp_path / "mine") == 3
        assert _ingest(graph, tmp_path / "cache", f"file://{tmp_path}/mine/") == 3
        with raises("data-outside"):
            _ingest(graph, tmp_path / "cache", tmp_path / "min")


@pytest.mark.parametrize(
    "files",
    [
        "nodes/a.csv",
        "nodes/*.csv",
        "*/a.csv",
        "./nodes/[ab].csv",
        "nodes/../nodes/a.csv",
        "ROOT/g/nodes/*.csv",
        "file://ROOT/g/nodes/a.csv",
        "link/a.csv",
        "**/a.csv",
        ["nodes/a.csv", "no*/*.csv"],
    ],
)
def test_files_of_the_folder_are_read(graph: Path, tmp_path: Path, files: Any) -> None:
    (graph / "link").symlink_to("nodes")
    _name(graph, files if isinstance(files, list) else files.replace("ROOT", str(tmp_path)))
    (tmp_path / "named").symlink_to(graph)  # a folder that is reached through a link itself
    if files != "**/a.csv":
        assert _ingest(graph, tmp_path / "cache") == 3
    (graph / "link").unlink()
    if files != "link/a.csv":
        assert _ingest(tmp_path / "named", tmp_path / "cache") == 3
        assert _ingest(os.path.relpath(graph), tmp_path / "cache") == 3
        assert _ingest(f"file://{graph}/graph.yaml", tmp_path / "cache") == 3


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
@pytest.mark.parametrize("pattern", ["nodes/b.csv", "nodes/*.csv"])
def test_only_regular_files_are_read(graph: Path, tmp_path: Path, kind: str, pattern: str) -> None:
    import socket

    _name(graph, pattern)
    path = graph / "nodes" / "b.csv"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        folder = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(f"/proc/self/fd/{folder}/b.csv")
        os.close(folder)
    with raises("data-file-irregular"):
        _ingest(graph, tmp_path / "cache", "/dev")
    with raises("data-file-irregular"):  # a user's own files too
        list_files(str(graph), [pattern], "--anchors")


@pytest.mark.parametrize("kind", ["fifo", "device", "link"])
def test_a_manifest_is_a_regular_file_of_its_folder(graph: Path, tmp_path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(graph / "graph.yaml")
    else:
        target = "/dev/zero" if kind == "device" else tmp_path / "mine" / "key.txt"
        (graph / "graph.yaml").symlink_to(target)
    with raises("data-file-irregular" if kind == "fifo" else "data-outside") as caught:
        _ingest(graph, tmp_path / "cache")
    assert SECRET not in str(caught.value)
    with raises("document-format" if kind == "link" else "data-file-irregular"):
        Manifest.load(graph / "graph.yaml")


def test_a_user_may_name_a_link_to_a_manifest(graph: Path, tmp_path: Path) -> None:
    _name(graph, "nodes/*.csv")
    shutil.move(graph / "graph.yaml", tmp_path / "mine" / "v1.yaml")
    (graph / "current.yaml").symlink_to(tmp_path / "mine" / "v1.yaml")
    assert _ingest(graph / "current.yaml", tmp_path / "cache") == 3


def test_uris_stay_below_theirs(tmp_path: Path) -> None:
    base = f"memory://{uuid.uuid4().hex}"
    for name in ("g/nodes/a.csv", "mine/key.csv"):
        with fsspec.open(f"{base}/{name}", "w") as file:
            file.write(NODES)

    def ingest_files(files: str, *allowed: str) -> int:
        manifest = {"format": "raygnn/graph-v1", "node_types": {"n": {"files": files, "id": "id"}}}
        with fsspec.open(f"{base}/g/graph.yaml", "w") as file:
            file.write(yaml.safe_dump(manifest))
        return _ingest(f"{base}/g", tmp_path / "cache", *allowed)

    for files in ("nodes/*.csv", "nodes/a.csv", f"{base}/g/nodes/a.csv", "*/a.csv"):
        assert ingest_files(files) == 3
    (tmp_path / "own.csv").write_text(f"id\n{SECRET}\n")
    for files in (
        *("../mine/key.csv", f"{base}/mine/*.csv", f"{base}/g/../mine/key.csv", f"{base}/g2/a.csv"),
        *(f"{tmp_path}/own.csv", f"file://{tmp_path}/own.csv", "%2e%2e/mine/key.csv"),
        *("http://127.0.0.1:9/a.csv", "zip://a.csv::x.zip", "/etc/a.csv"),
    ):
        with raises("data-outside"):
            ingest_files(files)
    assert ingest_files(f"{base}/mine/*.csv", f"{base}/mine") == 3
    assert ingest_files(f"{base}/mine/key.csv", f"{base}/mine/key.csv") == 3
    with raises("data-outside"):
        ingest_files(f"{base}/mine/key.csv", f"{base}/min", str(tmp_path))


def test_what_is_allowed_does_not_change_the_bundle(graph: Path, tmp_path: Path) -> None:
    _name(graph, "nodes/*.csv")
    one = ingest(graph, IngestOptions(), tmp_path / "cache")
    assert ingest(graph, IngestOptions(allow_outside=("/x",)), tmp_path / "cache").path == one.path


@pytest.mark.parametrize(
    "text", [f"{SECRET}\n", f"id,x\n1,2\n{SECRET}\n", f"id,x\n1,2\n1,2,{SECRET}\n", f'"{SECRET}\n']
)
def test_lines_of_what_is_no_table_are_not_quoted(graph: Path, tmp_path: Path, text: str) -> None:
    _name(graph, "nodes/*.csv")
    (graph / "nodes" / "b.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        _ingest(graph, tmp_path / "cache")
    assert caught.value.id in ("table-column-missing", "table-csv-unreadable")
    assert "nodes/b.csv" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_values_of_rows_are_quoted(graph: Path, tmp_path: Path) -> None:
    _name(graph, "nodes/*.csv")
    (graph / "nodes" / "b.csv").write_text("id,x\n1,0.5\n")
    with raises("nodes-id-repeated", "values 1"):
        _ingest(graph, tmp_path / "cache")


def test_nothing_is_scheduled_for_files_of_other_folders(graph: Path, tmp_path: Path) -> None:
    """Ray's tasks get files that were checked before."""
    _name(graph, "../mine/*.csv")

    def schedule(*arguments: Any) -> Any:
        raise AssertionError("a task was scheduled")

    with raises("data-outside"):
        ingest(graph, IngestOptions(), tmp_path / "cache", schedule=schedule)


@pytest.mark.parametrize("pattern", ["*a" * 30 + ".csv", "*" * 60 + "a.csv", "a" * 5000 + ".csv"])
def test_patterns_that_cannot_be_looked_up(graph: Path, tmp_path: Path, pattern: str) -> None:
    (graph / ("a" * 60 + ".csw")).touch()
    _name(graph, pattern)
    with raises("data-pattern", "node_types.n.files="):
        _ingest(graph, tmp_path / "cache")


@pytest.mark.parametrize("target", ["l.csv", "gone.csv"])
def test_links_that_lead_nowhere(graph: Path, tmp_path: Path, target: str) -> None:
    (graph / "nodes" / "l.csv").symlink_to(target)
    _name(graph, "nodes/*.csv")
    with raises("data-file-irregular"):
        _ingest(graph, tmp_path / "cache")
