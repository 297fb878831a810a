"""Checks before workers start: what would otherwise be an endless wait becomes an error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ray

from raygnn.config import Config
from raygnn.errors import ResourceError


@dataclass(frozen=True)
class WorkerResources:
    """What one worker asks of the cluster.

    Attributes:
        cpus: CPU cores; `OMP_NUM_THREADS` follows them.
        use_gpu: one GPU each.
    """

    cpus: float
    use_gpu: bool
    other: dict[str, float]

    def as_ray(self) -> dict[str, float]:
        gpu = {"GPU": 1.0} if self.use_gpu else {}
        return {"CPU": self.cpus, **gpu, **self.other}


def plan_resources(config: Config) -> WorkerResources:
    """Decides a worker's resources, and checks that the cluster has a place for every worker.

    Without `scaling.cpus_per_worker` the cluster's CPUs are shared out evenly, at most 8 each.

    Raises:
        ResourceError: the workers cannot all be placed.
    """
    scaling = config.scaling
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = sum(node.get("GPU", 0) for node in nodes)
    use_gpu = scaling.use_gpu is True or (
        scaling.use_gpu == "auto" and num_gpus >= scaling.num_workers
    )
    cpus = scaling.cpus_per_worker
    if cpus is None:
        total = sum(node.get("CPU", 0) for node in nodes)
        cpus = float(min(8, max(1, math.floor(total / scaling.num_workers))))
    resources = WorkerResources(cpus, use_gpu, dict(scaling.resources_per_worker))
    places = sum(_num_places(node, resources.as_ray()) for node in nodes)
    if places < scaling.num_workers:
        raise ResourceError(_explain(config, resources, nodes, places))
    return resources


def _num_places(node: dict[str, float], needed: dict[str, float]) -> int:
    asked = {name: amount for name, amount in needed.items() if amount > 0}
    return min(int(node.get(name, 0) // amount) for name, amount in asked.items())


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
        f"{want}, and the {len(nodes)} node(s) of this cluster ({have}) have places for {places}. "
        "Set fewer workers, or less of scaling.cpus_per_worker and scaling.resources_per_worker."
    )
