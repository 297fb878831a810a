"""Explanations of predictions by neighbors and columns, with `torch_geometric.explain`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.explain.config import ModelConfig
from torch_geometric.explain.metric import fidelity

from raygnn.console import warn
from raygnn.data.bundle import SeedRows
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.filesystem import join, write_text
from raygnn.data.manifest import DenseFeature, Manifest
from raygnn.data.tables.read_ids import original_ids
from raygnn.data.transforms.state import FittedColumn, FittedFeature
from raygnn.errors import ConfigError
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.output_folder import PICTURE, OutputFolder
from raygnn.inference.result_tables import Table
from raygnn.inference.row_tables import times_of
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.node_classification.task import seeds_of
from raygnn.models.feature_layers import embedding_channels
from raygnn.models.graph_encoder import EdgePredictor
from raygnn.models.masked_model import MaskedModel
from raygnn.outputs.explanation_picture import Drawn, draw_explanations
from raygnn.sampling.batch import Batch, EdgeBatch, NodeBatch

GNN_EXPLAINER = "GNNExplainer"
#: Captum's, that need no more than gradients.
CAPTUM_METHODS = ("IntegratedGradients", "InputXGradient", "Saliency")
METHODS = (GNN_EXPLAINER, *CAPTUM_METHODS)
_EPOCHS, _LR = 200, 0.05
# Without PyG's entropy, which moves masks to 0 or 1 before the loss says which: what is largest is
# chosen afterwards. docs/decisions.md has the figures.
_COEFFICIENTS = {"edge_size": 1.0, "node_feat_size": 0.5, "edge_ent": 0.0, "node_feat_ent": 0.0}
_MODES = {
    "multi_class": ModelConfig("multiclass_classification", "node", "raw"),
    "multi_label": ModelConfig("binary_classification", "node", "probs"),
    "regression": ModelConfig("regression", "node", "raw"),
}


@dataclass(frozen=True)
class ExplainOptions:
    """Options of explanations.

    Attributes:
        method: GNNExplainer, or one of Captum's attributions: IntegratedGradients, InputXGradient
            or Saliency.
        num_edges, num_columns: size of the explanation in `fidelity` and picture: that many of the
            most important edges and columns.
    Raises:
        ConfigError: there is no such method, its package is missing, or a number is below 1.
    """

    method: str = GNN_EXPLAINER
    num_edges: int = 10
    num_columns: int = 3

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"method={self.method!r} is invalid: unknown method. Set one of: "
                f"{', '.join(METHODS)}.",
                id="explain-method-unknown",
            )
        for name in ("num_edges", "num_columns"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is invalid: it must be at least 1. "
                    "Set 1 or more.",
                    id="explain-number",
                )
        if self.method in CAPTUM_METHODS:
            try:
                import captum.attr  # noqa: F401
            except ImportError as error:
                raise ConfigError(
                    f"method={self.method!r} cannot be used: {error}. Run "
                    "`pip install -e '.[captum]'` in raygnn's folder, or set GNNExplainer.",
                    id="explain-extra-missing",
                ) from error


@dataclass(frozen=True)
class Explanations:
    """Explanations of predictions. Importances of GNNExplainer are between 0 and 1.

    Attributes:
        predictions: a row for each node: `id` (`from_id` and `to_id` for a pair, in all tables),
            `prediction`; `score`, the probability of that class or the value; `score_kept` and
            `score_removed`, the same with only the explanation and without it; `fidelity_plus` and
            `fidelity_minus`, 1 if the prediction changes without it, and with only it (null for
            regression); `num_edges` of the neighborhood.
        edges: `id`, `edge_type`, `source_id`, `target_id`, `importance`, and `kept`: whether the
            edge is in the explanation. In the direction of messages, the most important first.
        neighbors: `id`, `node_type`, `neighbor_id`, `importance` of its most important edge.
        columns: `id`, `node_type`, `column` of the tables, `element` of a list column (else null),
            `importance`, `kept`.
    """

    predictions: Table
    edges: Table
    neighbors: Table
    columns: Table
    picture: str

    def write(self, uri: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the tables as Parquet, and the picture as `explanations.svg`.

        Args:
            uri: folder, any fsspec URI.
            overwrite: replaces the output of an earlier call.
        Raises:
            RunError: the folder is not writable, or has other content.
        """
        folder = OutputFolder.check(fspath(uri), overwrite)
        with folder.in_progress():
            tables = {}
            for name in ("predictions", "edges", "neighbors", "columns"):
                file = folder.write(name, 0, 1, getattr(self, name).arrow)
                tables[name] = {"files": [file]}
            write_text(join(folder.staged_uri, PICTURE), self.picture)
            folder.finish({"what": "explanations", "tables": tables})


class Element(NamedTuple):
    """One element of an input row: its table column, and its position in a list column."""

    node_type: str
    column: str
    element: int | None


@dataclass(frozen=True)
class Seed:
    """The node or pair of a batch whose prediction is explained.

    Attributes:
        ids: columns of one row, original ids.
        ends: the node or the two nodes, as node type and local id.
        head: see `MaskedModel`.
    """

    ids: Mapping[str, pa.Array]
    ends: Sequence[tuple[str, int]]
    head: Callable[[Mapping[str, Any]], Tensor]


def seed_node(batch: NodeBatch, applied: AppliedModel, rows: SeedRows | None = None) -> Seed:
    """The only node of a batch, or the only one of some rows."""
    name, index, model = batch.node_type, batch.seed_index, cast("Any", applied.model)

    def head(rows: Mapping[str, Any]) -> Tensor:
        encoded = rows[name]
        encoded = next(iter(encoded.values())) if isinstance(encoded, Mapping) else encoded
        return applied.task.completed(model, model.readout(encoded[index]), *seeds_of(batch))

    seeds = batch.input_id.cpu().numpy()
    nodes = seeds if rows is None else rows.node_ids(seeds)
    ids = {"id": original_ids(applied.bundle, name, nodes)}
    if rows is not None and rows.time is not None:
        ids["time"] = times_of(rows, seeds)
    return Seed(ids, [(name, int(index[0]))], head)


def seed_pair(batch: EdgeBatch, applied: AppliedModel, edge_type: EdgeType, relation: int) -> Seed:
    names, index, model = edge_type[::2], batch.end_index, cast("Any", applied.model)

    def head(rows: Mapping[str, Any]) -> Tensor:
        source, target = (rows[name][end] for name, end in zip(names, index, strict=True))
        if isinstance(model, EdgePredictor):
            return model.of_ends(source, target, batch.inputs, batch.end_id)[0]
        scores: Tensor = model.decoder.score_pairs(source, target, relation)
        return scores.unsqueeze(1)

    ends = [(name, int(end[0])) for name, end in zip(names, index, strict=True)]
    ids = {
        column: original_ids(applied.bundle, name, batch.nodes[name].n_id[[end]].cpu().numpy())
        for column, (name, end) in zip(("from_id", "to_id"), ends, strict=True)
    }
    return Seed(ids, ends, head)


def explain_batches(
    batches: Iterable[Batch],
    seed_of: Callable[[Any], Seed],
    applied: AppliedModel,
    names: Mapping[str, Sequence[Element]],
    options: ExplainOptions,
) -> Explanations:
    """Explains the prediction of each batch, which has one seed. Raises a ConfigError if the model
    reads nothing to mask. `names`: by node type, the elements of the encoder's input rows.
    """
    blend = getattr(applied.spec.output, "blend", None)
    if blend is not None and not blend.is_gnn:
        warn(
            f"the model predicts by {blend.words}. Edges and columns explain the part of the GNN: "
            "what moves the prediction of the other rungs is not shown"
        )
    explained = [_Explained(b, seed_of(b), applied, names, options) for b in batches]
    if any(one.hides_edges for one in explained):
        warn(
            "edges have importance 0, because the model reads them without PyG's MessagePassing, "
            "or changes edge_index first: only columns are explained"
        )
    parts = {
        name: Table(pa.concat_tables([getattr(one, name) for one in explained]))
        for name in ("predictions", "edges", "neighbors", "columns")
    }
    return Explanations(**parts, picture=draw_explanations([one.drawn() for one in explained]))


def check_explained(spec: ModelSpec) -> str:
    """The problem of a prediction. Raises a ConfigError unless it is one label or links."""
    output = spec.output
    if output.links:
        return "regression"
    if not isinstance(output, LabelOutput):
        raise ConfigError(
            f"explain is invalid for this model: it gives {output.key}, but only predictions of "
            f"nodes, edges and links can be explained. Use such a model.",
            id="explain-task",
        )
    if output.problem == "regression" and output.num_outputs > 1:
        raise ConfigError(
            f"explain is invalid for this model: it predicts {output.num_outputs} values at once. "
            "Train it on one of them.",
            id="explain-several-values",
        )
    return output.problem


class _Explained:
    def __init__(
        self,
        batch: Batch,
        seed: Seed,
        applied: AppliedModel,
        names: Mapping[str, Sequence[Element]],
        options: ExplainOptions,
    ) -> None:
        self._problem = check_explained(applied.spec)
        self._batch, self._bundle, self._seed = batch, applied.bundle, seed
        self._label: int | None = None
        self._masked = masked = MaskedModel(applied.model, batch, self._head)
        with masked.explained(), torch.enable_grad():
            masked.check_layers()
            self.hides_edges = masked.hides_edges
            if self._problem == "multi_label":
                self._label = int(masked(masked.x, masked.edge_index).argmax())
            explainer = _explainer(masked, self._problem, options.method)
            with warnings.catch_warnings():
                # Captum says of each input that it turns gradients on.
                warnings.filterwarnings("ignore", "Input Tensor .* did not already", UserWarning)
                made = explainer(masked.x, masked.edge_index)
            self.edges = self._edge_table(_importance(made, "edge_mask"), options.num_edges)
            elements = [part for name in masked.elements for part in names[name]]
            importance = _importance(made, "node_mask")
            self.columns, important = self._column_table(elements, importance, options.num_columns)
            if "edge_mask" in made:
                made.edge_mask = torch.zeros_like(made.edge_mask)
                made.edge_mask[self._kept_edges] = 1
            if "node_mask" in made:
                made.node_mask = torch.from_numpy(important).to(masked.x)[None]
            self.predictions = self._judged(explainer, made, applied)
        self.neighbors = self._neighbor_table()

    def drawn(self) -> Drawn:
        row = self.predictions.to_pylist()[0]
        important = [e for e in self.edges.to_pylist() if e["kept"]]
        index = self._masked.edge_index[:, self._kept_edges].t().tolist()
        nodes = {flat: self._names_of(flat) for pair in index for flat in pair}
        seeds = [self._masked.rows[name].start + end for name, end in self._seed.ends]
        nodes |= {seed: self._names_of(seed) for seed in seeds}
        seed = " → ".join(str(row[column]) for column in self._seed.ids)
        prediction = row["prediction"]
        shown = f"{prediction:.3g}" if isinstance(prediction, float) else prediction
        return Drawn(
            title=f"{seed}: {shown} ({row['score']:.3g})",
            seeds=seeds,
            nodes=nodes,
            edges=[(*ends, e["importance"]) for ends, e in zip(index, important, strict=True)],
            columns=[
                (_column_name(c), c["importance"]) for c in self.columns.to_pylist() if c["kept"]
            ],
        )

    def _head(self, rows: Mapping[str, Any]) -> Tensor:
        out = self._seed.head(rows).float()
        if self._problem != "multi_label":
            return out
        probabilities = out[0].sigmoid()
        return probabilities if self._label is None else probabilities[self._label, None]

    def _edge_table(self, importance: np.ndarray, num_kept: int) -> pa.Table:
        order = np.argsort(-importance, kind="stable")
        kept = (np.arange(len(order)) < num_kept) & (importance[order] > 0)
        self._kept_edges = order[kept]
        types, ends = [], ([], [])  # type: ignore[var-annotated]
        for edge_type, span in self._masked.edges.items():
            types += [edge_type_name(edge_type)] * len(span)
            index = self._batch.edges[edge_type].edge_index
            for values, name, nodes in zip(ends, edge_type[::2], index, strict=True):
                values += self._ids(name, self._batch.nodes[name].n_id[nodes])
        columns = {"edge_type": types, "source_id": ends[0], "target_id": ends[1]}
        text = pa.string()
        kinds = {"edge_type": text, "source_id": self._id_type, "target_id": self._id_type}
        named = {n: pa.array([v[i] for i in order], kinds[n]) for n, v in columns.items()}
        return self._rows(len(order), {**named, "importance": importance[order], "kept": kept})

    def _column_table(
        self, elements: Sequence[Element], importance: np.ndarray, num_kept: int
    ) -> tuple[pa.Table, np.ndarray]:
        """The rows, and the kept elements: float32 [num_elements]."""
        of_column: dict[Element, float] = {}
        for element, value in zip(elements, importance, strict=True):
            of_column[element] = max(float(value), of_column.get(element, 0.0))
        order = sorted(of_column, key=lambda element: -of_column[element])
        important = {element for element in order[:num_kept] if of_column[element] > 0}
        table = self._rows(
            len(order),
            {
                "node_type": pa.array([e.node_type for e in order], pa.string()),
                "column": pa.array([e.column for e in order], pa.string()),
                "element": pa.array([e.element for e in order], pa.int32()),
                "importance": np.array([of_column[e] for e in order], np.float32),
                "kept": np.array([e in important for e in order], bool),
            },
        )
        return table, np.array([element in important for element in elements], np.float32)

    def _neighbor_table(self) -> pa.Table:
        types = [edge_type_name(t) for t in self._masked.edges]
        source = dict(zip(types, (t[0] for t in self._masked.edges), strict=True))
        seeds = {
            (name, value)
            for name, end in self._seed.ends
            for value in self._ids(name, self._batch.nodes[name].n_id[[end]])
        }
        weights: dict[tuple[str, Any], float] = {}
        for edge in self.edges.to_pylist():  # the most important first
            weights.setdefault((source[edge["edge_type"]], edge["source_id"]), edge["importance"])
        rows = [(*node, value) for node, value in weights.items() if node not in seeds]
        names, ids, values = zip(*rows, strict=True) if rows else ((), (), ())
        columns = {
            "node_type": pa.array(names, pa.string()),
            "neighbor_id": pa.array(ids, self._id_type),
            "importance": np.array(values, np.float32),
        }
        return self._rows(len(rows), columns)

    def _judged(self, explainer: Explainer, made: Any, applied: AppliedModel) -> pa.Table:
        masked, output = self._masked, applied.spec.output
        inputs = (masked.x, masked.edge_index)
        node_mask, edge_mask = made.get("node_mask"), made.get("edge_mask")
        removed = [None if mask is None else 1.0 - mask for mask in (node_mask, edge_mask)]
        outputs = [
            explainer.get_prediction(*inputs),
            explainer.get_masked_prediction(*inputs, node_mask, edge_mask),
            explainer.get_masked_prediction(*inputs, *removed),
        ]
        columns: dict[str, Any]
        if not isinstance(output, LabelOutput):
            scores = [float(rows[0, 0]) for rows in outputs]
            columns, both = {"prediction": pa.array(scores[:1])}, (None, None)
        elif output.problem == "regression":
            tables = [applied.task.output_columns("predictions", row.cpu()) for row in outputs]
            scores = [float(table["prediction"][0]) for table in tables]
            columns, both = {"prediction": pa.array(scores[:1])}, (None, None)
        else:
            label = int(made.target[0])
            if output.problem == "multi_class":
                scores = [float(rows.softmax(dim=1)[0, label]) for rows in outputs]
            else:
                assert self._label is not None
                scores, label = [float(rows[0]) for rows in outputs], self._label
            columns = {"prediction": pa.array([output.shown_classes[label]])}
            both = fidelity(explainer, made)
        for name, score in zip(("score", "score_kept", "score_removed"), scores, strict=True):
            columns[name] = np.array([score], np.float32)
        for name, value in zip(("fidelity_plus", "fidelity_minus"), both, strict=True):
            columns[name] = pa.array([value], pa.float32())
        columns["num_edges"] = np.array([masked.edge_index.shape[1]])
        return self._rows(1, columns)

    @cached_property
    def _id_type(self) -> pa.DataType:
        kinds = {self._bundle.id_map(name).kind for name in self._bundle.node_types}
        return pa.int64() if kinds == {"int"} else pa.string()

    def _ids(self, node_type: str, dense: Tensor) -> list[Any]:
        ids = original_ids(self._bundle, node_type, dense.cpu().numpy())
        return list(ids.cast(self._id_type).to_pylist())

    def _names_of(self, flat: int) -> str:
        name, span = next((n, r) for n, r in self._masked.rows.items() if flat in r)
        n_id = self._batch.nodes[name].n_id[flat - span.start]
        shown = str(self._ids(name, n_id[None])[0])
        return shown if len(self._masked.rows) == 1 else f"{name} {shown}"

    def _rows(self, num_rows: int, columns: Mapping[str, Any]) -> pa.Table:
        first = pa.array(np.zeros(num_rows, np.int64))
        return pa.table({**{n: ids.take(first) for n, ids in self._seed.ids.items()}, **columns})


class _GNNExplainer(GNNExplainer):
    """GNNExplainer, arXiv:1903.03894, with equal initial masks: equal edges get equal importance,
    and inputs that do not affect the prediction keep a mask of 0. The size of a neighborhood does
    not change the cost of an edge.
    """

    def __init__(self) -> None:
        super().__init__(epochs=_EPOCHS, lr=_LR, edge_reduction="mean", **_COEFFICIENTS)

    def _initialize_homogeneous_masks(
        self, node_mask_type: Any, edge_mask_type: Any, n: int, f: int, e: int, device: Any
    ) -> None:
        def mask(kind: Any, *shape: int) -> nn.Parameter | None:
            return None if kind is None else nn.Parameter(torch.zeros(*shape, device=device))

        self.node_mask, self.edge_mask = mask(node_mask_type, 1, f), mask(edge_mask_type, e)

    def _add_mask_regularization(
        self, loss: Tensor, mask: Tensor, hard_mask: Tensor, *coefficients: Any
    ) -> Tensor:
        if not hard_mask.any():  # PyG would take the mean of no elements
            return loss
        out: Tensor = super()._add_mask_regularization(loss, mask, hard_mask, *coefficients)
        return out


def _explainer(masked: MaskedModel, problem: str, method: str) -> Explainer:
    is_ours = method == GNN_EXPLAINER
    of_columns = "common_attributes" if is_ours else "attributes"
    return Explainer(
        masked,
        algorithm=_GNNExplainer() if is_ours else CaptumExplainer(method),
        explanation_type="model",
        model_config=_MODES[problem],
        node_mask_type=of_columns if masked.elements else None,
        edge_mask_type="object" if masked.masks_edges else None,
    )


def _importance(made: Any, name: str) -> np.ndarray:
    """float32 by edge, or by element of a row, summed over the rows of an attribution."""
    mask = made.get(name)
    if mask is None:
        return np.zeros(made.edge_index.shape[1] if name == "edge_mask" else 0, np.float32)
    of_each = mask.detach().abs()
    total: Tensor = of_each.sum(dim=0) if of_each.dim() == 2 else of_each
    return total.float().cpu().numpy()


def _column_name(row: Mapping[str, Any]) -> str:
    element = "" if row["element"] is None else f"[{row['element']}]"
    return f"{row['column']}{element}"


def input_columns(spec: ModelSpec, manifest: Manifest | None) -> dict[str, list[Element]]:
    """The table column of each element of the encoder's input rows, by node type. Without the
    manifest of a graph's tables, columns are named by the feature.
    """
    columns = {}
    for name, width in spec.widths.items():
        fitted = spec.transforms.get(name, {}).get(spec.feature)
        if fitted is not None:
            columns[name] = _of_transforms(name, fitted)
            continue
        declared = (
            None if manifest is None else manifest.node_types[name].features.get(spec.feature)
        )
        names = declared.column_names if isinstance(declared, DenseFeature) else (spec.feature,)
        if len(names) == width:
            columns[name] = [Element(name, column, None) for column in names]
        else:
            shown = names[0] if len(names) == 1 else spec.feature
            columns[name] = [Element(name, shown, i) for i in range(width)]
    return columns


def _of_transforms(name: str, fitted: FittedFeature) -> list[Element]:
    numbers, embedded, position = [], [], 0
    codes: Mapping[int, int] = fitted.num_codes
    for part in fitted.parts:
        is_list = not isinstance(part, FittedColumn) and part.width > 1
        for i in range(part.width):
            element = Element(name, part.column, i if is_list else None)
            if position in codes:
                embedded += [element] * embedding_channels(codes[position])
            else:
                numbers.append(element)
            position += 1
    return numbers + embedded
