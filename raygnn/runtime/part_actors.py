"""The parts of a graph, each served by an actor that maps it."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from raygnn.config import Config
from raygnn.console import count, say
from raygnn.data.filesystem import absolute, exists, is_remote, redact
from raygnn.data.partition.part import Outline, Part
from raygnn.data.partition.record import Folder, PartitionRecord, part_bytes
from raygnn.errors import DataError, RaygnnError, TrainingError
from raygnn.inference.job import InferenceJob
from raygnn.job import TrainJob
from raygnn.parallel.agreement import run_and_sync_errors
from raygnn.runtime.node_bundle import BundlePlace, bundle_on_this_node
from raygnn.runtime.ray_tasks import lent_cpus
from raygnn.sampling.parts import Answer, MappedPart, PartAnswers, PartitionedGraph, Question

Job = TypeVar("Job", TrainJob, InferenceJob)

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_NUM_THREADS = 8  # questions that an actor works on at a time; kernels release the GIL
_LEAST_BYTES_PER_S = 5e6  # a bucket that sends less counts as one that does not answer


class PartActor:
    """Maps one part and answers questions about it, after fetching it from a bucket if needed.

    It is stateless: Ray restarts it when it dies, and repeats open requests.
    """

    def __init__(self, folder: Folder, number: int, outline: BundlePlace) -> None:
        self._folder, self._number, self._outline = folder, number, outline
        self._opened: PartAnswers | None = None
        self._lock = threading.Lock()

    def node(self) -> str:
        """Opens the part, and returns its node's id. Raises a DataError if it cannot."""
        node = ray.get_runtime_context().get_node_id()
        if not exists(self._folder):
            raise DataError(
                f"data.uri={redact(os.fspath(self._folder))!r} is invalid: node {node[:8]} does "
                f"not see part {self._number}. Set a shared folder, or a bucket. "
                "[partition-not-shared]"
            )
        self._answers()
        return node

    def answer(self, question: Question, arguments: bytes) -> Any:
        """An answer of `PartAnswers`. Arguments are pickled, because what Ray unpickles is
        read-only and would compile kernels again.
        """
        return getattr(self._answers(), question)(*pickle.loads(arguments))

    def _answers(self) -> PartAnswers:
        with self._lock:
            if self._opened is None:
                outline = Outline.open(bundle_on_this_node(self._outline))
                self._opened = PartAnswers(Part(self._folder, self._number, outline, say))
            return self._opened


@dataclass(frozen=True)
class _Awaited:
    reply: ObjectRef
    number: int
    timeout_s: float

    def result(self) -> Any:
        try:
            return ray.get(self.reply, timeout=self.timeout_s)
        except GetTimeoutError as error:
            raise TrainingError(
                f"Part {self.number} has not answered for {self.timeout_s:g} s. Check its "
                "PartActor in Ray's dashboard, or set a larger scaling.timeout_s. [partition-slow]"
            ) from error
        except RayTaskError as error:
            if isinstance(error.cause, RaygnnError):
                raise error.cause from None
            raise
        except RayActorError as error:
            raise TrainingError(
                f"Part {self.number} of the graph has lost its actor, and Ray cannot start it "
                f"again: {error}. Start the run again to resume. [partition-lost]"
            ) from error


@dataclass(frozen=True)
class _PartClient:
    """A `PartService` that asks the actor of a part, on node `node_id`."""

    actor: ActorHandle
    number: int
    timeout_s: float
    folder: Folder
    node_id: str

    def ask(self, question: Question, *arguments: Any) -> Answer:
        reply = self.actor.answer.remote(question, pickle.dumps(arguments))
        return _Awaited(reply, self.number, self.timeout_s)


def with_parts_of_this_node(job: Job) -> Job:
    """Copy of the job in which this process maps the parts whose actors run on its node. These are
    already in the node's memory, so nothing is stored twice or requested.

    Collective: all ranks must call. Raises a DataError if such a part is damaged.
    """
    parts, outline_path = job.parts, job.bundle_path
    if parts is None:
        return job
    mapped = run_and_sync_errors(
        lambda: _mapped(parts, outline_path), "mapping the parts of this node"
    )
    return replace(job, parts=mapped)


def _mapped(graph: PartitionedGraph, outline_path: str) -> PartitionedGraph:
    here = ray.get_runtime_context().get_node_id()
    services = (
        MappedPart(service.folder, service.number, Path(outline_path))
        if isinstance(service, _PartClient) and service.node_id == here
        else service
        for service in graph.services
    )
    return replace(graph, services=tuple(services))


@contextmanager
def part_actors(outline: Outline, config: Config) -> Iterator[PartitionedGraph]:
    """Starts an actor for each part of the configured graph, spread over the nodes, and ends them.
    Raises a DataError if a node does not see its part, or the part is damaged, a TrainingError if
    an actor does not start within `scaling.timeout_s`.
    """
    assert config.data.uri is not None
    folder, timeout_s = absolute(config.data.uri), config.scaling.timeout_s
    record = PartitionRecord.load(folder)
    place = BundlePlace.here(str(outline.path), config.data.cache_dir)
    # Without CPUs, because workers may hold all of them. Waiting processes do not compute.
    part_actor = ray.remote(
        num_cpus=0,
        max_concurrency=_NUM_THREADS,
        max_restarts=-1,
        max_task_retries=-1,
        fallback_strategy=[{"label_selector": {}}],  # any node, where its own has gone
    )(PartActor)
    _, cpus = lent_cpus()
    nodes = [node for node, number in cpus.items() if number] or list(cpus)
    actors = [
        part_actor.options(label_selector={"ray.io/node-id": nodes[number % len(nodes)]}).remote(
            folder, number, place
        )
        for number in range(record.num_parts)
    ]
    try:
        start_s = timeout_s
        if is_remote(folder):
            largest = max(part_bytes(folder, number) for number in range(record.num_parts))
            start_s += largest / _LEAST_BYTES_PER_S
        requests = [_Awaited(a.node.remote(), i, start_s) for i, a in enumerate(actors)]
        node_ids = [request.result() for request in requests]
        say(f"{record.num_parts} parts, one actor each, on {count(len(set(node_ids)), 'node')}")
        clients = (
            _PartClient(actor, number, timeout_s, folder, node)
            for number, (actor, node) in enumerate(zip(actors, node_ids, strict=True))
        )
        yield PartitionedGraph(record, tuple(clients), config.data.cache_bytes)
    finally:
        for actor in actors:
            ray.kill(actor)
