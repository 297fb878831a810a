"""What is saved of a config, and what of it tells two runs apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from raygnn.config import tree
from raygnn.config.interpolation import Interpolated
from raygnn.config.problems import KeyPath
from raygnn.config.redaction import redact
from raygnn.config.schema import Config

#: What changes neither batches nor weights: where, how fast and with whom a run goes on.
_NOT_OF_THE_RESULT: tuple[KeyPath, ...] = (
    ("run",),
    ("job_name",),
    ("scaling",),
    ("loggers",),
    ("profiler",),
    ("data", "cache_dir"),
    ("training", "log_every"),
    ("training", "accumulate_grad_batches"),  # follows from the global batch size
    ("checkpoint", "resume"),
    ("checkpoint", "policy"),
    ("checkpoint", "every"),
    ("checkpoint", "keep"),
    ("checkpoint", "async_upload"),
)


def savable(config: Config, resolved: Interpolated, secrets: Collection[str]) -> dict[str, Any]:
    """The whole config with all defaults, environment variables by name and without secrets."""
    saved = config.model_dump(mode="json")
    _restore(saved, resolved.shown, resolved.value)
    redacted: dict[str, Any] = redact(saved, secrets)
    return redacted


def result_fingerprint(config: Config) -> str:
    """sha256 of what defines the training result."""
    defining = redact(config.model_dump(mode="json"))
    for path in _NOT_OF_THE_RESULT:
        parent = tree.get(defining, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
    defining["loader"] = {s: config.loader_plan(s).batch_size for s in ("train", "val", "test")}
    defining["training"]["global_batch_size"] = config.batch.global_batch_size
    text = json.dumps(defining, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _restore(saved: Any, shown: Any, value: Any, path: KeyPath = ()) -> None:
    """Puts `${env:X}` and `$${` back where the validated config has what they stand for."""
    if isinstance(shown, dict):
        for key, inner in shown.items():
            _restore(saved, inner, tree.get(value, (key,)), (*path, key))
    elif isinstance(shown, list):
        for index, inner in enumerate(shown):
            _restore(saved, inner, tree.get(value, (index,)), (*path, index))
    elif isinstance(shown, str) and shown != value:
        place = tree.get(saved, path)
        is_bare_name = isinstance(place, dict) and isinstance(value, str)
        tree.put(saved, (*path, "type") if is_bare_name else path, shown)
