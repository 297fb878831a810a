"""The cache of rows of other nodes' parts: written once, mapped by all, never half of it."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygnn.data.cache import remove_unclaimed
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.part import Outline
from raygnn.errors import TrainingError
from raygnn.sampling import LocalFeatureStore
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore
from raygnn.sampling.parts import MappedPart, PartitionedGraph, PartService, map_parts
from tests.errors import raises
from tests.partitioned_graphs import NUM_ITEMS, NUM_USERS, Parted, shop
from tests.tiers import slow

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

COUNTS = {"user": NUM_USERS, "item": NUM_ITEMS}


@dataclass
class Asked:
    """A part of another node, with what it is asked for: the question, and how many ids."""

    part: PartService
    questions: list[tuple[str, int]] = field(default_factory=list)
    on_ask: Callable[[str], None] = lambda _: None

    def ask(self, question: Any, *given: Any) -> Any:
        ids = given[2] if question == "rows" else given[1]
        num_ids = len(ids) if isinstance(ids, np.ndarray) else 0
        if question != "rows" or num_ids:
            self.questions.append((question, num_ids))
            self.on_ask(question)
        return self.part.ask(question, *given)


@dataclass
class Worker:
    """A worker of a node that maps the first of three parts.

    Attributes:
        parts: the others.
    """

    store: PartitionedFeatureStore
    parts: list[Asked]
    graph: PartitionedGraph

    @classmethod
    def start(cls, node: Node, cache_bytes: int = 1 << 20, num_mapped: int = 1) -> Worker:
        services = map_parts(node.made.parts, node.outline).services
        parts = [Asked(part) for part in services[num_mapped:]]
        graph = PartitionedGraph(
            node.record, (*services[:num_mapped], *parts), cache_bytes=cache_bytes
        )
        return cls(PartitionedFeatureStore(node.outline, graph), parts, graph)

    def gather(self) -> dict[str, np.ndarray]:
        """The features of all nodes."""
        return {
            name: self.store.gather(name, "x", np.arange(count)) for name, count in COUNTS.items()
        }

    @property
    def questions(self) -> list[tuple[str, int]]:
        return [question for part in self.parts for question in part.questions]


@dataclass(frozen=True)
class Node:
    """A machine with the outline of a graph."""

    made: Parted
    outline: Outline

    @property
    def record(self) -> Any:
        return map_parts(self.made.parts, self.outline).record

    @property
    def expected(self) -> dict[str, np.ndarray]:
        store = LocalFeatureStore(self.made.whole)
        return {name: store.gather(name, "x", np.arange(count)) for name, count in COUNTS.items()}

    @property
    def folder(self) -> Path:
        """With a folder of each cache of the graph."""
        return self.outline.path.with_name(f"{self.record.fingerprint}-hot")

    @property
    def caches(self) -> set[Path]:
        return {path for path in self.folder.iterdir() if path.is_dir()}

    def assert_gathers(self, worker: Worker) -> None:
        found, expected = worker.gather(), self.expected
        assert all(np.array_equal(found[name], rows) for name, rows in expected.items())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Parted.make(tmp_path, shop(), 3, IngestOptions(reverse_edges=True))
    return Node(made, Outline.build(made.parts, tmp_path / "node"))


def _num_rows(worker: Worker) -> int:
    """Rows that were asked for."""
    return sum(count for question, count in worker.questions if question == "rows")


def test_workers_of_a_node_ask_for_rows_once(node: Node) -> None:
    first, second = Worker.start(node), Worker.start(node)
    for worker in (first, second):
        node.assert_gathers(worker)
        # Features lie in files that both map, and not in memory of their own.
        assert worker.graph.traffic.num_cached_rows > 0
    assert {question for question, _ in first.questions} == {"degrees", "rows"}
    assert {question for question, _ in second.questions} <= {"rows"}
    cached = first.graph.traffic.num_cached_rows
    assert second.graph.traffic.num_cached_rows == cached
    num_elsewhere = sum(count - node.record.first_ids(name)[1] for name, count in COUNTS.items())
    assert _num_rows(first) == num_elsewhere  # each once, into the cache or past it
    assert _num_rows(second) == num_elsewhere - cached
    assert len(node.caches) == 1


def test_workers_that_come_at_a_time_ask_for_rows_once(node: Node) -> None:
    workers, all_there = [Worker.start(node) for _ in range(4)], threading.Barrier(4)

    def gather(worker: Worker) -> None:
        all_there.wait()
        node.assert_gathers(worker)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(gather, workers))
    chose = [w for w in workers if any(question == "degrees" for question, _ in w.questions)]
    assert len(chose) == 1
    num_cached = workers[0].graph.traffic.num_cached_rows
    num_elsewhere = sum(count - node.record.first_ids(name)[1] for name, count in COUNTS.items())
    assert sum(map(_num_rows, workers)) == num_cached + 4 * (num_elsewhere - num_cached)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("wanted/user.npy", "cut"),
        ("wanted/item.npy", "gone"),
        ("wanted/written.json", "gone"),
        ("rows/user/x.rows/rows.npy", "cut"),
        ("rows/user/x.rows/rows.npy", "gone"),
        ("rows/item/x.rows/written.json", "cut"),
    ],
)
def test_damaged_files_are_not_read_but_written_again(node: Node, file: str, damage: str) -> None:
    Worker.start(node).gather()
    (cache,) = node.caches
    whole = (cache / file).read_bytes()
    if damage == "cut":
        (cache / file).write_bytes(whole[:-4])
    else:
        (cache / file).unlink()
    second = Worker.start(node)
    node.assert_gathers(second)
    asked = {question for question, _ in second.questions}
    assert ("degrees" in asked) == file.startswith("wanted")
    assert (cache / file).read_bytes() == whole
    third = Worker.start(node)
    node.assert_gathers(third)
    assert _num_rows(third) <= _num_rows(second)


_BUILDER = """
    import sys, threading
    from pathlib import Path
    from raygnn.data.partition.part import Outline
    from raygnn.sampling import parts as of_parts
    from raygnn.sampling.parts import map_parts
    from tests.numerics.test_hot_row_cache import Asked, Node, Parted, Worker
    from raygnn.data.bundle import Bundle

    parts, outline, whole, question = sys.argv[1:]
    of_parts._MAX_FETCHED_BYTES = 64
    worker = Worker.start(Node(Parted(Path(parts), Bundle.open(whole)), Outline.open(outline)))

    def stop(asked: str) -> None:
        count = sum(each == question for each, _ in worker.questions)
        if asked == question and count == 3:
            print("building", flush=True)
            threading.Event().wait()

    for part in worker.parts:
        part.on_ask = stop
    worker.gather()
"""


@pytest.mark.parametrize("question", ["degrees", *slow("rows")])
def test_another_worker_builds_where_the_first_is_killed(node: Node, question: str) -> None:
    given = [node.made.parts, node.outline.path, node.made.whole.path, question]
    builder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_BUILDER), *map(str, given)], stdout=subprocess.PIPE
    )
    assert builder.stdout is not None
    with builder, ThreadPoolExecutor(1) as threads:
        assert builder.stdout.readline() == b"building\n"
        (left,) = node.folder.rglob(".building-*")
        second = Worker.start(node)
        waits = threads.submit(node.assert_gathers, second)
        with pytest.raises(TimeoutError):
            waits.result(timeout=1)
        assert not second.questions
        builder.send_signal(signal.SIGKILL)
        waits.result(timeout=60)
    assert second.questions
    assert not left.exists()
    assert not list(node.folder.rglob(".building-*"))
    third = Worker.start(node)
    node.assert_gathers(third)
    assert "degrees" not in {asked for asked, _ in third.questions}


def test_a_part_that_does_not_answer_leaves_nothing(node: Node) -> None:
    first = Worker.start(node)

    def fail(question: str) -> None:
        if question == "rows":
            raise TrainingError("Part 1 is slow.", id="partition-slow")

    for part in first.parts:
        part.on_ask = fail
    with raises("partition-slow"):
        first.gather()
    node.assert_gathers(Worker.start(node))
    assert not list(node.folder.rglob(".building-*"))


def test_caches_of_other_settings_go_when_nobody_uses_them(node: Node) -> None:
    of: dict[str, set[Path]] = {}
    held: set[Path] = set()
    workers: dict[str, Worker] = {}
    settings = {"large": (1 << 20, 1), "small": (300, 1), "of two parts": (1 << 20, 2)}
    for name, (cache_bytes, num_mapped) in settings.items():
        workers[name] = Worker.start(node, cache_bytes, num_mapped)
        node.assert_gathers(workers[name])
        of[name] = node.caches - held
        held = node.caches
        assert len(of[name]) == 1
    assert len(held) == 3
    del workers["large"]
    gc.collect()
    node.assert_gathers(Worker.start(node, *settings["small"]))
    assert node.caches == held  # it is there, so nothing is written and nothing removed
    node.assert_gathers(Worker.start(node, 200))
    assert not node.caches & of["large"]
    assert of["small"] | of["of two parts"] < node.caches
    workers.clear()
    gc.collect()
    remove_unclaimed(node.folder)
    assert not node.caches


def test_a_cache_that_cannot_be_written_is_named(node: Node) -> None:
    node.folder.write_text("no folder")
    with raises("data-cache-unusable", node.folder, "rows of other nodes"):
        Worker.start(node).gather()


def test_a_node_that_maps_all_parts_has_no_cache(node: Node) -> None:
    worker = Worker.start(node, num_mapped=3)
    assert all(isinstance(service, MappedPart) for service in worker.graph.services)
    node.assert_gathers(worker)
    assert not node.folder.exists()
