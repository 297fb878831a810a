"""What is saved of a config, what of it tells two runs apart, and how far one may go."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from raygnn.config import tree
from raygnn.config.interpolation import Interpolated
from raygnn.config.problems import KeyPath, dotted
from raygnn.config.redaction import redact
from raygnn.config.schema import Config

#: Keys that end a run: a finished one trains on when its own is raised.
LIMITS: tuple[KeyPath, ...] = (
    ("training", "max_epochs"),
    ("training", "max_steps"),
    ("training", "max_samples"),
    ("training", "max_time_s"),
    ("early_stopping", "patience"),
)

#: What changes neither batches nor weights: where, how fast and with whom a run goes on.
_NOT_OF_THE_RESULT: tuple[KeyPath, ...] = (
    ("run",),
    ("job_name",),
    ("scaling",),
    ("loggers",),
    ("profiler",),
    ("data", "cache_dir"),
    ("data", "allow_outside"),
    ("training", "log_every"),
    *LIMITS,  # a longer run begins as a shorter one
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
    text = json.dumps(_defining(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def limits_of(config: Config) -> dict[str, float | None]:
    """The limits of a run by dotted path; null where there is none."""
    values = config.model_dump(mode="json")
    found = {dotted(path): tree.get(values, path) for path in LIMITS}
    return {name: None if value is tree.MISSING else value for name, value in found.items()}


def result_differences(
    config: Config, saved: Mapping[str, Any], other: Config, other_saved: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """By dotted path, where two configs define other results: what is saved of each.

    Environment variables are shown by name, and secrets are not shown.
    """
    ours, theirs = dict(_leaves(_defining(config))), dict(_leaves(_defining(other)))
    found = {}
    for path in dict.fromkeys((*ours, *theirs)):
        if ours.get(path, tree.MISSING) != theirs.get(path, tree.MISSING):
            found[dotted(path)] = (
                _shown(path, saved, ours.get(path)),
                _shown(path, other_saved, theirs.get(path)),
            )
    return found


def _shown(path: KeyPath, saved: Mapping[str, Any], resolved: Any) -> Any:
    """A value as it is saved; what follows from other keys is saved as null."""
    value = tree.get(saved, path)
    return resolved if value is tree.MISSING or value is None else value


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value of a tree by its place; lists of plain values are one value."""
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = enumerate(value)
    if not inner:
        yield path, value
    for key, item in inner:
        yield from _leaves(item, (*path, key))


def _defining(config: Config) -> dict[str, Any]:
    """What of a config defines the training result, without secrets."""
    defining: dict[str, Any] = redact(config.model_dump(mode="json"))
    for path in _NOT_OF_THE_RESULT:
        parent = tree.get(defining, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
    splits = ("train", "val", "test")
    defining["loader"] = {s: {"batch_size": config.loader_plan(s).batch_size} for s in splits}
    defining["training"]["global_batch_size"] = config.batch.global_batch_size
    return defining


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
