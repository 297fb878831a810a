"""A run read from its folder: metrics, history and config."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from raygnn.config.cross_rules import INPUTS_OF_ENCODER
from raygnn.data.filesystem import exists, join, read_text, redact
from raygnn.errors import RunError

#: Keys of a task that say what it learns, the type first.
_LEARNED = (
    "type",
    "args.target",
    "args.label",
    "args.edge_type",
    "args.labels",
    "args.label_edges",
)
_SPLITS = ("train", "val", "test")
_INTERVALS = ("intervals", "standard_errors")  # keys of `metrics.json`, by name of the metric


@dataclass(frozen=True)
class StoredRun:
    """The files of a run; empty if not written yet. All keys of the config are by dotted path.

    Attributes:
        data: section `data` of the config.
        start: time of its last start, in ISO 8601; empty if unknown.
    """

    name: str
    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    uri: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""

    @classmethod
    def open(cls, uri: str) -> StoredRun:
        """Raises a RunError if there is no run."""
        if not exists(join(uri, "run.json")):
            raise RunError(
                f"RUN={redact(uri)!r} is invalid: it contains no run. Name folders of runs, with "
                "run.json in them, or of one sweep. [report-no-run]"
            )
        metrics = json.loads(_text(uri, "metrics.json") or "{}")
        history = [json.loads(line) for line in _text(uri, "history.jsonl").splitlines()]
        config = yaml.safe_load(_text(uri, "config.yaml")) or {}
        starts = json.loads(_text(uri, "run.json")).get("starts") or [{}]
        return cls(
            uri.rstrip("/").rsplit("/", 1)[-1],
            metrics,
            history,
            dict(_paths(config)),
            uri,
            config.get("data") or {},
            starts[-1].get("time", ""),
        )

    @property
    def task_names(self) -> list[str]:
        names = (path.split(".")[1] for path in self.config if path.startswith("tasks."))
        return list(dict.fromkeys(names))

    @property
    def is_tested(self) -> bool:
        return any(name.startswith("test/") for name in self.metrics)

    def is_of(self, other: StoredRun, name: str | None = None) -> bool:
        """Whether the task of this run is that of another run, or one of several of it."""
        ours, theirs = (
            [run.config.get(f"{place}.{key}") for key in _LEARNED]
            for run, place in ((self, "task"), (other, f"tasks.{name}" if name else "task"))
        )
        pairs = zip(ours, theirs, strict=True)
        return ours[0] == theirs[0] and all(a == b or None in (a, b) for a, b in pairs)

    def judged(self, metrics: Mapping[str, Any]) -> StoredRun:
        """The run with other test metrics, and without its own and their baselines."""

        def is_tested(name: str) -> bool:
            return name.startswith("test/") or bool(re.match(r"baseline/[^/]+/test/", name))

        kept = {name: value for name, value in self.metrics.items() if not is_tested(name)}
        return replace(self, metrics=kept | dict(metrics))

    def as_task(self, name: str) -> StoredRun:
        def metric_of(metric: str) -> str:
            split, _, tail = metric.partition("/")
            return f"{split}/{name}/{tail}" if split in _SPLITS else metric

        def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
            return {metric_of(key): value for key, value in row.items()}

        def path_of(path: str) -> str:
            relative = path.removeprefix("task.")
            is_moved = relative != path and relative.removeprefix("args.") not in INPUTS_OF_ENCODER
            return f"tasks.{name}.{relative}" if is_moved or path in ("losses", "metrics") else path

        around = {key: renamed(self.metrics.get(key, {})) for key in _INTERVALS}
        return replace(
            self,
            metrics=renamed(self.metrics) | around,
            history=[renamed(row) for row in self.history],
            config={path_of(path): value for path, value in self.config.items()},
        )


def _paths(value: Any, start: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [
            inner
            for key, entry in value.items()
            for inner in _paths(entry, f"{start}.{key}" if start else str(key))
        ]
    return [(start, value)]


def _text(uri: str, name: str) -> str:
    place = join(uri, name)
    return read_text(place) if exists(place) else ""
