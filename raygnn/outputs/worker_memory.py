"""Memory and disk that a run needs on a node, and a check that they fit. docs/scaling.md derives
the numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from raygnn.config import Config
from raygnn.console import compact, count, say
from raygnn.data.arrays import memory_bytes
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import absolute
from raygnn.data.partition.record import PartitionRecord, part_bytes
from raygnn.errors import ResourceError

if TYPE_CHECKING:
    from raygnn.loops.model_spec import ModelSpec

_ROW_BYTES = 4  # bytes of a learned number
#: Numbers that optimizers keep for each weight; two of others.
_NUMBERS_KEPT = {"SGD": 0, "Adagrad": 1, "RMSprop": 1}


@dataclass(frozen=True)
class Needs:
    """Memory and disk needs of a run, in bytes.

    Attributes:
        graph: files that a node maps once for its workers, and reads on demand.
        learned: learned rows of each worker: rows, gradients, optimizer state, and best rows.
        cached: maximum size of mapped files with rows of other nodes' parts.
    """

    graph: int
    learned: int
    cached: int


def needs_of(config: Config, bundle: Bundle, spec: ModelSpec | None) -> Needs:
    """`bundle`: the graph, or the outline of a partitioned one."""
    graph, cached = bundle.num_bytes, 0
    if config.data.mode == "partitioned":
        folder = absolute(config.data.uri or "")
        num_parts = PartitionRecord.load(folder).num_parts
        parts = [part_bytes(folder, part) for part in range(num_parts)]
        is_one_node = config.scaling.max_workers == 0
        graph += sum(parts) if is_one_node else max(parts)
        cached = 0 if is_one_node else min(config.data.cache_bytes, sum(parts) - min(parts))
    return Needs(graph, _learned_bytes(config, spec), cached)


def _learned_bytes(config: Config, spec: ModelSpec | None) -> int:
    if spec is None:
        return 0
    args, shard = config.model.args, config.scaling.shard
    width = int(args.get("hidden_channels") or config.embedding_width)
    num_rows = sum(spec.node_types[name].num_nodes or 0 for name in spec.embedded_types)
    num_states = _NUMBERS_KEPT.get(config.optimizer.type.rpartition(".")[2], 2)
    num_ranks = max(1, config.scaling.world_size)
    num_copies = 1 if args.get("sparse_embeddings") else 2  # rows, and gradients of all of them
    copies: float = num_copies + num_states + 1
    if shard == "optimizer":
        copies = num_copies + num_states / num_ranks + 1
    elif shard == "full":
        copies = num_copies + (num_states + 2) / num_ranks
    elif shard == "embeddings":
        copies = (num_copies + num_states + 1) / num_ranks
    return math.ceil(copies * num_rows * width * _ROW_BYTES)


def check_needs(needs: Needs, num_workers: int, memory: int | None = None) -> None:
    """Raises a ResourceError if workers do not fit into `memory` (default: this node's)."""
    memory = memory_bytes() if memory is None else memory
    if num_workers * needs.learned <= memory:
        return
    raise ResourceError(
        f"{count(num_workers, 'worker')} of this node need {compact(num_workers * needs.learned)}B "
        f"of memory for learned rows of nodes without features, and it has {compact(memory)}B. "
        "Give such nodes features, lower model.args.hidden_channels, set scaling.shard to "
        "embeddings or optimizer.type to SGD, or train fewer workers on a node. [run-memory]"
    )


def say_needs(needs: Needs) -> None:
    parts = {
        "graph: {}B, mapped from disk": needs.graph,
        "rows of other nodes: up to {}B, mapped from disk": needs.cached,
        "learned rows: {}B of memory per worker": needs.learned,
    }
    shown = [text.format(compact(size)) for text, size in parts.items() if size >= 1e9]
    say("; ".join(shown), "needs", memory=memory_bytes(), **asdict(needs))
