"""What a trained model needs of a graph and what it gives: saved with it, checked before use."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from raygnn import __version__
from raygnn.config.documents import DocumentError, parse_json
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type, type_name
from raygnn.data.hashing import string_buffers
from raygnn.data.standardization import ColumnScale, Standardization
from raygnn.data.transforms.state import FittedFeature, Transforms
from raygnn.errors import DataError, RunError, with_id
from raygnn.models.graph_inputs import edge_widths

FORMAT = "raygnn/model-v1"
# What a trained model is, beside its config.yaml.
MODEL_FILE = "model.safetensors"
SIGNATURE_FILE = "model.json"
_REMEDY = "Take it from its run again."


@dataclass(frozen=True)
class NodeInput:
    """What a model reads of the nodes of one type.

    Attributes:
        width: of the feature; None of a type that had none. Of a type with learned rows it is not
            read.
        ids: of a type whose nodes have learned rows: sha256 of their ids, in order. None elsewhere.
        num_nodes: of such a type, so many rows.
    """

    width: int | None
    ids: str | None = None
    num_nodes: int | None = None


@dataclass(frozen=True)
class NodeOutput:
    """What a model predicts of each node of one type.

    Attributes:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or regression targets.
        class_names: of classes that the tables give as strings; class i is class_names[i].
        scale: of regression targets that the model gives in standard deviations from their mean;
            None where it gives them as they are.
    """

    node_type: str
    label: str
    problem: str
    num_outputs: int
    class_names: tuple[str, ...] | None = None
    scale: ColumnScale | None = None


@dataclass(frozen=True)
class LinkOutput:
    """The links that a model's embeddings are made for.

    Attributes:
        edge_types: of each relation that is learnt, in the decoder's order, all between the same
            two node types.
        labels: the links are label edges, not message edges.
    """

    edge_types: tuple[EdgeType, ...]
    labels: bool = False


@dataclass(frozen=True)
class ModelSignature:
    """Enough to build a model again for a graph without labels or splits.

    Attributes:
        feature: column of the input features.
        node_types: what is read of each; their order, and that of the edge types, is the model's.
        edge_columns: by column that is read of edges, its width by name of edge type that has it.
        output: what the model gives.
        standardization: how dense features were standardised in training; on any graph they are by
            the same numbers. Empty of a model that was trained on features as they are.
        transforms: how columns of its features became numbers, by name of the type and by feature;
            on any graph they do so in the same way.
    """

    feature: str
    node_types: Mapping[str, NodeInput]
    edge_types: tuple[EdgeType, ...]
    edge_columns: Mapping[str, Mapping[str, int]]
    output: NodeOutput | LinkOutput
    standardization: Standardization = field(default_factory=dict)
    transforms: Transforms = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        feature: str,
        widths: Mapping[str, int],
        embedded_types: Collection[str],
        edge_columns: Sequence[str],
        output: NodeOutput | LinkOutput,
        standardization: Standardization = MappingProxyType({}),
    ) -> ModelSignature:
        """The signature of a model that was built for a graph.

        Args:
            widths: of the feature, by node type that has it.
            embedded_types: node types with a learned row per node, which read no features.
        """
        inputs = {}
        for name in bundle.node_types:
            rows: dict[str, Any] = {}
            if name in embedded_types:
                rows = {"ids": _ids_digest(bundle.ids(name)), "num_nodes": bundle.num_nodes(name)}
            inputs[name] = NodeInput(widths.get(name), **rows)
        columns = {name: _edge_widths(bundle, name, bundle.edge_types) for name in edge_columns}
        read = {name: s for name, s in standardization.items() if name not in embedded_types}
        read_nodes = [name for name in bundle.node_types if name not in embedded_types]
        transforms = _find_transforms(bundle, feature, edge_columns, read_nodes)
        return cls(feature, inputs, tuple(bundle.edge_types), columns, output, read, transforms)

    @property
    def ends(self) -> tuple[str, str]:
        """Node types of the links' anchors and targets; twice the one that is predicted."""
        if isinstance(self.output, NodeOutput):
            return self.output.node_type, self.output.node_type
        anchor, _, target = self.output.edge_types[0]
        return anchor, target

    def fitted(self, bundle: Bundle) -> Bundle:
        """The part of a graph that the model reads, in the model's order.

        Raises:
            DataError: the graph lacks a node type or an edge type of the model, a feature has
                another width, or learned rows are of other nodes. All problems are told.
        """
        problems = [*self._broken_nodes(bundle), *self._broken_edges(bundle)]
        if problems:
            raise DataError("\n".join(problems))
        return bundle.of_types(list(self.node_types), self.edge_types)

    def unread_types(self, bundle: Bundle) -> list[str]:
        """Names of the node and edge types of a graph that the model does not know."""
        nodes = [name for name in bundle.node_types if name not in self.node_types]
        edges = [edge_type_name(t) for t in bundle.edge_types if t not in self.edge_types]
        return nodes + edges

    def to_json(self) -> str:
        """The text of the file beside the weights."""
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
            "nodes": None,
            "links": None,
        }
        if isinstance(self.output, NodeOutput):
            content["nodes"] = asdict(self.output)
        else:
            names = [edge_type_name(edge_type) for edge_type in self.output.edge_types]
            content["links"] = {"edge_types": names, "labels": self.output.labels}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str) -> ModelSignature:
        """Reads the file back.

        Args:
            name: of the file, for messages.
        Raises:
            RunError: it is not a signature, or of a format that is not known.
        """
        try:
            content = parse_json(text)
        except DocumentError as error:
            rule = error.problem.rule
            raise RunError(
                f"{name} is invalid: {rule}. {_REMEDY}", id="model-file-damaged"
            ) from None
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise RunError(
                f"{name}: format={found!r} is invalid: this raygnn reads {FORMAT!r} only. "
                f"{_REMEDY}",
                id="model-file-format",
            )
        try:
            given = {
                "feature": content["feature"],
                "node_types": content["node_types"],
                "edge_types": [parse_edge_type(edge_type) for edge_type in content["edge_types"]],
                "edge_columns": content["edge_columns"],
                "output": _output(content),
                # Older models have neither of these.
                "standardization": content.get("standardization", {}),
                "transforms": {
                    name: {
                        feature: FittedFeature.of_content(fitted, f"feature {feature!r} of {name}")
                        for feature, fitted in features.items()
                    }
                    for name, features in content.get("transforms", {}).items()
                },
            }
            signature = _signature_type().validate_python(given)
            if not set(signature.ends) <= set(signature.node_types):
                raise ValueError(f"{signature.ends} are not among its node types")
            return signature
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"])
            cause = f"{place}: {error.errors()[0]['msg']}"
        except (DataError, LookupError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, DataError) and error.id == "transform-version":
                raise
            cause = f"{type(error).__name__}: {error}"
        raise RunError(
            f"{name} is invalid: a model is not saved with it ({cause}). {_REMEDY}",
            id="model-file-damaged",
        )

    def _broken_nodes(self, bundle: Bundle) -> list[str]:
        problems = []
        for name, read in self.node_types.items():
            if name not in bundle.node_types:
                problem = with_id(
                    f"node type {name!r} of the model is not in the graph, which has "
                    f"{bundle.node_types}. Declare it in graph.yaml under this name.",
                    id="model-node-type-missing",
                )
                problems.append(problem)
                continue
            problems += self._broken_feature(bundle, name, read)
            if read.ids is not None and read.ids != _ids_digest(bundle.ids(name)):
                problem = with_id(
                    f"node type {name!r} has a learned row for each of the {read.num_nodes:,} "
                    f"nodes that it was trained with, and this graph has others, or in another "
                    f"order ({bundle.num_nodes(name):,}). Give the node table of training, or "
                    "train with features of this type.",
                    id="model-nodes-differ",
                )
                problems.append(problem)
        return problems

    def _broken_feature(self, bundle: Bundle, name: str, read: NodeInput) -> list[str]:
        width = read.width
        if read.ids is not None and width is not None:  # there, but the model looks up its rows
            return []
        info = bundle.columns(name).get(self.feature)
        found = None
        if info is not None and info.role == "feature":
            found = int(info.shape[-1]) if info.shape else 1
        if found == width:
            return self._broken_transforms(bundle, name, self.feature)
        here = "has no such feature" if found is None else f"has it with a width of {found}"
        there = "without it" if width is None else f"with a width of {width}"
        return [
            with_id(
                f"feature {self.feature!r} of node type {name!r} is invalid: the graph {here}, and "
                f"the model was trained {there}. Write the feature as it was in training.",
                id="model-feature-width",
            )
        ]

    def _broken_transforms(self, bundle: Bundle, type_: str | EdgeType, column: str) -> list[str]:
        info = bundle.columns(type_).get(column)
        found = None if info is None else info.transforms
        if found == self.transforms.get(type_name(type_), {}).get(column):
            return []
        problem = with_id(
            f"feature {column!r} of {type_name(type_)!r} is invalid: its columns have other "
            "transforms than in training. Write the feature in graph.yaml as it was in training.",
            id="model-transforms",
        )
        return [problem]

    def _broken_edges(self, bundle: Bundle) -> list[str]:
        have = [edge_type_name(edge_type) for edge_type in bundle.edge_types]
        problems = [
            with_id(
                f"edge type {edge_type_name(edge_type)!r} of the model is not in the graph, which "
                f"has {have}. Declare it in graph.yaml; reverse types are added by "
                "data.reverse_edges.",
                id="model-edge-type-missing",
            )
            for edge_type in self.edge_types
            if edge_type not in bundle.edge_types
        ]
        for column, widths in self.edge_columns.items():
            found = _edge_widths(bundle, column, self.edge_types)
            if found != widths:
                problem = with_id(
                    f"edge column {column!r} is invalid: by edge type it has the widths {found}, "
                    f"and the model was trained with {dict(widths)}. Write the column as it was "
                    "in training.",
                    id="model-edge-column-width",
                )
                problems.append(problem)
            for edge_type in self.edge_types:
                if edge_type in bundle.edge_types:
                    problems += self._broken_transforms(bundle, edge_type, column)
        return problems


def _edge_widths(bundle: Bundle, column: str, edge_types: Sequence[EdgeType]) -> dict[str, int]:
    widths = edge_widths(bundle, column)
    return {edge_type_name(t): width for t, width in widths.items() if t in edge_types}


def _find_transforms(
    bundle: Bundle, feature: str, edge_columns: Sequence[str], node_types: Sequence[str]
) -> Transforms:
    """The transforms of the features that a model reads."""
    read: list[tuple[str | EdgeType, str]] = [(name, feature) for name in node_types]
    read += [(edge_type, column) for edge_type in bundle.edge_types for column in edge_columns]
    found: dict[str, dict[str, FittedFeature]] = {}
    for type_, column in read:
        info = bundle.columns(type_).get(column)
        if info is not None and info.transforms is not None:
            found.setdefault(type_name(type_), {})[column] = info.transforms
    return found


@functools.cache
def _signature_type() -> TypeAdapter[ModelSignature]:
    return TypeAdapter(ModelSignature)


def _output(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if content["nodes"] is not None:
        return dict(content["nodes"])
    links = dict(content["links"])
    return {**links, "edge_types": [parse_edge_type(name) for name in links["edge_types"]]}


def _ids_digest(ids: pa.Array) -> str:
    """sha256 of original ids in their order."""
    digest = hashlib.sha256(str(len(ids)).encode())
    if pa.types.is_integer(ids.type):
        numbers = np.ascontiguousarray(ids.to_numpy(zero_copy_only=False), np.int64)
        digest.update(numbers.data)
    else:
        for part in string_buffers(ids):
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
