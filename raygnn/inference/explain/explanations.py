"""Explanations of predictions by edges and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raygnn.console import warn
from raygnn.data.edge_types import edge_type_name
from raygnn.data.history_spec import HistoryColumn
from raygnn.data.manifest import Manifest
from raygnn.data.tables.read_ids import original_ids
from raygnn.errors import ConfigError
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.explain.inputs import Element, InputNames, Words
from raygnn.inference.explain.masked_model import MaskedModel, typical_rows
from raygnn.inference.explain.options import ExplainOptions
from raygnn.inference.explain.rungs import Fact, RowRungs, margin
from raygnn.inference.output_folder import OutputFolder
from raygnn.inference.result_tables import Table
from raygnn.loops.blend import GNN, Share
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.sampling.batch import Batch

#: Tables of explanations.
TABLES = ("predictions", "parts", "edges", "columns")
LABELS = "labels"  # the part of the labels around a node
_STANDS_OUT = 0.1  # of a logit, from which on a sentence names a column
_SHARE_OF_STD = 0.05  # the same for numbers, as a share of their standard deviation
_SHARE_OF_LARGEST = 0.05  # effects below it are not named


@dataclass(frozen=True)
class Explanations:
    """Explanations of predictions. Importances are between 0 and 1.

    Attributes:
        predictions: a row for each node: `id` (`from_id` and `to_id` for a pair, in all tables),
            `prediction`; `score`, the probability of that class or the value; `score_kept` and
            `score_removed`, the same with only the explanation and without it; `num_edges` of the
            neighborhood; `sentence`, the explanation in words.
        parts: `id`, `part`, what predicts (`gnn`, `lightgbm`, ...), its `weight`, and its `score`
            alone.
        edges: `id`, `edge_type`, `source_id`, `target_id`, `importance`, and `kept`: whether the
            edge is in the explanation. In the direction of messages, the most important first.
        columns: `id`, `part`, `node_type`, `table`, `column`, `element` of a list column (else
            null), `value` of the explained node, `effect`, `kept`. The largest effects of each
            part first.
        records: rows of `predictions`, each with its `parts` and its `columns` and `edges`: those
            kept, and the columns with the largest effects.
    """

    predictions: Table
    parts: Table
    edges: Table
    columns: Table
    records: list[dict[str, Any]]

    def write(self, uri: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the tables as Parquet.

        Args:
            uri: folder, any fsspec URI.
            overwrite: replaces the output of an earlier call.
        Raises:
            RunError: the folder is not writable, or has other content.
        """
        folder = OutputFolder.check(fspath(uri), overwrite)
        with folder.in_progress():
            tables = {}
            for name in TABLES:
                file = folder.write(name, 0, 1, getattr(self, name).arrow)
                tables[name] = {"files": [file]}
            folder.finish({"what": "explanations", "tables": tables})


@dataclass(frozen=True)
class Seed:
    """The node or pair of a batch whose prediction is explained.

    Attributes:
        ids: columns of one row, original ids.
        ends: the node or the two nodes, as node type and local id.
        head: see `MaskedModel`.
        rungs: of the blend that predicts; None if encoder and head predict alone.
        labels: logits of the labels around the node, [1, num_outputs]; None if it reads none.
    """

    ids: Mapping[str, pa.Array]
    ends: Sequence[tuple[str, int]]
    head: Callable[[Mapping[str, Any]], Tensor]
    rungs: RowRungs | None = None
    labels: Tensor | None = None


def explain_batches(
    batches: Iterable[Batch],
    seed_of: Callable[[Any], Seed],
    applied: AppliedModel,
    manifest: Manifest | None,
    options: ExplainOptions,
    background: Callable[[], Iterable[Batch]],
) -> Explanations:
    """Explains the prediction of each batch, which has one seed.

    Args:
        background: other batches, whose mean rows are what masked columns become.
    Raises:
        ConfigError: the model reads nothing to mask.
    """
    names, typical = InputNames(applied, manifest), {}
    if applied.encoder.relative_time is not None:
        typical = typical_rows(applied.encoder, background())
    context = _Context(applied, names, names.elements(), typical, options)
    explained = [_Explained(b, seed_of(b), context) for b in batches]
    if any(one.hides_edges for one in explained):
        warn(
            "edges have importance 0, because the model reads them without PyG's MessagePassing, "
            "or changes edge_index first: only columns are explained"
        )
    tables = {
        name: Table(pa.concat_tables([getattr(one, name) for one in explained])) for name in TABLES
    }
    return Explanations(**tables, records=[one.record() for one in explained])


@dataclass(frozen=True)
class _Context:
    """Inputs that the explanations of one call share. `typical`: see `MaskedModel`."""

    applied: AppliedModel
    names: InputNames
    elements: Mapping[str, Sequence[Element]]
    typical: Mapping[str, Tensor]
    options: ExplainOptions


def check_explained(spec: ModelSpec) -> str:
    """The problem of a prediction. Raises a ConfigError unless it is one label or links."""
    output = spec.output
    if output.links:
        return "regression"
    if not isinstance(output, LabelOutput):
        raise ConfigError(
            f"explain is invalid for this model: it gives {output.key}, but only predictions of "
            "nodes, edges and links can be explained. Use such a model. [explain-task]"
        )
    if output.problem == "regression" and output.num_outputs > 1:
        raise ConfigError(
            f"explain is invalid for this model: it predicts {output.num_outputs} values at once. "
            "Train it on one of them. [explain-several-values]"
        )
    return output.problem


class _Explained:
    hides_edges = False

    def __init__(self, batch: Batch, seed: Seed, context: _Context) -> None:
        applied, self._context = context.applied, context
        self._problem = check_explained(applied.spec)
        self._batch, self._bundle, self._seed = batch, applied.bundle, seed
        self._label: int | None = None
        self._around: set[tuple[str, str]] = set()
        self._masked: MaskedModel | None = None
        self._kept_edges = np.empty(0, np.int64)
        num_kept = context.options.num_columns
        outputs = None
        if seed.rungs is None or GNN in seed.rungs.blend.shares:
            outputs = seed.head(applied.encoder(batch)).float()
        whole = self._completed(outputs)
        if self._problem != "regression":
            self._label = int(whole.argmax())
        facts = [] if seed.rungs is None else list(seed.rungs.facts(self._label, num_kept))
        changed: list[Tensor | None] = [None, None]
        if outputs is not None:
            edges, of_gnn, changed = self._explain_gnn(num_kept)
            facts = [*of_gnn, *facts, *self._labels_around()]
        else:
            edges = np.empty(0, np.float32)
        self._facts = facts
        self.edges = self._edge_table(edges)
        kept = None if seed.rungs is None else seed.rungs.kept_columns(facts)
        removed = None if kept is None else ~kept
        self._outputs = [
            whole,
            self._completed(changed[0], kept),
            self._completed(changed[1], removed),
        ]
        self._words = self._find_words()
        self.columns = self._column_table()
        self.parts = self._part_table(outputs)
        self.predictions = self._prediction_table()

    def _completed(self, outputs: Tensor | None, kept: np.ndarray | None = None) -> Tensor:
        """The model's outputs from those of the GNN; see `RowRungs.predict`."""
        rungs = self._seed.rungs
        if rungs is not None:
            return rungs.predict(outputs, kept)
        assert outputs is not None
        return outputs

    def _labels_around(self) -> Iterator[Fact]:
        """The summand of the labels around a node."""
        labels = self._seed.labels
        if labels is None:
            return
        ((node_type, _),) = self._seed.ends
        described = HistoryColumn("labels around it", node_type)
        effect = float(margin(labels.double().cpu().numpy()[0], self._label, self._problem))
        yield Fact(LABELS, node_type, described, None, effect, effect != 0)

    def _explain_gnn(self, num_kept: int) -> tuple[np.ndarray, list[Fact], list[Tensor | None]]:
        """Importance of edges, facts of columns, and the outputs of the GNN with only the
        explanation and without it.
        """
        context, options = self._context, self._context.options
        model = context.applied.model

        def head(rows: Mapping[str, Any]) -> Tensor:
            return self._seed.head(rows).float()

        self._masked = masked = MaskedModel(model, self._batch, head, context.typical)
        masked.check_layers()
        self.hides_edges = masked.hides_edges
        elements = [part for name in masked.elements for part in context.elements[name]]
        groups = list(dict.fromkeys(elements))
        group = torch.tensor([groups.index(element) for element in elements], dtype=torch.int64)
        edges = self._edge_importance(masked)
        order = np.argsort(-edges, kind="stable")[: options.num_edges]
        self._kept_edges = order[edges[order] > 0]
        effects = self._effects(masked, group, groups)
        order = np.argsort(-np.abs(effects), kind="stable")
        kept = np.zeros(len(groups), bool)
        kept[order[:num_kept]] = effects[order[:num_kept]] != 0
        kept_elements = torch.from_numpy(kept[group.numpy()]).to(masked.x)
        kept_edges = masked.x.new_zeros(len(edges))
        kept_edges[self._kept_edges] = 1
        changed: list[Tensor | None] = []
        with torch.no_grad():
            for x, mask in ((kept_elements, kept_edges), (1 - kept_elements, 1 - kept_edges)):
                changed.append(masked(masked.x * x, mask if masked.masks_edges else None))
        facts = []
        for i in order.tolist():
            of, effect = groups[i], float(effects[i])
            facts.append(Fact(GNN, of.node_type, of.described, of.element, effect, bool(kept[i])))
        return edges, facts, changed

    def _edge_importance(self, masked: MaskedModel) -> np.ndarray:
        """float32 [num_edges]: slopes of the explained output by the masks of edges, at 1; the
        largest becomes 1.
        """
        mask = masked.x.new_ones(masked.edge_index.shape[1], requires_grad=True)
        if not masked.masks_edges:
            return np.zeros(len(mask), np.float32)
        with torch.enable_grad():
            rows = masked(masked.x, mask)
            (slopes,) = torch.autograd.grad(margin(rows[0], self._label, self._problem), mask)
        sizes = np.abs(slopes.cpu().numpy())
        return (sizes / (sizes.max(initial=0.0) or 1.0)).astype(np.float32)

    @torch.no_grad()
    def _effects(self, masked: MaskedModel, group: Tensor, groups: Sequence[Element]) -> np.ndarray:
        """float64 [num_groups], what each column adds to the prediction. Notes which of them add
        more by the nodes around the explained ones.
        """

        output = self._context.applied.spec.output

        def score(x: Tensor) -> float:
            rows = masked(x)
            if isinstance(output, LabelOutput) and self._problem == "regression":
                rows = output.in_units(rows)
            return float(margin(rows.double().cpu().numpy()[0], self._label, self._problem))

        whole, rungs = score(masked.x), self._seed.rungs
        share = Share(1.0) if rungs is None else rungs.blend.shares[GNN]
        group = group.to(masked.x.device)
        own = [masked.rows[name].start + end for name, end in self._seed.ends]
        found = np.zeros(len(groups))
        for i, element in enumerate(groups):
            found[i] = whole - score(masked.x * (group != i))
            is_shared = element.described.what == "" and self._is_own(GNN, element)
            if is_shared and abs(found[i]) > 0 and len(masked.rows[element.node_type]) > 1:
                x = masked.x.clone()
                x[own] *= group != i
                if abs(whole - score(x)) < abs(found[i]) / 2:
                    self._around.add((element.node_type, element.described.name))
        return share.weight * share.scale * found

    def record(self) -> dict[str, Any]:
        """The row of `predictions`, with those of other tables that are kept, and the columns that
        its sentence may name.
        """
        found: dict[str, Any] = self.predictions.to_pylist()[0]
        for name in ("parts", "columns", "edges"):
            found[name] = getattr(self, name).drop_columns(list(self._seed.ids)).to_pylist()
        effects = sorted(abs(row["effect"]) for row in found["columns"])
        least = min(effects[-self._context.options.num_columns :], default=0.0)
        for name in ("columns", "edges"):
            found[name] = [
                row
                for row in found[name]
                if row.pop("kept") or abs(row.get("effect", 0.0)) >= max(least, 1e-12)
            ]
        return found

    def _edge_table(self, importance: np.ndarray) -> pa.Table:
        order = np.argsort(-importance, kind="stable")
        kept = np.isin(order, self._kept_edges)
        types, ends = [], ([], [])  # type: ignore[var-annotated]
        for edge_type, span in ({} if self._masked is None else self._masked.edges).items():
            types += [edge_type_name(edge_type)] * len(span)
            index = self._batch.edges[edge_type].edge_index
            for values, name, nodes in zip(ends, edge_type[::2], index, strict=True):
                values += self._ids(name, self._batch.nodes[name].n_id[nodes])
        columns = {"edge_type": types, "source_id": ends[0], "target_id": ends[1]}
        text = pa.string()
        kinds = {"edge_type": text, "source_id": self._id_type, "target_id": self._id_type}
        named = {n: pa.array([v[i] for i in order], kinds[n]) for n, v in columns.items()}
        return self._rows(len(order), {**named, "importance": importance[order], "kept": kept})

    def _column_table(self) -> pa.Table:
        facts, words, text = self._facts, self._words, pa.string()

        def value(fact: Fact) -> str | None:
            if not self._is_own(fact.part, fact):
                return None
            return words[fact.node_type].value(fact.described)

        return self._rows(
            len(facts),
            {
                "part": pa.array([fact.part for fact in facts], text),
                "node_type": pa.array([fact.node_type for fact in facts], text),
                "table": pa.array([fact.described.table for fact in facts], text),
                "column": pa.array([fact.column for fact in facts], text),
                "element": pa.array([fact.element for fact in facts], pa.int32()),
                "value": pa.array([value(fact) for fact in facts], text),
                "effect": np.array([fact.effect for fact in facts], np.float32),
                "kept": np.array([fact.kept for fact in facts], bool),
            },
        )

    def _is_own(self, part: str, column: Fact | Element) -> bool:
        """Whether the column belongs to the explained node, or to one end of a pair."""
        is_own = part != GNN or self._is_single(column.node_type)
        return is_own and column.element is None

    def _find_words(self) -> dict[str, Words]:
        """Values of the explained node, or of both ends of a pair, by node type."""
        names, rungs = self._context.names, self._seed.rungs
        values = {
            name: names.values(self._batch, name, end)
            for name, end in self._seed.ends
            if self._is_single(name)
        }
        for name, numbers in ({} if rungs is None else rungs.values).items():
            values[name] = values.get(name, {}) | numbers
        return {name: Words(numbers, names.is_date()) for name, numbers in values.items()}

    def _is_single(self, node_type: str) -> bool:
        """Whether one explained node has the type."""
        return [name for name, _ in self._seed.ends].count(node_type) == 1

    def _part_table(self, outputs: Tensor | None) -> pa.Table:
        rungs, output = self._seed.rungs, self._context.applied.spec.output
        if rungs is None:
            parts = {GNN: (1.0, self._score(self._outputs[0]))}
        else:
            parts = {
                name: (weight, self._share(torch.from_numpy(scores)[None]))
                for name, (weight, scores) in rungs.parts(outputs).items()
            }
        assert isinstance(output, LabelOutput) or rungs is None
        return self._rows(
            len(parts),
            {
                "part": pa.array(list(parts), pa.string()),
                "weight": np.array([weight for weight, _ in parts.values()], np.float32),
                "score": np.array([score for _, score in parts.values()], np.float32),
            },
        )

    def _share(self, scores: Tensor) -> float:
        """The probability of the explained class or label, or the number, of [1, num_outputs]."""
        if self._label is None:
            return float(scores[0, 0])
        is_class = self._problem == "multi_class"
        return float((scores.softmax(dim=1) if is_class else scores.sigmoid())[0, self._label])

    def _score(self, rows: Tensor) -> float:
        """The probability of the explained class or label, or the value in its unit."""
        is_label = isinstance(self._context.applied.spec.output, LabelOutput)
        if is_label and self._problem == "regression":
            table = self._context.applied.task.output_columns("predictions", rows.cpu())
            return float(table["prediction"][0])
        return self._share(rows.reshape(1, -1))

    def _prediction_table(self) -> pa.Table:
        output, label = self._context.applied.spec.output, self._label
        scores = [self._score(rows) for rows in self._outputs]
        columns: dict[str, Any] = {"prediction": pa.array(scores[:1])}
        if label is not None:
            assert isinstance(output, LabelOutput)
            columns["prediction"] = pa.array([output.shown_classes[label]])
        for name, score in zip(("score", "score_kept", "score_removed"), scores, strict=True):
            columns[name] = np.array([score], np.float32)
        columns["num_edges"] = np.array([self._batch.num_edges])
        columns["sentence"] = pa.array([self._sentence(columns["prediction"][0].as_py())])
        return self._rows(1, columns)

    def _sentence(self, prediction: Any) -> str:
        output = self._context.applied.spec.output
        least, is_number = _STANDS_OUT, self._label is None
        if is_number:
            scale = output.scale if isinstance(output, LabelOutput) else None
            least = 0.0 if scale is None else _SHARE_OF_STD * scale.std[0]
        effects: dict[tuple[Any, ...], float] = {}
        of_key = {(f.node_type, f.described.name, f.element): f for f in self._facts}
        for fact in self._facts:  # parts may read the same column
            key = fact.node_type, fact.described.name, fact.element
            effects[key] = effects.get(key, 0.0) + fact.effect
        largest = sorted(effects, key=lambda key: -abs(effects[key]))
        least = max(least, *(_SHARE_OF_LARGEST * abs(effects[key]) for key in largest[:1]), 0.0)
        phrases = {
            self._phrase(of_key[key]): effects[key]
            for key in largest[: self._context.options.num_columns]
            if abs(effects[key]) > least
        }
        both = [
            ", ".join(text for text, effect in phrases.items() if effect * sign > 0)
            for sign in (1, -1)
        ]
        marks = ("raised by ", "lowered by ") if is_number else ("", "against it: ")
        said = "; ".join(mark + text for mark, text in zip(marks, both, strict=True) if text)
        score = self._score(self._outputs[0])
        shown = f"{score:.4g}" if is_number else f"{prediction} ({score:.0%})"
        return f"{shown}: {said or 'nothing stands out'}"

    def _phrase(self, fact: Fact) -> str:
        name = fact.described.name
        is_around = (fact.node_type, name) in self._around
        if self._is_own(fact.part, fact) and not is_around:
            text = self._words[fact.node_type].phrase(fact.described)
            is_unclear = len(self._seed.ends) > 1 and fact.described.table != fact.node_type
            return f"{text} of {fact.node_type}" if is_unclear else text
        element = "" if fact.element is None else f"[{fact.element}]"
        is_around = is_around or fact.node_type not in dict(self._seed.ends)
        return f"{name}{element}{f' of {fact.node_type} around it' if is_around else ''}"

    @cached_property
    def _id_type(self) -> pa.DataType:
        kinds = {self._bundle.id_map(name).kind for name in self._bundle.node_types}
        return pa.int64() if kinds == {"int"} else pa.string()

    def _ids(self, node_type: str, dense: Tensor) -> list[Any]:
        ids = original_ids(self._bundle, node_type, dense.cpu().numpy())
        return list(ids.cast(self._id_type).to_pylist())

    def _rows(self, num_rows: int, columns: Mapping[str, Any]) -> pa.Table:
        first = pa.array(np.zeros(num_rows, np.int64))
        return pa.table({**{n: ids.take(first) for n, ids in self._seed.ids.items()}, **columns})
