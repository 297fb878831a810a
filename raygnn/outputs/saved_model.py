"""A trained model in a folder: its config, its spec and its weights."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from raygnn.config import LoadedConfig, load_config
from raygnn.config.data_section import PLACES
from raygnn.config.section import MISSING, value_at
from raygnn.config.source import Source, parse_source
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import absolute, exists, join, read_bytes, read_text, redact
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.errors import ConfigError, RunError
from raygnn.loops.model_spec import MODEL_FILE, SPEC_FILE, ModelSpec
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.loops.tasks.several_tasks.target import SeveralOutput, choose_task
from raygnn.loops.tasks.target import output_classes
from raygnn.outputs.model_registry import resolved

# Sections of a model's config that inference reads. Others may name modules that are missing.
_READ = (
    "seed", "deterministic", "data", "task", "tasks", "sampling", "loader", "model", "training",
    "scaling",
)  # fmt: skip
# Sections that may differ from training: graph, machines, reading of neighborhoods.
_SECTIONS = (
    "data", "sampling", "loader", "training", "scaling", "seed", "deterministic", "init_env",
)  # fmt: skip
# The arithmetic of a training step, which a number of workers may not fit.
_NO_STEP = ("--training.global_batch_size", "null", "--training.accumulate_grad_batches", "null")
# Sections that evaluation reads too.
_METRICS = ("metrics",)
_BATCH_SIZE = 1024  # if training derived its batch size from the number of workers


@dataclass(frozen=True)
class SavedModel:
    """A model that a run exported.

    Attributes:
        uri: folder with `model.safetensors` and `model.json`.
        loaded: its config, with overrides. `data` describes how tables are read, but names no
            graph: the config's author is not trusted to choose files to open.
        graph: the override that names the training graph, as in the config.
        task: the requested task of a model of several, to which config and spec belong.
        whole: the complete model of several tasks.
    """

    uri: str
    loaded: LoadedConfig
    spec: ModelSpec
    graph: str
    task: str | None = None
    whole: SavedModel | None = None

    @property
    def tasks(self) -> list[SavedModel]:
        output = None if self.whole is None else self.whole.spec.output
        if not isinstance(output, SeveralOutput):
            return [self]
        assert self.whole is not None
        return [self.whole.of_task(name) for name in output.tasks]

    def of_task(self, task: str | None) -> SavedModel:
        """The model for one of its tasks. Raises a ConfigError for a missing or unknown name."""
        name, output = choose_task(self.spec, task), self.spec.output
        if name is None or not isinstance(output, SeveralOutput):
            return self
        loaded = replace(self.loaded, config=self.loaded.config.task_configs[name])
        spec = replace(self.spec, output=output.tasks[name])
        return replace(self, loaded=loaded, spec=spec, task=name, whole=self)

    def fitted(self, bundle: Bundle) -> Bundle:
        """The part of a graph that the model reads, with the edges that neighborhoods use. Raises a
        DataError with all problems if the graph does not fit.
        """
        return self.spec.fitted(neighborhood_graph(self.loaded.config, bundle))

    @classmethod
    def open(
        cls,
        uri: str,
        overrides: Sequence[str] = (),
        allow_modules: Sequence[str] = (),
        *,
        with_metrics: bool = False,
        task: str | None = None,
        model: Any = None,
    ) -> SavedModel:
        """Reads everything but the weights.

        Args:
            uri: folder of a finished run, or of an exported model, or `NAME@ALIAS` of a registered
                one.
            with_metrics: also reads the config's metrics, which may need `allow_modules`.
            task: the requested one of `tasks`; None for a model with one task.
            model: as in `load_config`.
        Raises:
            ConfigError: an override is invalid, or of a section fixed by training, or the model has
                no such task.
            RunError: there is no trained model, inference does not support it, or `model.json` is
                damaged.
        """
        uri = resolved(uri)
        config_uri = join(uri, "config.yaml")
        if not exists(config_uri):
            raise RunError(
                f"model={redact(uri)!r} is invalid: it has no config.yaml. Name the folder of a "
                "finished run, or of an exported model. [model-config-missing]"
            )
        written = parse_source(read_text(config_uri), redact(config_uri))
        read = (*_READ, *_METRICS) if with_metrics else _READ
        loaded = _load(written, read, overrides, allow_modules, model)
        folder = uri
        if not exists(join(folder, MODEL_FILE)):
            folder = _model_uri(written) or uri
        if not exists(join(folder, MODEL_FILE)):
            raise RunError(
                f"model={redact(uri)!r} is invalid: it has no {MODEL_FILE}. Let its run finish, or "
                "name the folder of run.model_uri. [model-weights-missing]"
            )
        spec_uri = join(folder, SPEC_FILE)
        if not exists(spec_uri):
            raise RunError(
                f"model={redact(uri)!r} is invalid: it has no {SPEC_FILE}. Train it with a task "
                "that has Task.spec. [model-spec-missing]"
            )
        outputs = output_classes(loaded.config.task.type)
        spec = ModelSpec.from_json(read_text(spec_uri), redact(spec_uri), outputs)
        return cls(absolute(folder), loaded, spec, _graph(written)).of_task(task)

    @cached_property
    def fingerprint(self) -> str:
        """16 letters of a sha256 of the model's files, whose digests `model.json` has, and of what
        overrides changed.
        """
        read = self.loaded.config.model_dump_json(exclude={"data", "scaling", "run"})
        content = read_bytes(join(self.uri, SPEC_FILE)) + read.encode()
        return hashlib.sha256(content).hexdigest()[:16]

    @property
    def weights_uri(self) -> str:
        return join(self.uri, MODEL_FILE)


def _load(
    written: Source,
    wanted: Sequence[str],
    overrides: Sequence[str],
    allow_modules: Sequence[str],
    model: Any,
) -> LoadedConfig:
    keys = [token[2:].partition("=")[0] for token in overrides if token.startswith("--")]
    fixed = [key for key in keys if key.partition(".")[0].rstrip("!") not in _SECTIONS]
    if fixed:
        raise ConfigError(
            f"--{fixed[0]} is invalid: it is fixed by training. Only these keys of a trained model "
            f"may be set: {', '.join(_SECTIONS)}. [infer-fixed-key]"
        )
    changes = [*_NO_STEP]
    if value_at(written.value, ("loader", "batch_size")) in (None, MISSING):
        changes += ["--loader.batch_size", str(_BATCH_SIZE)]
    read = {key: value for key, value in written.value.items() if key in wanted}
    if isinstance(data := read.get("data"), dict):
        read["data"] = {key: value for key, value in data.items() if key not in PLACES}
    if isinstance(tasks := read.get("tasks"), dict):
        set_anew = {key.partition(".")[0] for key in keys} | (
            set() if "metrics" in wanted else {"metrics"}
        )
        read["tasks"] = {
            name: {key: value for key, value in entry.items() if key not in {"losses", *set_anew}}
            for name, entry in tasks.items()
        }
    source = replace(written, value=read)
    return load_config(source, [*changes, *overrides], allow_modules, model)


def _model_uri(written: Source) -> str | None:
    """`run.model_uri` as written: a stranger's config may not send `${env:X}` anywhere."""
    uri = value_at(written.value, ("run", "model_uri"))
    return uri if isinstance(uri, str) else None


def _graph(written: Source) -> str:
    if value_at(written.value, ("data", "mode")) == "partitioned":
        return "--data.uri TABLES"
    for key in ("uri", "synthetic", "type"):
        value = value_at(written.value, ("data", key))
        if value not in (None, MISSING):
            text = value if isinstance(value, str) else json.dumps(value)
            return f"--data.{key} {shlex.quote(redact(text))}"
    return "--data.uri GRAPH"


def usage(uri: str, loaded: LoadedConfig, spec: ModelSpec) -> str:
    """Two lines of Python that apply the model to its training graph: an import and a call."""
    allowed = list(loaded.allow_modules)
    options = f", allow_modules={allowed!r}" if allowed else ""
    if loaded.config.model.given is not None:
        options += ", module=MODEL"
    output, data = spec.output, loaded.saved["data"]
    if isinstance(output, SeveralOutput):
        name, output = next(iter(output.tasks.items()))
        options = f", task={name!r}{options}"
    if loaded.config.data.mode == "partitioned":  # a process that loads a model reads no parts
        overrides = ["--data.mode", "partitioned", "--data.uri", redact(data["uri"])]
        run = f"{redact(uri)!r}, 'out', {overrides!r}{options}"
        return f"import raygnn.infer\nraygnn.infer.predict({run})"
    overrides, graph = _named_graph(data)
    if overrides:
        options = f", {overrides!r}{options}"
    if isinstance(output, NodeOutput) and output.table is not None:
        call = f"predict({', '.join(filter(None, (graph, 'rows=rows')))}).to_pandas()"
    elif output.predictions:
        call = f"predict({graph}).to_pandas()"
    elif output.links:
        call = f"top_k({graph or None}, anchors, k=10).to_pandas()"
    else:
        call = f"embed({graph}).to_pandas()"
    return f"import raygnn\nraygnn.load({redact(uri)!r}{options}).{call}"


def command(uri: str, loaded: LoadedConfig, spec: ModelSpec) -> str | None:
    """A command line that applies a model of rows of a training table; None for other models."""
    output, data = spec.output, loaded.saved["data"]
    if not isinstance(output, NodeOutput) or output.table is None or not data["uri"]:
        return None
    allowed = "".join(f" --allow-module {name}" for name in loaded.allow_modules)
    return f"raygnn infer {shlex.quote(redact(uri))} --rows rows.csv --out answers.csv{allowed}"


def _named_graph(data: Mapping[str, Any]) -> tuple[list[str], str]:
    """Overrides of `load` that name the graph, or how a call names it."""
    if data["uri"]:
        return [], repr(redact(data["uri"]))
    keys = [key for key in ("synthetic", "type", "args") if data[key]]
    if keys:
        return [f"--data.{key}={json.dumps(data[key])}" for key in keys], ""
    return [], "graph"  # the object that `fit(data=...)` received
