"""A trained model as a program of torch.export or ONNX, which runs without raygnn and PyG."""

from __future__ import annotations

import copy
import io
import json
import tempfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MLP
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.hetero import Hetero, HeteroLayer
from raygnn.models.to_pyg import to_pyg
from raygnn.sampling.stores import LocalFeatureStore

#: The file in a program that describes its inputs and outputs.
NOTE = "raygnn.json"
_PYG = "torch_geometric."
_TOLERANCE = 1e-5  # largest difference of program and model, relative to the largest output


class PlainModel(nn.Module):
    """Tensors of a graph of one type to outputs for all its nodes.

    Args:
        interaction: features to encoder inputs.
        encoder: a PyG module.
        head: embeddings to outputs.
        target: the label, whose unit the outputs get, if any.
    """

    shift: Tensor
    factor: Tensor
    offset: Tensor

    def __init__(
        self,
        interaction: nn.Module,
        encoder: nn.Module,
        head: nn.Module,
        features: ColumnScale | None,
        target: LabelOutput | None,
    ) -> None:
        super().__init__()
        self.interaction = interaction
        self.encoder, self.head, self._target = encoder, head, target
        self._has_scale = features is not None
        if features is not None:
            for name, part in features.affine()._asdict().items():
                self.register_buffer(name, torch.from_numpy(part))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Returns a row for each node.

        Args:
            x: float32 [num_nodes, width], features after transforms, before standardization.
            edge_index: int64 [2, num_edges], messages from row 0 to row 1.
        Returns:
            float32 [num_nodes, num_outputs]: logits, values in the target's unit, or embeddings of
            a link model.
        """
        if self._has_scale:
            x = (x - self.shift) * self.factor + self.offset
        x = self.interaction(x)
        reads_no_edges = isinstance(self.encoder, MLP)
        rows = self.encoder(x) if reads_no_edges else self.encoder(x, edge_index)
        out: Tensor = self.head(rows)
        return out if self._target is None else self._target.in_units(out).float()


class PlainHetero(nn.Module):
    """Tensors of a graph of several types to outputs for all nodes of the types `ends`.

    Args:
        encoder: with a `Hetero` as its module.
        features: standardization of features, by node type.
    """

    def __init__(
        self,
        encoder: GraphEncoder,
        head: nn.Module,
        ends: Collection[str],
        features: Mapping[str, ColumnScale],
        target: LabelOutput | None,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self._ends, self._target = list(ends), target
        self._affines = {
            name: tuple(torch.from_numpy(part) for part in scale.affine())
            for name, scale in features.items()
        }

    def forward(self, x: dict[str, Tensor], edge_index: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns a row for each node, by node type; see `PlainModel`.

        Args:
            x: by node type, float32 [num_nodes, width], features after transforms.
            edge_index: by edge type, `src__rel__dst`, int64 [2, num_edges], from row 0 to row 1.
        """
        module = self.encoder.module
        assert isinstance(module, Hetero)
        projections = module.inputs.projections
        rows = {name: projections[name](self._embedded(name, x[name])) for name in x}
        outputs = [rows]
        for layer, norms, activation in zip(
            module.layers, module.norms, module.activations, strict=True
        ):
            assert isinstance(layer, HeteroLayer)
            assert isinstance(norms, ModuleDict)
            made = _layer_rows(layer, rows, edge_index)
            rows = {name: activation(norms[name](value)) for name, value in made.items()}
            outputs.append(rows)
        found = module.readout([{name: r[name] for name in self._ends} for r in outputs])
        out = {name: self.head(value) for name, value in found.items()}
        if self._target is None:
            return out
        return {name: self._target.in_units(value).float() for name, value in out.items()}

    def _embedded(self, name: str, x: Tensor) -> Any:
        if name in self._affines:
            shift, factor, offset = self._affines[name]
            x = (x - shift) * factor + offset
        return self.encoder.embed(name, x)


def _layer_rows(
    layer: HeteroLayer, x: Mapping[str, Tensor], edge_index: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    out = {name: layer.lin_self[name](rows) for name, rows in x.items()}
    for edge_type in layer.edge_types:
        source, _, target = edge_type
        conv: Any = layer.convs[edge_type]
        pygs: Any = next(kind for kind in type(conv).__mro__ if kind.__module__.startswith(_PYG))
        ends = edge_index[edge_type_name(edge_type)]
        messages = pygs.forward(conv, (x[source], x[target]), ends)
        out[target] = out[target] + messages / layer.num_into[target]
    return out


def export_program(model: nn.Module, spec: ModelSpec, name: str) -> bytes:
    """The file of a program for graphs of any size, for `torch.export.load`. Errors: see
    `TrainedModel.export`. `name`: of the model in the config.
    """
    program, _ = _program(model, spec, name)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={NOTE: _note(model, spec)})
    return file.getvalue()


def export_onnx(model: nn.Module, spec: ModelSpec, name: str) -> bytes:
    """Exports the program as ONNX, with the note in its metadata. Typed inputs are named `x.TYPE`
    and `edge_index.TYPE`.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise ConfigError(
            f"a model cannot be exported to ONNX: {error}. Run `pip install -e '.[onnx]'` in "
            "raygnn's folder.",
            id="onnx-extra-missing",
        ) from error
    program, inputs = _program(model, spec, name)
    names = _names(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by torch's own code
        converted = torch.onnx.export(program, dynamo=True, verbose=False, input_names=list(names))
    assert converted is not None
    converted.model.metadata_props[NOTE] = _note(model, spec)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        converted.save(str(file))
        content = file.read_bytes()
    session = onnxruntime.InferenceSession(content)
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in names.items()})
    with torch.no_grad():
        expected = program.module()(*inputs)
    rows = list(expected.values()) if isinstance(expected, Mapping) else [expected]
    for each, wanted in zip(outputs, rows, strict=True):
        _check_equal(torch.from_numpy(each), wanted)
    return content


def _names(given: Sequence[Any]) -> dict[str, Tensor]:
    names: dict[str, Tensor] = {}
    for what, each in zip(("x", "edge_index"), given, strict=True):
        if isinstance(each, Mapping):
            names |= {f"{what}.{key}": tensor for key, tensor in each.items()}
        else:
            names[what] = each
    return names


def _program(
    model: nn.Module, spec: ModelSpec, name: str
) -> tuple[torch.export.ExportedProgram, tuple[Any, Any]]:
    encoder: Any = model.encoder
    is_hetero = isinstance(encoder.module, Hetero)
    is_one_type = len(spec.node_types) == 1 and len(spec.edge_types) <= 1
    reads_more = spec.embedded_types or spec.edge_inputs or spec.relative_time
    if not (is_hetero or is_one_type) or reads_more:
        raise ConfigError(
            f"model.type={name!r} is invalid for export: a program takes the features of nodes and "
            "the ends of edges, of several types by the encoder Hetero. This model reads learned "
            "rows of nodes, columns of edges or relative times, or is another one of several "
            "types. Use predict and embed, or raygnn.serve.",
            id="model-export-inputs",
        )
    plain = _plain_hetero(model, spec) if is_hetero else _plain(model, spec, name)
    plain = plain.float().cpu().eval()
    draw = _random_types if is_hetero else _random_graph
    sizes: Any = {
        "x": {0: torch.export.Dim("num_nodes")},
        "edge_index": {1: torch.export.Dim("edges")},
    }
    if is_hetero:
        sizes = {
            "x": {t: {0: torch.export.Dim(f"nodes_{i}")} for i, t in enumerate(spec.node_types)},
            "edge_index": {
                edge_type_name(t): {1: torch.export.Dim(f"edges_{i}")}
                for i, t in enumerate(spec.edge_types)
            },
        }
    with torch.no_grad():
        program = torch.export.export(plain, draw(spec, 12, 40), dynamic_shapes=sizes)
        other = draw(spec, 31, 3)
        _check_equal(program.module()(*other), plain(*other))
    return program, other


def _plain(model: nn.Module, spec: ModelSpec, name: str) -> nn.Module:
    encoder: Any = model.encoder
    (node_type,) = spec.node_types
    interaction = nn.Identity()
    if node_type in encoder.interactions:
        interaction = copy.deepcopy(encoder.interactions[node_type])
    module = to_pyg(encoder, name, after_interactions=True)
    scale = spec.standardization.get(node_type, {}).get(spec.feature)
    return PlainModel(interaction, module, _head(model), scale, _target(spec))


def _plain_hetero(model: nn.Module, spec: ModelSpec) -> nn.Module:
    scales = {
        name: columns[spec.feature]
        for name, columns in spec.standardization.items()
        if name in spec.node_types and spec.feature in columns
    }
    encoder: Any = copy.deepcopy(model.encoder)
    ends = dict.fromkeys(spec.output.ends)
    return PlainHetero(encoder, _head(model), ends, scales, _target(spec))


def _head(model: nn.Module) -> nn.Module:
    return copy.deepcopy(getattr(model, "head", nn.Identity()))


def _target(spec: ModelSpec) -> LabelOutput | None:
    return spec.output if isinstance(spec.output, LabelOutput) else None


def _random_graph(spec: ModelSpec, num_nodes: int, num_edges: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(num_nodes)
    (width,) = spec.widths.values()
    x = torch.randn(num_nodes, width, generator=draw)
    return x, torch.randint(num_nodes, (2, num_edges), generator=draw)


def _random_types(
    spec: ModelSpec, num_nodes: int, num_edges: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(num_nodes)
    sizes = {name: num_nodes + i for i, name in enumerate(spec.node_types)}
    x = {n: torch.randn(size, spec.widths[n], generator=draw) for n, size in sizes.items()}
    for name, rows in x.items():
        fitted = spec.transforms.get(name, {}).get(spec.feature)
        rows[:, list(fitted.num_codes) if fitted else []] = 0
    edges = {}
    for i, (source, relation, target) in enumerate(spec.edge_types):
        ends = [
            torch.randint(sizes[name], (num_edges + i,), generator=draw)
            for name in (source, target)
        ]
        edges[edge_type_name((source, relation, target))] = torch.stack(ends)
    return x, edges


def _check_equal(actual: Any, expected: Any) -> None:
    if isinstance(expected, Mapping):
        for name, rows in expected.items():
            _check_equal(actual[name], rows)
        return
    distance = float((actual - expected).abs().max())
    if not distance <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RunError(
            f"the exported program is wrong: its outputs differ from the model's by {distance:g}. "
            "Use another release of torch.",
            id="model-export-differs",
        )


def _note(model: nn.Module, spec: ModelSpec) -> str:
    encoder: Any = model.encoder
    is_hetero, output = isinstance(encoder.module, Hetero), spec.output
    gives: dict[str, Any] = {"output": "embeddings"}
    if isinstance(output, LabelOutput):
        is_regression = output.problem == "regression"
        gives = {"output": "values" if is_regression else "logits", "label": output.label}
        if not is_regression:
            gives["classes"] = output.shown_classes
    takes: dict[str, Any] = {"feature": spec.feature}
    if is_hetero:
        edge_types = [edge_type_name(edge_type) for edge_type in spec.edge_types]
        takes |= {
            "widths": spec.widths,
            "edge_types": edge_types,
            "gives": list(dict.fromkeys(output.ends)),
        }
    else:
        ((node_type, width),) = spec.widths.items()
        takes |= {"node_type": node_type, "width": width}
    return json.dumps({**takes, **gives})


def pyg_graph(bundle: Bundle, spec: ModelSpec) -> Data | HeteroData:
    """All nodes and edges of a graph, with standardized features."""
    features, graph = LocalFeatureStore(bundle, spec.standardization), HeteroData()
    for name in bundle.node_types:
        graph[name].num_nodes = bundle.num_nodes(name)
        if spec.feature in bundle.columns(name) and name not in spec.embedded_types:
            rows = features.gather(name, spec.feature, np.arange(bundle.num_nodes(name)))
            graph[name].x = torch.from_numpy(np.array(rows))
    for edge_type in bundle.edge_types:
        csc, store = bundle.csc(edge_type), graph[edge_type]
        targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        store.edge_index = torch.from_numpy(np.stack([csc.indices.astype(np.int64), targets]))
        for column, called in spec.edge_inputs.items():
            if column in bundle.columns(edge_type):
                rows = features.gather(edge_type, column, np.arange(len(targets)))
                store[called] = torch.from_numpy(np.array(rows))
    if len(graph.node_types) > 1 or len(graph.edge_types) > 1:
        return graph
    (nodes,), edges = graph.node_stores, graph.edge_stores
    return Data(**nodes, **(edges[0] if edges else {}))
