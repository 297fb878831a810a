"""A server that answers as BigQuery does, with tables that it keeps in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_READ = "google.cloud.bigquery.storage.v1.BigQueryRead"


class BigQueryServer:
    """Answers Google's clients of project `shop`: REST for tables, queries and loads, and gRPC for
    rows, in streams of 1,000.

    Attributes:
        tables: rows by dataset and table, as in `sales.orders`.
        constraints: declared keys by table, as BigQuery's REST resource of a table has them.
        descriptions: by column, of all tables.
        queries: rows by query.
        address: of the gRPC server.
    """

    def __init__(self, url: str, address: str) -> None:
        self.url, self.address = url, address
        self.tables: dict[str, pa.Table] = {}
        self.constraints: dict[str, dict[str, Any]] = {}
        self.descriptions: dict[str, str] = {}
        self.queries: dict[str, pa.Table] = {}
        self._jobs: list[dict[str, Any]] = []

    def _field(self, name: str) -> dict[str, Any]:
        return {"name": name, "type": "STRING", "description": self.descriptions.get(name)}

    def get(self, path: str) -> dict[str, Any] | None:
        """The resource of a path; None if there is none."""
        parent, _, name = path.removeprefix("/bigquery/v2/projects/shop/").rpartition("/")
        if parent == "jobs":
            return self._jobs[int(name)]
        if parent == "queries":
            return {"jobComplete": True, "totalRows": "0", "schema": {"fields": []}}
        dataset = name if parent == "datasets" else parent.split("/")[1]
        place = {"projectId": "shop", "datasetId": dataset}
        found = {
            key: {
                "tableReference": {**place, "tableId": key.removeprefix(f"{dataset}.")},
                "type": "TABLE",
                "numRows": str(rows.num_rows),
                "tableConstraints": self.constraints.get(key),
                "schema": {"fields": [*map(self._field, rows.column_names)]},
            }
            for key, rows in self.tables.items()
            if key.startswith(f"{dataset}.")
        }
        if parent == "datasets":
            return {"datasetReference": place} if found else None
        return {"tables": [*found.values()]} if name == "tables" else found.get(f"{dataset}.{name}")

    def start(self, job: dict[str, Any]) -> dict[str, Any]:
        """Starts a job and ends it, unless it waits for a file."""
        number, config = len(self._jobs), job["configuration"]
        if "query" in config:
            place = {"projectId": "shop", "datasetId": "_answers", "tableId": str(number)}
            config["query"]["destinationTable"] = place
            self.tables[f"_answers.{number}"] = self.queries[config["query"]["query"]]
        reference = {"projectId": "shop", "jobId": str(number)}
        self._jobs.append({**job, "jobReference": reference, "status": {"state": "DONE"}})
        return self._jobs[-1]

    def load(self, number: int, file: bytes) -> dict[str, Any]:
        """Ends a job that waited for this Parquet file: all rows become the table's, or none."""
        job = self._jobs[number]
        config = job["configuration"]["load"]
        place, how = config["destinationTable"], config["writeDisposition"]
        assert config["sourceFormat"] == "PARQUET"
        assert config["parquetOptions"]["enableListInference"]
        name, rows = f"{place['datasetId']}.{place['tableId']}", pq.read_table(io.BytesIO(file))
        before = self.tables.get(name)
        if before is not None and how == "WRITE_EMPTY":
            job["status"]["errorResult"] = {"reason": "duplicate", "message": "Already Exists"}
        elif before is not None and before.schema.names != rows.schema.names:
            job["status"]["errorResult"] = {"reason": "invalid", "message": "Schema does not match"}
        else:
            assert how in ("WRITE_EMPTY", "WRITE_TRUNCATE_DATA")
            self.tables[name] = rows
        return job

    def create_session(self, request: Any, _: Any) -> Any:
        from google.cloud.bigquery_storage import types

        table = request.read_session.table
        _, _, _, dataset, _, name = table.split("/")
        rows = self.tables[f"{dataset}.{name}"]
        names = [f"{table}/{start}" for start in range(0, rows.num_rows, 1000)]
        schema = {"serialized_schema": rows.schema.serialize().to_pybytes()}
        return types.ReadSession(
            data_format="ARROW", arrow_schema=schema, streams=[{"name": each} for each in names]
        )

    def read_rows(self, request: Any, _: Any) -> Iterator[Any]:
        from google.cloud.bigquery_storage import types

        _, _, _, dataset, _, name, start = request.read_stream.split("/")
        rows = self.tables[f"{dataset}.{name}"].slice(int(start), 1000)
        schema = {"serialized_schema": rows.schema.serialize().to_pybytes()}
        for batch in rows.to_batches(400):
            data = {"serialized_record_batch": batch.serialize().to_pybytes()}
            yield types.ReadRowsResponse(
                arrow_record_batch=data, row_count=batch.num_rows, arrow_schema=schema
            )


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def _answer(self, content: dict[str, Any] | None, **headers: str) -> None:
        text = json.dumps({"error": {"code": 404}} if content is None else content).encode()
        self.send_response(404 if content is None else 200)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(parts)

    def do_GET(self) -> None:
        self._answer(self.server.bigquery.get(self.path.partition("?")[0]))

    def do_POST(self) -> None:
        job = self.server.bigquery.start(json.loads(self._body()))
        number = job["jobReference"]["jobId"]
        headers = {"Location": f"{self.server.bigquery.url}/upload/{number}"}
        self._answer(job, **(headers if "/upload/" in self.path else {}))

    def do_PUT(self) -> None:
        self._answer(self.server.bigquery.load(int(self.path.split("/")[-1]), self._body()))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def bigquery() -> Iterator[BigQueryServer]:
    """A server which Google's clients of this process find, without credentials."""
    pytest.importorskip("google.cloud.bigquery")
    types = pytest.importorskip("google.cloud.bigquery_storage").types
    from google.auth.credentials import AnonymousCredentials

    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    rpc = grpc.server(ThreadPoolExecutor(4))
    port = rpc.add_insecure_port("127.0.0.1:0")
    server = BigQueryServer(f"http://127.0.0.1:{http.server_port}", f"127.0.0.1:{port}")
    http.bigquery = server  # type: ignore[attr-defined]
    session, rows = types.CreateReadSessionRequest, types.ReadRowsRequest
    methods = {
        "CreateReadSession": grpc.unary_unary_rpc_method_handler(
            server.create_session, session.deserialize, types.ReadSession.serialize
        ),
        "ReadRows": grpc.unary_stream_rpc_method_handler(
            server.read_rows, rows.deserialize, types.ReadRowsResponse.serialize
        ),
    }
    rpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_READ, methods),))
    rpc.start()
    thread = Thread(target=http.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIGQUERY_EMULATOR_HOST", server.url)
        patch.setattr("google.auth.default", lambda *_, **__: (AnonymousCredentials(), "shop"))
        yield server
    http.shutdown()
    http.server_close()
    rpc.stop(None)
