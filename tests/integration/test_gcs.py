"""Graphs in a bucket, through the real gcsfs client against a storage emulator."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

from raygnn.data.filesystem import (
    generation,
    join,
    open_fs,
    read_text,
    write_if_unchanged,
    write_text,
)
from raygnn.data.ingest import scan
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.tables import files
from tests.errors import raises
from tests.folders import upload
from tests.graph_writer import cut, write_graph


def _graph(folder: Path, scale: float = 1.0) -> Path:
    nodes = pa.table({"id": np.arange(100) * 3, "x": np.arange(100) * scale})
    edges = pa.table({"s": np.arange(99) * 3, "t": np.arange(1, 100) * 3})
    return write_graph(folder, cut(nodes, 3), cut(edges, 2), {"features": {"x": "x"}})


def test_text_reads_back(gcs_bucket: str) -> None:
    write_text(join(gcs_bucket, "texts", "a.txt"), "zwölf")
    assert read_text(join(gcs_bucket, "texts", "a.txt")) == "zwölf"
    with raises("data-file-missing", "b.txt"):
        read_text(join(gcs_bucket, "texts", "b.txt"))


@pytest.mark.parametrize("whole_file_bytes", [1 << 20, 0], ids=["whole", "ranges"])
def test_ingest_from_a_bucket(
    whole_file_bytes: int, gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_FILE_BYTES", whole_file_bytes)
    uri = upload(_graph(tmp_path / "graph"), join(gcs_bucket, f"graph-{whole_file_bytes}"))
    bundle = ingest(uri, cache_dir=tmp_path / "cache")
    local = ingest(tmp_path / "graph", cache_dir=tmp_path / "local")
    assert np.array_equal(bundle.column("n", "x"), np.arange(100))
    assert bundle.csc(("n", "to", "n")).indices.tolist() == list(range(99))
    assert np.array_equal(bundle.ids("n").to_numpy(), local.ids("n").to_numpy())


def test_changes_in_the_bucket_are_noticed(
    gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(_graph(tmp_path / "one"), join(gcs_bucket, "changing"))
    first = ingest(uri, cache_dir=tmp_path / "cache")
    # The store's own marks name the content: no table is read for a bundle that is there.
    monkeypatch.setattr(scan, "_hash_content", None)
    assert ingest(uri, cache_dir=tmp_path / "cache").path == first.path
    upload(_graph(tmp_path / "two", 2.0), uri)
    second = ingest(uri, cache_dir=tmp_path / "cache")
    assert second.path != first.path
    assert np.array_equal(second.column("n", "x"), np.arange(100) * 2)


def test_missing_tables_are_named(gcs_bucket: str, tmp_path: Path) -> None:
    uri = upload(_graph(tmp_path / "graph"), join(gcs_bucket, "missing"))
    fs, path = open_fs(uri)
    fs.rm(f"{path}/edges", recursive=True)
    with raises("data-files-missing", "edges/*.parquet"):
        ingest(uri, cache_dir=tmp_path / "cache")


def test_a_write_that_another_one_overtook_is_refused(
    gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator gives generations, and does not look at preconditions: the store's own rule."""
    upload = objects._media_upload

    def with_precondition(request: Any, response: Any, storage: Any) -> Any:
        wanted = int(request.query["ifGenerationMatch"][0])
        try:
            found = storage.get_file_obj(request.params["bucket_name"], request.query["name"][0])[
                "generation"
            ]
        except NotFound:
            found = 0
        if wanted != int(found):
            response.status = HTTPStatus.PRECONDITION_FAILED
            return None
        return upload(request, response, storage)

    monkeypatch.setattr(objects, "_media_upload", with_precondition)
    uri = join(gcs_bucket, "conditional", "a file.json")
    assert generation(uri) == 0
    write_if_unchanged(uri, b"one", 0)
    version = generation(uri)
    assert version > 0
    write_if_unchanged(uri, b"two", version)
    assert generation(uri) > version
    for late in (0, version):
        with pytest.raises(FileExistsError):
            write_if_unchanged(uri, b"late", late)
    assert read_text(uri) == "two"
