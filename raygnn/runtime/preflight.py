"""Checks that the cluster has room for the workers, before they start and while they run. An
endless wait becomes an error or a line.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.autoscaler.sdk import request_resources

from raygnn.config import Config
from raygnn.console import count, say
from raygnn.errors import ResourceError

_MAX_CPUS = 8  # more threads than this speed up no batch of usual size
_LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class WorkerResources:
    cpus: float
    use_gpu: bool
    other: dict[str, float]

    def as_ray(self) -> dict[str, float]:
        gpu = {"GPU": 1.0} if self.use_gpu else {}
        return {"CPU": self.cpus, **gpu, **self.other}


def plan_resources(config: Config, num_runs: int = 1) -> WorkerResources:
    """Determines a worker's resources, and checks that the cluster has room for every worker.

    Without `scaling.cpus_per_worker`, the cluster's CPUs are divided evenly, at most 8 each. With
    `scaling.wait_for_nodes_s`, requests missing resources from an autoscaler, and waits.

    Raises a ResourceError if the workers of `num_runs` runs, such as a sweep's trials, do not fit
    together.
    """
    end_s = time.monotonic() + config.scaling.wait_for_nodes_s
    is_waiting = False
    try:
        while True:
            try:
                return _plan(config, num_runs)
            except ResourceError:
                if time.monotonic() >= end_s:
                    raise
            if not is_waiting:
                is_waiting = True
                _ask_for_nodes(config, num_runs)
            time.sleep(_LOOK_EVERY_S)
    finally:
        if is_waiting:
            request_resources(bundles=[])  # a request stands until it is taken back


def missing_places(config: Config, resources: WorkerResources) -> str | None:
    """A sentence if the nodes have too few places, whether or not these are free; else None."""
    nodes = _alive_nodes(config)
    places, needed = _count_places(nodes, resources), config.scaling.min_workers
    if places >= needed:
        return None
    return (
        f"This cluster of {count(len(nodes), 'node')} has room for {places} of the {needed} "
        "workers that are needed."
    )


def _ask_for_nodes(config: Config, num_runs: int) -> None:
    scaling = config.scaling
    worker = WorkerResources(
        scaling.cpus_per_worker or 1.0, scaling.use_gpu is True, dict(scaling.resources_per_worker)
    )
    bundles = [worker.as_ray()] * (scaling.min_workers * num_runs)
    selectors = [dict(scaling.label_selector)] * len(bundles) if scaling.label_selector else None
    request_resources(bundles=bundles, bundle_label_selectors=selectors)
    say(f"waiting up to {scaling.wait_for_nodes_s:g} s for nodes with room for all workers")


def _plan(config: Config, num_runs: int) -> WorkerResources:
    scaling = config.scaling
    nodes = _alive_nodes(config)
    cpus = scaling.cpus_per_worker
    if cpus is None:
        total = sum(node.get("CPU", 0) for node in nodes)
        cpus = float(min(_MAX_CPUS, max(1, math.floor(total / (scaling.max_workers * num_runs)))))
    resources = _worker_resources(config, nodes, cpus)
    places = _count_places(nodes, resources)
    if places < scaling.min_workers:
        raise ResourceError(_explain(config, resources, nodes, places), id="cluster-no-room")
    if places < scaling.min_workers * num_runs:
        raise ResourceError(
            f"tune.max_concurrent_trials={num_runs} is invalid: there is room for {places} "
            f"workers. Set {places // scaling.min_workers} or less. [sweep-no-room]"
        )
    if num_runs == 1:
        held = held_resources(resources, scaling.min_workers)
        if held is not None:
            say(f"{held} The workers start when the rest is free")
    return resources


def held_resources(resources: WorkerResources, num_workers: int) -> str | None:
    """A sentence on resources that are not free before workers start; None if all are."""
    free = ray.available_resources()
    scarce = [
        f"{name} {free.get(name, 0):g} of {amount * num_workers:g} is free"
        for name, amount in resources.as_ray().items()
        if free.get(name, 0) < amount * num_workers
    ]
    if not scarce:
        return None
    return (
        f"other work uses resources that the workers need: {', '.join(scarce)}. "
        "Lower scaling.cpus_per_worker or scaling.num_workers to use less."
    )


def count_fitting_runs(config: Config) -> int:
    """Number of runs whose workers all fit at the same time, with at least one CPU each."""
    nodes = _alive_nodes(config)
    resources = _worker_resources(config, nodes, config.scaling.cpus_per_worker or 1.0)
    return _count_places(nodes, resources) // config.scaling.min_workers


def _alive_nodes(config: Config) -> list[dict[str, float]]:
    selector = config.scaling.label_selector
    return [
        node["Resources"]
        for node in ray.nodes()
        if node["Alive"] and _fits(node.get("Labels") or {}, selector)
    ]


def _fits(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    for name, wanted in selector.items():
        is_not = wanted.startswith("!")
        text = wanted.removeprefix("!")
        several = text.startswith("in(") and text.endswith(")")
        values = text[3:-1].split(",") if several else [text]
        if (labels.get(name) in [value.strip() for value in values]) == is_not:
            return False
    return True


def _worker_resources(
    config: Config, nodes: list[dict[str, float]], cpus: float
) -> WorkerResources:
    scaling = config.scaling
    num_gpus = sum(node.get("GPU", 0) for node in nodes)
    use_gpu = scaling.use_gpu is True or (
        scaling.use_gpu == "auto" and num_gpus >= scaling.min_workers
    )
    return WorkerResources(cpus, use_gpu, dict(scaling.resources_per_worker))


def _count_places(nodes: list[dict[str, float]], resources: WorkerResources) -> int:
    amounts = {name: amount for name, amount in resources.as_ray().items() if amount > 0}
    return sum(
        min(int(node.get(name, 0) // amount) for name, amount in amounts.items()) for node in nodes
    )


def _explain(
    config: Config, resources: WorkerResources, nodes: list[dict[str, float]], places: int
) -> str:
    if resources.use_gpu and not any(node.get("GPU") for node in nodes):
        return (
            "scaling.use_gpu=True is invalid: no node of this cluster has a GPU. Set it to auto "
            "or false, or add a GPU node."
        )
    have = "; ".join(
        ", ".join(f"{name} {node.get(name, 0):g}" for name in resources.as_ray()) for node in nodes
    )
    want = ", ".join(f"{name} {amount:g}" for name, amount in resources.as_ray().items())
    return (
        f"scaling.num_workers={config.scaling.num_workers} is invalid: each worker asks for "
        f"{want}, and this cluster of {count(len(nodes), 'node')} ({have}) has room for {places}. "
        "Set fewer workers, or less of scaling.cpus_per_worker and scaling.resources_per_worker; "
        "where an autoscaler adds nodes, set scaling.wait_for_nodes_s."
    )


_LOOK_FOR_PLACES_EVERY_S = 10.0


@contextmanager
def warn_of_missing_places(config: Config, resources: WorkerResources) -> Iterator[None]:
    """Warns, once each time, when the remaining nodes have too few places for the workers."""
    is_over = threading.Event()

    def watch() -> None:
        reported: str | None = None
        while not is_over.wait(_LOOK_FOR_PLACES_EVERY_S):
            missing = missing_places(config, resources)
            if missing is not None and missing != reported:
                say(f"{missing} The run continues when nodes are added.")
            reported = missing

    watcher = threading.Thread(target=watch, name="raygnn-lost-nodes", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join(timeout=_LOOK_FOR_PLACES_EVERY_S)  # a head that has gone may not answer
