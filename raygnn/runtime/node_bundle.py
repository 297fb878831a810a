"""The graph on every training node: mapped if present, else sent there once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raygnn.console import say
from raygnn.data.bundle_record import RECORD_NAME
from raygnn.data.cache import CACHE_VARIABLE, build_once
from raygnn.data.ingest.build_bundle import bundle_folder

_CHUNK_BYTES = 64 << 20
_CHUNKS_ON_THE_WAY = 4


@dataclass(frozen=True)
class BundlePlace:
    """Path of a finished bundle on the node that ingested it. Crosses process boundaries."""

    path: str
    node_id: str
    cache_dir: str | None

    @classmethod
    def here(cls, path: str, cache_dir: str | None) -> BundlePlace:
        return cls(path, ray.get_runtime_context().get_node_id(), cache_dir)


def bundle_on_this_node(place: BundlePlace) -> str:
    """Path of the bundle on this node, which receives it if missing.

    One process of the node fetches it while others wait. Nodes that share the cache folder, or
    still have the bundle from an earlier run, fetch nothing. Raises a DataError if this node's
    cache folder is not writable.
    """
    if ray.get_runtime_context().get_node_id() == place.node_id:
        return place.path
    names_own = place.cache_dir or os.environ.get(CACHE_VARIABLE)
    if not names_own and Path(place.path, RECORD_NAME).exists():
        return place.path
    local = bundle_folder(place.cache_dir) / Path(place.path).name
    return str(build_once(local, lambda folder: fetch_bundle(place, folder)))


def fetch_bundle(place: BundlePlace, folder: Path) -> None:
    there = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
    chunks: Any = (
        ray.remote(_read_bundle)
        .options(
            num_cpus=0,
            scheduling_strategy=there,
            num_returns="streaming",
            _generator_backpressure_num_objects=_CHUNKS_ON_THE_WAY,
        )
        .remote(place.path)
    )
    num_bytes = 0
    for chunk in chunks:
        name, content = ray.get(chunk)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(content)
        num_bytes += content.nbytes
    node = ray.get_runtime_context().get_node_id()[:8]
    where = f"node {ray.util.get_node_ip_address()} ({node})"
    say(f"graph sent to {where}: {num_bytes / 1e6:,.0f} MB")


def _read_bundle(path: str) -> Iterator[tuple[str, np.ndarray]]:
    root = Path(path)
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        if not file.is_file() or file.suffix == ".lock" or any(p[0] == "." for p in name.parts):
            continue
        with file.open("rb") as source:
            piece = np.frombuffer(source.read(_CHUNK_BYTES), np.uint8)
            yield str(name), piece  # an empty file is a piece too
            while piece.size == _CHUNK_BYTES:
                piece = np.frombuffer(source.read(_CHUNK_BYTES), np.uint8)
                yield str(name), piece
