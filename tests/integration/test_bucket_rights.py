"""Runs in buckets: outputs land there, and missing rights are told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec.config
import pytest
import yaml
from safetensors.torch import load

import raygnn.train
from raygnn.data.filesystem import join, open_fs, read_text, write_text
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.tables.graph_tables import write_tables
from raygnn.errors import DataError
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import small_config

#: A client that tries again what is forbidden sends many more.
_MOST_REQUESTS = 6


class _Forbidden(BaseHTTPRequestHandler):
    may_read = False
    num_requests = 0

    def do_GET(self) -> None:  # the name that http.server asks for
        self._answer(404 if self.may_read else 403)

    def do_POST(self) -> None:
        self._answer(403)

    do_PUT = do_DELETE = do_POST  # noqa: N815

    def _answer(self, status: int) -> None:
        _Forbidden.num_requests += 1
        body = json.dumps({"error": {"code": status, "message": "not yours"}})
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def forbidden_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Forbidden, "num_requests", 0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Forbidden)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", "skip_instance_cache": True})
    yield "gs://not-mine/runs"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("may_read", "what"), [(False, "read"), (True, "written")])
def test_it_is_told_at_once(forbidden_bucket, tmp_path, capsys, monkeypatch, may_read, what):
    monkeypatch.setattr(_Forbidden, "may_read", may_read)
    missing = str(tmp_path / "no-graph")  # would be an error of its own, later
    config = small_config(forbidden_bucket, scaling__num_workers=0, data__uri=missing)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    assert raygnn.train.main([str(path)]) == 2
    assert _Forbidden.num_requests <= _MOST_REQUESTS
    error = capsys.readouterr().err
    assert "run.storage_path='gs://not-mine/runs' is invalid" in error
    assert f"it cannot be {what}" in error
    assert "not yours" in error


@pytest.mark.parametrize("field", ["model_uri", "logs_uri"])
def test_so_it_is_where_only_the_model_or_the_logs_go_there(
    forbidden_bucket, tmp_path, capsys, monkeypatch, field
):
    monkeypatch.setattr(_Forbidden, "may_read", True)
    config = small_config(tmp_path, scaling__num_workers=0, data__uri=str(tmp_path / "no-graph"))
    config["run"][field] = forbidden_bucket
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    assert raygnn.train.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert f"run.{field}='gs://not-mine/runs' is invalid: it cannot be written" in error


def test_so_is_a_graph_that_may_not_be_read(forbidden_bucket, tmp_path, capsys):
    config = small_config(tmp_path, scaling__num_workers=0, data__uri=forbidden_bucket)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    assert raygnn.train.main([str(path)]) == 2
    assert _Forbidden.num_requests <= _MOST_REQUESTS
    error = capsys.readouterr().err
    assert "uri='gs://not-mine/runs/graph.yaml' is invalid: it cannot be read" in error
    assert "not yours" in error


def test_so_are_parts_that_may_not_be_read(forbidden_bucket):
    with pytest.raises(
        DataError, match=r"partition.json' is invalid: it cannot be read .*not yours"
    ):
        PartitionRecord.load(forbidden_bucket)


@pytest.fixture
def config_uri(gcs_bucket: str) -> str:
    tables = synthetic_tables("planted_partition", num_nodes=120, num_classes=3, num_features=4)
    graph = write_tables(tables, join(gcs_bucket, "graph"), overwrite=True)
    config = small_config(join(gcs_bucket, "runs"), scaling__num_workers=0, data__uri=graph)
    config["loggers"] = ["tensorboard"]
    config["run"]["model_uri"] = join(gcs_bucket, "models", "mine")
    config["run"]["logs_uri"] = join(gcs_bucket, "logs", "mine")
    write_text(join(gcs_bucket, "config.yaml"), yaml.safe_dump(config))
    return join(gcs_bucket, "config.yaml")


def _names(uri: str) -> set[str]:
    fs, path = open_fs(uri)
    fs.invalidate_cache()
    return {name.removeprefix(path).lstrip("/") for name in fs.find(path)}


def test_every_output_lands_in_the_bucket(config_uri, gcs_bucket, tmp_path: Path, capsys):
    assert raygnn.train.main([config_uri]) == 0
    run = join(gcs_bucket, "runs", "run")
    assert json.loads(read_text(join(run, "metrics.json")))["epoch"] == 2
    assert len(read_text(join(run, "history.jsonl")).splitlines()) == 2
    assert "val/accuracy" in read_text(join(run, "report.html"))
    assert {"config.yaml", "model.safetensors"} <= _names(join(gcs_bucket, "models", "mine"))
    fs, path = open_fs(join(gcs_bucket, "models", "mine", "model.safetensors"))
    assert load(fs.cat_file(path))
    events = _names(join(gcs_bucket, "logs", "mine"))
    assert any(name.startswith("events.out.tfevents") for name in events)
    store = CheckpointStore(join(run, "checkpoints"))
    assert store.newest_valid(store.names())[0] == store.pointer("last")
    # A second start finds the run finished; with overwrite it starts anew.
    assert raygnn.train.main([config_uri]) == 2
    assert "has finished" in capsys.readouterr().err
    assert raygnn.train.main([config_uri, "--run.overwrite", "true"]) == 0


def test_a_run_in_a_bucket_goes_on(config_uri, gcs_bucket, capsys):
    name = ["--run.name", "resumed"]
    assert raygnn.train.main([config_uri, *name]) == 0
    folder = join(gcs_bucket, "runs", "resumed")
    state = json.loads(read_text(join(folder, "run.json")))
    write_text(join(folder, "run.json"), json.dumps({**state, "status": "running"}))
    assert raygnn.train.main([config_uri, *name]) == 0
    assert "resumed from step-" in capsys.readouterr().out
