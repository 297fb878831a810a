"""Saving, pointers and resuming of checkpoints."""

from __future__ import annotations

import secrets
from typing import Any

from raygnn.config.training_section import Checkpoint
from raygnn.console import say, warn
from raygnn.data.filesystem import redact
from raygnn.errors import CheckpointError
from raygnn.loops.callbacks import Callback
from raygnn.loops.context import WorkerContext
from raygnn.loops.engine import Engine
from raygnn.loops.model_spec import SPEC_FILE
from raygnn.loops.process import random_state, restore_random_state
from raygnn.outputs.checkpoints.names import CheckpointName, Retention
from raygnn.outputs.checkpoints.store import (
    CONFIG,
    STATE,
    CheckpointStore,
    encode,
    find_checkpoint,
    gather_files,
    keep_held_rows,
    rank_file,
    rows_file,
    take_rows,
)
from raygnn.outputs.run_folder import RunFolder
from raygnn.parallel.agreement import agreement, made_by_rank_0


class Checkpointer(Callback):
    """Saves an engine into its run folder, and restores it from there.

    Collective: all ranks must make one, and make every call.
    """

    def __init__(self, folder: RunFolder, context: WorkerContext, settings: Checkpoint) -> None:
        self._folder = folder
        self._store = CheckpointStore(folder.checkpoints_uri, folder.write)
        self._context = context
        self._settings = settings
        self._attempt = folder.attempt
        self._lineage: frozenset[str] | None = None
        listing = made_by_rank_0(self._list, "listing the checkpoints", CheckpointError)
        self._start, self._number = listing
        #: The monitored value of each checkpoint that was written at a validation, and the best.
        self._scores: dict[str, float] = {}
        self._best: str | None = None
        self._passed_over: dict[str, str] = {}

    def __call__(self, engine: Engine, report: dict[str, float], improved: bool) -> None:
        """Writes a checkpoint and reports it. Collective: all ranks must call."""
        self._number += 1
        where = engine.position.step, self._number
        name, tracker = str(CheckpointName(*where, self._attempt, self._start)), engine.best.tracker
        keep = self._settings.keep
        retention = Retention(self._settings.policy, keep.last, keep.best, tracker.mode)
        if report:
            self._scores[name] = tracker.value_of(report)
        if improved and retention.policy in ("all", "best"):
            self._best = name
        parts: dict[str, bytes] = {}
        state = engine.state_dict()
        with agreement(f"writing checkpoint {name}", CheckpointError):
            parts = self._parts(engine, state)
            self._store.write_parts(name, parts)
        files = gather_files(parts)
        with agreement(f"finishing checkpoint {name}", CheckpointError):
            if self._context.rank == 0:
                self._finish(name, files, retention)
        engine.callbacks.call("on_checkpoint_written", name)
        self._context.report(report, self._store.path_of(name))

    def restore(self, engine: Engine, resume: str) -> bool:
        """Restores an engine to the position of its run; returns whether it had a checkpoint.

        Collective: all ranks must call. Raises a CheckpointError if the requested checkpoint is
        missing or belongs to another model, or nothing readable is left.

        Args:
            resume: auto | must | last | best | never, or the URI of a checkpoint or a run.
        """
        choice = made_by_rank_0(
            lambda: self._choose(resume), "choosing a checkpoint", CheckpointError
        )
        if choice is None:
            return False
        root, name = choice
        with agreement(f"restoring checkpoint {root}/{name}", CheckpointError):
            parts, store = engine.optimization, CheckpointStore(root)
            state, rank_state = store.load(name, self._context.rank, parts.tables)
            keep_held_rows(state, parts.tables, parts.optimizer)
            _check_model(engine, state["model"], f"{root}/{name}")
            engine.load_state_dict(state)
            if rank_state is not None:
                restore_random_state(rank_state)
            if root == self._store.uri:
                self._take_back(name, state["checkpoints"])
        engine.resumed_from = name
        if self._context.rank == 0:
            say(f"resumed from {name} (epoch {engine.position.current_epoch})")
        return True

    def _list(self) -> tuple[str, int]:
        self._lineage = self._folder.read_lineage()
        last = max((name.number for name in self._store.parsed_names()), default=0)
        return secrets.token_hex(2), last

    def _names(self) -> list[str]:
        lineage = self._lineage
        names = self._store.parsed_names()
        return [str(name) for name in names if lineage is None or name.attempt in lineage]

    def _parts(self, engine: Engine, state: dict[str, Any]) -> dict[str, bytes]:
        state["checkpoints"] = {"scores": dict(self._scores), "best": self._best}
        engine.callbacks.call("on_save_checkpoint", state)
        engine.callbacks.raise_failure()
        rank, trained = self._context.rank, engine.optimization
        parts = {rank_file(rank): encode(random_state())}
        rows = take_rows(state, trained.tables, trained.optimizer)
        if rows:
            parts[rows_file(rank)] = encode(rows)
        if rank == 0:
            parts[STATE] = encode(state)
            parts[CONFIG] = engine.loaded.saved_yaml().encode()
            if engine.task.spec is not None:
                parts[SPEC_FILE] = engine.task.spec.to_json().encode()
        return parts

    def _finish(self, name: str, files: dict[str, str], retention: Retention) -> None:
        with self._folder.held():
            self._store.finish(name, files, self._context.world_size)
            self._point(name)
            self._prune(retention)

    def _point(self, last: str) -> None:
        """Sets the pointers, `best` first: `last` must not be ahead of it."""
        self._store.point("best", self._best)
        self._store.point("last", last)

    def _prune(self, retention: Retention) -> None:
        names = [name for name in self._names() if name not in self._passed_over]
        needed = [self._store.pointer(which) for which in ("best", "last")]
        for name in retention.obsolete(names, self._scores, {n for n in needed if n}):
            self._store.remove(name)
            self._scores.pop(name, None)

    def _take_back(self, name: str, record: dict[str, Any]) -> None:
        self._scores, self._best = dict(record["scores"]), record["best"]
        if self._context.rank == 0:
            if self._best is not None and self._best not in self._names():
                self._best = None
            self._point(name)

    def _choose(self, resume: str) -> tuple[str, str] | None:
        names = self._names()
        if resume in ("auto", "must", "last", "never"):
            name = self._newest_valid(names)
            if name is None and resume in ("must", "last"):
                raise CheckpointError(
                    f"checkpoint.resume={resume!r} is invalid: {self._store.uri} has no "
                    "checkpoint. Set it to auto. [resume-no-checkpoint]"
                )
            return None if name is None else (self._store.uri, name)
        latest = self._newest_valid([name for name in names if f"-{self._attempt}-" in name])
        if latest is not None:
            return self._store.uri, latest
        if resume == "best":
            best = self._store.pointer("best")
            if best is None:
                raise CheckpointError(
                    f"checkpoint.resume='best' is invalid: {self._store.uri} has no best "
                    "checkpoint. Set it to auto. [resume-no-best]"
                )
            return _verified(self._store.uri, best, resume)
        store, newest, is_run = find_checkpoint(resume)
        if is_run and newest is not None:
            return store.uri, newest
        root, _, name = resume.rstrip("/").rpartition("/")
        return _verified(root, name, resume)

    def _newest_valid(self, names: list[str]) -> str | None:
        name, self._passed_over = self._store.newest_valid(names)
        for text, reason in self._passed_over.items():
            warn(f"skipping checkpoint {text}: {reason}")
            if not self._store.is_finished(text):
                with self._folder.held():
                    self._store.remove(text)  # incomplete, so it only takes space
        return name


def _verified(root: str, name: str, resume: str) -> tuple[str, str]:
    try:
        CheckpointStore(root).verify(name)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint.resume={redact(resume)!r} is invalid: {redact(str(error))}. Set another "
            "checkpoint, or auto, for the newest complete one. [resume-unreadable]"
        ) from error
    return root, name


def _check_model(engine: Engine, weights: dict[str, Any], uri: str) -> None:
    expected = {name: list(x.shape) for name, x in engine.optimization.module.state_dict().items()}
    actual = {name: list(x.shape) for name, x in weights.items()}
    computed = {
        f"{prefix}.{name}"
        for prefix, module in engine.optimization.module.named_modules()
        if getattr(module, "is_computed", False)
        for name, _ in module.named_buffers()
    }
    missing = expected.keys() - actual.keys() - computed
    problems = [f"it lacks {name}" for name in expected if name in missing]
    problems += [f"the model has no {name}" for name in actual if name not in expected]
    problems += [
        f"{name} has the shape {actual[name]}, the model's has {shape}"
        for name, shape in expected.items()
        if name in actual and actual[name] != shape
    ]
    if problems:
        raise CheckpointError(
            f"checkpoint.resume={uri!r} is of another model: {'; '.join(problems[:3])}. Set "
            "checkpoint.init_from to load what fits. [resume-other-model]"
        )
