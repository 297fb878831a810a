"""Tasks of ingest: in which order they end, and on nodes that do not see its folder."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygnn.data.ingest import pieces, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import OnAnyNode, RowWriter, Schedule, in_process, in_threads
from raygnn.errors import DataError
from tests.folders import contents
from tests.varied_graph import TABLES, write_varied_graph


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 3000)
    monkeypatch.setattr(sort_edges, "BUCKET_EDGES", 200)


@contextmanager
def _hidden(folder: Path) -> Iterator[None]:
    elsewhere = folder.with_name("hidden")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)


def _elsewhere(cache: Path, computed: Counter[str]) -> Schedule:
    """Runs tasks last one first, and those of any node while the cache is out of sight."""

    def schedule(fn: Any, items: Sequence[Any], label: str) -> list[Any]:
        return [run(fn, item) for item in reversed(items)][::-1]

    def run(fn: Any, item: Any) -> Any:
        if not isinstance(fn, OnAnyNode):
            return fn(item)
        computed[fn.compute.__name__] += 1
        arrays = [rows.read().copy() for rows in item.inputs]
        for array in arrays:
            array.flags.writeable = False  # as those of Ray's object store
        written: list[tuple[Path, int | None, np.ndarray]] = []
        with _hidden(cache):
            task = pickle.loads(pickle.dumps(item))
            result = fn.compute(task, arrays, lambda *rows: written.append(rows))
        write = RowWriter()
        for rows in written:
            write(*rows)
        return result

    return schedule


@pytest.mark.parametrize(("bad", "reverse_edges"), [((), None), (TABLES, True)])
def test_bundle_is_the_same(tmp_path: Path, bad: Sequence[str], reverse_edges: bool | None) -> None:
    graph = write_varied_graph(tmp_path / "graph", bad)
    options = IngestOptions(on_error="drop" if bad else "fail", reverse_edges=reverse_edges)
    here = ingest(graph, options, tmp_path / "here")
    there, computed = tmp_path / "there", Counter[str]()
    bundle = ingest(graph, options, there, _elsewhere(there, computed))
    assert contents(bundle.path) == contents(here.path)
    assert set(computed) == {"convert_nodes", "convert_rows", "order_edges"}
    assert min(computed.values()) > 3


@pytest.mark.parametrize("bad", [("user", "item"), ("knows", "bought", "like", "returned")])
def test_findings_are_the_same(tmp_path: Path, bad: Sequence[str]) -> None:
    graph = write_varied_graph(tmp_path / "graph", bad)
    cache = tmp_path / "there"
    with pytest.raises(DataError) as here:
        ingest(graph, cache_dir=tmp_path / "here")
    with pytest.raises(DataError) as there:
        ingest(graph, cache_dir=cache, schedule=_elsewhere(cache, Counter()))
    assert there.value.id == here.value.id
    assert str(there.value) == str(here.value)
    assert all(f"{name}/part-" in str(here.value) for name in bad)


def test_results_come_in_the_order_of_the_items() -> None:
    def late_first(item: int) -> int:
        time.sleep(0.01 * (item == 0))
        return item * item

    assert in_process(late_first, range(10), "squaring") == [i * i for i in range(10)]
    assert in_process(late_first, [], "squaring") == []


def test_threads_that_fail_take_no_other_item() -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        time.sleep(0.01)
        raise DataError(f"item {item} is bad")

    with pytest.raises(DataError, match="item 0 is bad"):
        in_threads(fail, range(100), "failing", 4)
    assert len(begun) <= 4


def test_the_first_error_ends_the_rest() -> None:
    done: list[int] = []

    def fail_at_zero(item: int) -> None:
        if item == 0:
            raise DataError("item 0 is bad")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(DataError, match="item 0 is bad"):
        in_process(fail_at_zero, range(500), "failing")
    assert len(done) < 499
