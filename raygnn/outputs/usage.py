"""How to use a trained model: the lines of Python that a run prints and its report shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raygnn.config import LoadedConfig
from raygnn.data.filesystem import redact
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.several_tasks.output import SeveralOutput


def usage(uri: str, loaded: LoadedConfig, spec: ModelSpec) -> str:
    """Two lines of Python that use a model on the graph of its training: an import and a call.

    Args:
        uri: the run's folder.
    """
    allowed = list(loaded.allow_modules)
    options = f", allow_modules={allowed!r}" if allowed else ""
    output, data = spec.output, loaded.saved["data"]
    if isinstance(output, SeveralOutput):
        name, output = next(iter(output.tasks.items()))
        options = f", task={name!r}{options}"
    if loaded.config.data.mode == "partitioned":  # a process that loads a model reads no parts
        overrides = ["--data.mode", "partitioned", "--data.uri", redact(data["uri"])]
        run = f"{redact(uri)!r}, 'out', {overrides!r}{options}"
        return f"import raygnn.infer\nraygnn.infer.predict({run})"
    overrides, graph = _graph(data)
    if overrides:
        options = f", {overrides!r}{options}"
    if output.predictions:
        call = f"predict({graph}).to_pandas()"
    elif output.links:
        call = f"top_k({graph or None}, anchors, k=10).to_pandas()"
    else:
        call = f"embed({graph}).to_pandas()"
    return f"import raygnn\nraygnn.load({redact(uri)!r}{options}).{call}"


def _graph(data: Mapping[str, Any]) -> tuple[list[str], str]:
    """Overrides of `load` that name the graph, or else how a call names it."""
    if data["uri"]:
        return [], repr(redact(data["uri"]))
    keys = [key for key in ("synthetic", "type", "args") if data[key]]
    if keys:
        return [f"--data.{key}={json.dumps(data[key])}" for key in keys], ""
    return [], "graph"  # what `fit(data=...)` was given
