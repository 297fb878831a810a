"""The best targets of rows of (anchor, time): of label edges with times, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse
from torch import Tensor, nn

from raygnn.config import Config
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.links.dated_links import DatedLinks
from raygnn.data.links.split import time_unit_of
from raygnn.data.manifest import LabelEdgeTable
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.read_ids import as_plain_texts, original_ids
from raygnn.errors import ConfigError
from raygnn.inference.job import check_k, find_score
from raygnn.inference.neighbor_search import build_decoder
from raygnn.inference.row_tables import ID, TIME, RowRequest, read_seed_rows, with_times
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.link_prediction.target import LinkOutput, LinkTarget, LinkTargetArguments
from raygnn.models.decoders import Scores, top_k
from raygnn.models.link_factors import LinkBasis, LinkFactors

_ANCHORS_AT_A_TIME = 1024


def find_link_rows(
    spec: ModelSpec, config: Config, bundle: Bundle, request: RowRequest
) -> tuple[SeedRows, int]:
    """The requested rows of a model of links, and the number of its relation.

    Label edges are rows if the model was trained on them by time. A table of ids and times needs a
    model of one relation.

    Raises:
        ConfigError: the model has no such rows.
        DataError: an id is not in the graph, or a time cannot be compared with the graph's.
    """
    output, rows, split = spec.output, request.rows, request.split
    if not isinstance(output, LinkOutput):
        raise ConfigError(
            "--top-k is invalid with rows: the model predicts labels. Leave it out.",
            id="infer-options-clash",
        )
    if not isinstance(rows, str):
        find_score(spec, "decoder", None)
        return read_seed_rows(bundle, output.ends[0], request), 0
    target = LinkTarget.of(bundle, config, LinkTargetArguments.of(config.task.args), output)
    relations = [relation for _, relation, _ in output.edge_types]
    if rows not in relations or not target.by_time:
        raise ConfigError(
            f"table={rows!r} is invalid: the model was trained on {', '.join(relations)}. Name "
            "label edges with times, of a model with sampling.temporal.",
            id="infer-rows-type",
        )
    number = relations.index(rows)
    anchors, times = [], []
    for name in SPLIT_NAMES if split is None else (split,):
        edges, of_split = target.splits[name], target.times(name)
        chosen = slice(None) if edges.relations is None else edges.relations == number
        anchors.append(edges.anchors[chosen])
        times.append(of_split[chosen])
    nodes, unit = np.concatenate(anchors), time_unit_of(bundle, target.links[0])
    found = np.concatenate(times)
    return SeedRows(rows, output.ends[0], len(nodes), nodes, found, None, unit, {}), number


def rank_targets(
    rows: SeedRows,
    relation: int,
    k: int,
    bundle: Bundle,
    spec: ModelSpec,
    model: nn.Module,
    encode: Callable[[SeedRows], Tensor],
    links: DatedLinks | None,
) -> pa.Table:
    """The k best-scored targets of each row, among all targets as of its time.

    Args:
        links: those that closed-form rows of the model read.
        encode: embeds rows, [num_rows, channels].
    Returns:
        `id`, `time`, and lists `neighbor_id` and `score`, best first. A list is shorter than k if
        the other targets are known links, and the model does not rank these.
    Raises:
        ConfigError: there are fewer targets than k.
    """
    anchor_type, target_type = spec.output.ends
    is_one_type = anchor_type == target_type
    check_k(k, bundle, anchor_type, target_type)
    scores = partial(build_decoder("decoder", model, spec.output).score_all, relation=relation)
    anchors, every = encode(rows), np.arange(bundle.num_nodes(target_type))
    nodes = rows.node_ids(np.arange(rows.num_rows))
    neighbors, values = np.empty((len(nodes), k), np.int64), np.empty((len(nodes), k), np.float32)
    moments = np.zeros(len(nodes)) if rows.time is None else rows.time
    for moment in np.unique(moments):
        times = None if rows.time is None else np.full(len(every), moment)
        at = SeedRows("rows", target_type, len(every), every, times, None, None, {})
        targets = encode(at)
        places = np.flatnonzero(moments == moment)
        at_moment, known = anchors[torch.from_numpy(places)], None
        if links is not None:
            factors = model.factors
            assert isinstance(factors, LinkFactors)
            power, half_life = factors.settings.power, factors.settings.half_life
            basis = LinkBasis.as_of(links, moment, power, half_life, nodes[places])
            at_moment, targets = map(factors.join, (at_moment, targets), factors.rows(basis))
            known = factors.hidden(basis)
        for first in range(0, len(places), _ANCHORS_AT_A_TIME):
            part = slice(first, first + _ANCHORS_AT_A_TIME)
            chosen = places[part]
            itself = nodes[chosen] if is_one_type else None
            left_out = _left_out(itself, None if known is None else known[part], len(every))
            best = _best(at_moment[part], targets, k, scores, left_out)
            values[chosen], neighbors[chosen] = (part.cpu().numpy() for part in best)
    is_ranked = values > -np.inf
    ids = as_plain_texts(bundle.ids(target_type).take(pa.array(neighbors[is_ranked])))
    ends = pa.array(np.cumsum([0, *is_ranked.sum(axis=1)], dtype=np.int32))
    table = pa.table(
        {
            ID: original_ids(bundle, anchor_type, nodes),
            "neighbor_id": pa.ListArray.from_arrays(ends, ids),
            "score": pa.ListArray.from_arrays(ends, pa.array(values[is_ranked])),
        }
    )
    return with_times(table, rows, np.arange(len(nodes)))


def _left_out(
    itself: np.ndarray | None, known: sparse.csr_matrix | None, num_targets: int
) -> Tensor | None:
    """bool [num_rows, num_targets], each row's own node and its known links; None without both."""
    if known is not None:
        mask = known.toarray() > 0
    elif itself is not None:
        mask = np.zeros((len(itself), num_targets), bool)
    else:
        return None
    if itself is not None:
        mask[np.arange(len(itself)), itself] = True
    return torch.from_numpy(mask)


def _best(
    anchors: Tensor, targets: Tensor, k: int, scores: Scores, left_out: Tensor | None
) -> tuple[Tensor, Tensor]:
    mask = None if left_out is None else left_out.to(targets.device)
    is_left_out = None if mask is None else (lambda first, last: mask[:, first:last])
    return top_k(anchors, lambda i, j: targets[i:j], len(targets), k, scores, is_left_out)


def relbench_links(ranked: pa.Table, declared: LabelEdgeTable) -> pa.Table:
    """Ranked targets in the columns of label edges, for `relbench.submit`."""
    assert declared.time is not None
    columns = {declared.source: ID, declared.time.column: TIME, declared.target: "neighbor_id"}
    return pa.table({name: ranked.column(column) for name, column in columns.items()})
