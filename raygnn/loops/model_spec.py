"""Inputs and outputs of a model: determined once on the driver, saved with the model."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from raygnn import __version__
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import BundleRecord, ColumnInfo, EdgeRecord, NodeRecord
from raygnn.data.checksums import cause_of, check_record, dump_record, type_adapter
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type, type_name
from raygnn.data.hashing import string_buffers
from raygnn.data.id_map import IdIndex
from raygnn.data.standardization import Standardization
from raygnn.data.time_units import TIME
from raygnn.data.transforms.fitted import FittedFeature, Transforms
from raygnn.documents import parse_json
from raygnn.errors import ConfigError, DataError, RuleError, RunError, with_id


def schema_bundle(spec: ModelSpec) -> Bundle:
    """A bundle with the types and columns that a model reads, and without rows.

    Only node types with learned rows have nodes: as many as the model has rows.
    """
    nodes = {
        name: NodeRecord(
            read.num_nodes or 0,
            IdIndex("range", 0, read.num_nodes or 0),
            _columns({} if read.width is None else {spec.feature: read.width}, spec, name),
            has_split=False,
        )
        for name, read in spec.node_types.items()
    }
    names = {edge_type: edge_type_name(edge_type) for edge_type in spec.edge_types}
    edges = tuple(
        EdgeRecord(
            edge_type,
            0,
            True,
            _columns(
                {column: w[name] for column, w in spec.edge_columns.items() if name in w},
                spec,
                name,
            ),
        )
        for edge_type, name in names.items()
    )
    return Bundle(Path("schema"), BundleRecord("", nodes, edges))


def _columns(widths: Mapping[str, int], spec: ModelSpec, type_: str) -> tuple[ColumnInfo, ...]:
    fitted: Mapping[str, FittedFeature] = spec.transforms.get(type_, {})
    return tuple(
        ColumnInfo(column, "feature", "float32", (width,), transforms=fitted.get(column))
        for column, width in widths.items()
    )


FORMAT = "raygnn/model-v1"
# Files of a trained model, in addition to its config.yaml.
MODEL_FILE = "model.safetensors"
SPEC_FILE = "model.json"
#: LightGBM's text, if the model has it among its rungs.
TREES_FILE = "lightgbm.txt"
_REMEDY = "Copy it from its run again."


@dataclass(frozen=True)
class NodeInput:
    """The model's inputs of one node type.

    Attributes:
        width: width of the feature, if the type has one. Not read if the type has learned rows.
        ids: sha256 of the ordered node ids, if the type has learned rows.
        num_nodes: number of these rows.
    """

    width: int | None
    ids: str | None = None
    num_nodes: int | None = None

    @classmethod
    def of(cls, bundle: Bundle, node_type: str, width: int | None, *, embedded: bool) -> NodeInput:
        """The inputs from one node type of a graph. `embedded`: learned rows as input."""
        if not embedded:
            return cls(width)
        return cls(width, ids_digest(bundle.ids(node_type)), bundle.num_nodes(node_type))


@dataclass(frozen=True)
class TimeInput:
    """Times that a model reads relative to the seed's time.

    Attributes:
        span: time between the first rows of the graph and the end of training.
        edge_features: feature columns of `edge_types` that the model reads with the ages.
        dates: whether dates among the features are read as ages too.
        past_labels: columns of an entity's labels that are known at the seed's time, if any.
        event_types: names of edge types from events: rows with times that refer to a node.
        season: whether the time of the year at the seed's time is read.
    """

    column: str
    span: float
    node_types: tuple[str, ...]
    edge_types: tuple[str, ...]
    edge_features: tuple[str, ...] = ()
    dates: bool = False
    past_labels: int = 0
    event_types: tuple[str, ...] = ()
    season: bool = False


@dataclass(frozen=True)
class Output(ABC):
    """The output of a model. Each task has its own class or shares another task's.

    Attributes:
        predictions: node tables besides `embeddings`, the default first.
    """

    key: ClassVar[str]
    predictions: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def ends(self) -> tuple[str, ...]:
        """Node types of a link's anchor and target; twice the predicted type for node tasks."""

    @property
    def predicted(self) -> str:
        """The prediction in words, for messages."""
        return repr(self.ends[0])

    @property
    def links(self) -> tuple[EdgeType, ...]:
        return ()

    @property
    def is_score(self) -> bool:
        """Whether edges are predicted, and by one number that pairs of nodes have too."""
        return False

    @property
    def predicted_edges(self) -> EdgeType | None:
        """The edge type of `predictions`; None if they belong to nodes."""
        return None

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Feature columns of predicted edges that the head reads besides the embeddings."""
        return ()

    @property
    def judged_on_test(self) -> bool:
        """Whether an evaluation without a split takes the test split: by default for edges, of
        which held-out ones carry no messages.
        """
        return bool(self.links or self.predicted_edges)

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        """Raises a ConfigError unless these node types may have the table `what`."""
        tables = ("embeddings", *self.predictions)
        rule = "the model does not have this output"
        ConfigError.check_choice("what", what, tables, rule, id="infer-what-unknown")
        others = [name for name in node_types if name not in self.ends]
        if others:
            raise ConfigError(
                f"node_type={others[0]!r} is invalid: the model predicts {self.predicted}. Set "
                "that type, or what to embeddings. [infer-node-type-other]"
            )

    def num_known(self, bundle: Bundle) -> tuple[int, int]:
        """How many of the sources and targets of a graph the model knows by their ids."""
        return 0, 0

    def check_labels(self, bundle: Bundle) -> None:
        """Raises a DataError unless a graph's labels have the meaning of the model's outputs."""
        return

    def manifest(self) -> Mapping[str, Any]:
        """Description of predictions in the output's manifest, as JSON."""
        return {}

    def to_content(self) -> Mapping[str, Any]:
        return asdict(self)

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        """Reads the record from `model.json`.

        Raises:
            ValidationError, LookupError, ValueError, TypeError, DataError: the content is invalid.
        """
        record: Self = type_adapter(cls).validate_python(dict(content))
        return record


@dataclass(frozen=True)
class ModelSpec:
    """Inputs and outputs of a model: enough to build it for a graph without labels or splits.

    Built by the driver from config and bundle. Crosses process boundaries.

    Attributes:
        node_types: inputs by node type. Their order, and that of the edge types, is the model's.
        edge_columns: width by edge column and name of edge type.
        standardization, transforms: by type and column, the same on any graph.
        edge_inputs: the model's name of each of `edge_columns`: `edge_attr` or `edge_weight`.
        fanouts: training fanouts by name of edge type.
        relative_time: times that the model reads, if any.
        snapshots: records of the snapshots that the model was trained on, by table.
    """

    feature: str
    node_types: Mapping[str, NodeInput]
    edge_types: tuple[EdgeType, ...]
    edge_columns: Mapping[str, Mapping[str, int]]
    output: Output
    standardization: Standardization = field(default_factory=dict)
    transforms: Transforms = field(default_factory=dict)
    edge_inputs: Mapping[str, str] = field(default_factory=dict)
    fanouts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    relative_time: TimeInput | None = None
    snapshots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, int]:
        return {
            name: read.width for name, read in self.node_types.items() if read.width is not None
        }

    @property
    def embedded_types(self) -> frozenset[str]:
        """Node types with a learned row per node as input, which read no features."""
        return frozenset(name for name, read in self.node_types.items() if read.ids is not None)

    @property
    def node_columns(self) -> dict[str, str]:
        columns = {self.feature: "x"} if self.widths else {}
        times = self.relative_time
        return columns if times is None or not times.node_types else {**columns, times.column: TIME}

    @property
    def batch_edge_columns(self) -> dict[str, str]:
        times = self.relative_time
        if times is None:
            return dict(self.edge_inputs)
        clock = {times.column: TIME} if times.edge_types else {}
        return {**{name: name for name in times.edge_features}, **self.edge_inputs, **clock}

    def fitted(self, bundle: Bundle) -> Bundle:
        """The part of a graph that the model reads, in the model's order.

        Raises:
            DataError: the graph lacks a node or edge type, a feature has another width, or learned
                rows belong to other nodes. Lists all problems.
        """
        problems = [*self._broken_nodes(bundle), *self._broken_edges(bundle)]
        if problems:
            raise DataError("\n".join(problems))
        return bundle.of_types(list(self.node_types), self.edge_types)

    def unread_types(self, bundle: Bundle) -> list[str]:
        """Names of a graph's node and edge types that the model does not read."""
        nodes = [name for name in bundle.node_types if name not in self.node_types]
        edges = [edge_type_name(t) for t in bundle.edge_types if t not in self.edge_types]
        return nodes + edges

    def to_json(self) -> str:
        content: dict[str, Any] = {
            "format": FORMAT,
            "raygnn": __version__,
            "feature": self.feature,
            "node_types": {name: asdict(read) for name, read in self.node_types.items()},
            "edge_types": [edge_type_name(edge_type) for edge_type in self.edge_types],
            "edge_columns": {name: dict(widths) for name, widths in self.edge_columns.items()},
            "standardization": {
                name: {column: asdict(scale) for column, scale in columns.items()}
                for name, columns in self.standardization.items()
            },
            "transforms": {
                name: {feature: fitted.to_content() for feature, fitted in features.items()}
                for name, features in self.transforms.items()
            },
            "edge_inputs": dict(self.edge_inputs),
            "fanouts": {name: list(hops) for name, hops in self.fanouts.items()},
            **({} if self.relative_time is None else {"relative_time": asdict(self.relative_time)}),
            self.output.key: self.output.to_content(),
            **({"snapshots": self.snapshots} if self.snapshots else {}),
        }
        return dump_record(content) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str, outputs: Sequence[type[Output]]) -> ModelSpec:
        """Reads the record from JSON. `outputs`: the possible classes of its output.

        Raises a RunError if the content is invalid, or of an unknown format.
        """
        try:
            content = parse_json(text)
            if isinstance(content, dict):
                check_record(content)
        except ValueError as error:
            rule = error.problem.rule if isinstance(error, RuleError) else error
            raise RunError(
                f"{name} is invalid: {rule}. {_REMEDY}", id="model-file-damaged"
            ) from None
        version = content.get("format") if isinstance(content, dict) else None
        if version != FORMAT:
            raise RunError(
                f"{name}: format={version!r} is invalid: this raygnn reads {FORMAT!r} only. "
                f"{_REMEDY} [model-file-format]"
            )
        try:
            fields = {
                "feature": content["feature"],
                "node_types": content["node_types"],
                "edge_types": [parse_edge_type(edge_type) for edge_type in content["edge_types"]],
                "edge_columns": content["edge_columns"],
                "output": read_output(content, outputs),
                "relative_time": content.get("relative_time"),
                "snapshots": content.get("snapshots", {}),
                **{key: content[key] for key in ("standardization", "edge_inputs", "fanouts")},
                "transforms": {
                    name: {
                        feature: FittedFeature.of_content(fitted, f"feature {feature!r} of {name}")
                        for feature, fitted in features.items()
                    }
                    for name, features in content["transforms"].items()
                },
            }
            spec: ModelSpec = type_adapter(ModelSpec).validate_python(fields)
            if not set(spec.output.ends) <= set(spec.node_types):
                raise ValueError(f"{spec.output.ends} are not among its node types")
            return spec
        except (DataError, LookupError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, DataError) and error.id == "transform-version":
                raise
            cause = cause_of(error)
        raise RunError(
            f"{name} is invalid: a model is not saved with it ({cause}). {_REMEDY}",
            id="model-file-damaged",
        )

    def _broken_nodes(self, bundle: Bundle) -> Iterator[str]:
        for name, read in self.node_types.items():
            if name not in bundle.node_types:
                yield with_id(
                    f"node type {name!r} of the model is not in the graph, which has "
                    f"{bundle.node_types}. Declare it in graph.yaml.",
                    id="model-node-type-missing",
                )
                continue
            # With learned rows as input, the width of the feature does not matter.
            if read.ids is None or read.width is None:
                yield from self._broken_feature(bundle, name, read.width)
            if read.ids is not None and read.ids != ids_digest(bundle.ids(name)):
                yield with_id(
                    f"node type {name!r} has a learned row for each of {read.num_nodes:,} nodes, "
                    f"and this graph has others, or in another order ({bundle.num_nodes(name):,}). "
                    "Give the node table of training.",
                    id="model-nodes-differ",
                )

    def _broken_feature(self, bundle: Bundle, name: str, width: int | None) -> Iterator[str]:
        info = bundle.columns(name).get(self.feature)
        actual = info.width if info is not None and info.role == "feature" else None
        if actual == width:
            yield from self._broken_transforms(bundle, name, self.feature)
            return
        here = "has no such feature" if actual is None else f"has it with a width of {actual}"
        there = "without it" if width is None else f"with a width of {width}"
        yield with_id(
            f"feature {self.feature!r} of node type {name!r} is invalid: the graph {here}, and the "
            f"model was trained {there}. Write it as in training.",
            id="model-feature-width",
        )

    def _broken_transforms(
        self, bundle: Bundle, type_: str | EdgeType, column: str
    ) -> Iterator[str]:
        info, name = bundle.columns(type_).get(column), type_name(type_)
        transforms = None if info is None else info.transforms
        if transforms != self.transforms.get(name, {}).get(column):
            yield with_id(
                f"feature {column!r} of {name!r} is invalid: its columns have other transforms "
                "than in training. Write it as it was, or partition the tables with --config.",
                id="model-transforms",
            )

    def _broken_edges(self, bundle: Bundle) -> Iterator[str]:
        have = [edge_type_name(edge_type) for edge_type in bundle.edge_types]
        for name in map(edge_type_name, self.edge_types):
            if name not in have:
                yield with_id(
                    f"edge type {name!r} of the model is not in the graph, which has {have}. "
                    "Declare it, or set data.reverse_edges.",
                    id="model-edge-type-missing",
                )
        for column, widths in self.edge_columns.items():
            actual = edge_widths(bundle, column, self.edge_types)
            if actual != widths:
                yield with_id(
                    f"edge column {column!r} is invalid: by edge type it has the widths {actual}, "
                    f"and the model was trained with {dict(widths)}. Write it as it was.",
                    id="model-edge-column-width",
                )
            for edge_type in self.edge_types:
                if edge_type in bundle.edge_types:
                    yield from self._broken_transforms(bundle, edge_type, column)


def edge_widths(bundle: Bundle, column: str, edge_types: Sequence[EdgeType]) -> dict[str, int]:
    widths = bundle.edge_widths(column)
    return {edge_type_name(t): width for t, width in widths.items() if t in edge_types}


def read_output(content: Mapping[str, Any], outputs: Sequence[type[Output]]) -> Output:
    """Reads an output under the key of its class. Raises LookupError if no class matches."""
    for kind in outputs:
        if content.get(kind.key) is not None:
            return kind.of_content(content[kind.key])
    raise LookupError(" or ".join(kind.key for kind in outputs))


def ids_digest(ids: pa.Array) -> str:
    digest = hashlib.sha256(str(len(ids)).encode())
    if pa.types.is_integer(ids.type):
        numbers = np.ascontiguousarray(ids.to_numpy(zero_copy_only=False), np.int64)
        digest.update(numbers.data)
    else:
        for part in string_buffers(ids):
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
