"""The run folder: what lies where, and who may write into it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from raygnn import __version__
from raygnn.config import ConfigError, LoadedConfig, load_config
from raygnn.config.documents import DocumentError, parse_json
from raygnn.config.run_section import Run
from raygnn.config.training_section import Checkpoint
from raygnn.console import say
from raygnn.data.conditional_write import generation, locked, write_if_unchanged
from raygnn.data.filesystem import (
    absolute,
    delete,
    exists,
    is_remote,
    is_storage_error,
    join,
    open_fs,
    read_bytes,
    read_text,
    redact,
    write_text,
)
from raygnn.errors import RunError
from raygnn.outputs.checkpoints.names import LAST, MANIFEST

#: What a run writes to `run.model_uri` and `run.logs_uri`, folders that it may share with others.
_WRITTEN_ELSEWHERE = re.compile(
    r"model\.(safetensors|json)|config\.yaml|metrics\.jsonl|events\.out\.tfevents\..+"
    r"|profiler/rank-\d+\.\d+\.pt\.trace\.json\.gz"
)

#: The file whose lock a start holds while it writes.
_LOCK = "run.lock"

#: Keys that a message about another config names, at most.
_MAX_SHOWN = 8


class RunStatus(Enum):
    """State of a run; only `FINISHED` is terminal, anything else can go on."""

    RUNNING = "running"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run on any fsspec URI. Rank 0 and the driver write, nobody else.

    Attributes:
        uri: the folder.
        model_uri: where `model.safetensors` and its config go; the folder itself by default.
        logs_uri: where TensorBoard events go; `<folder>/logs` by default.
        attempt: names what this start of the run writes, so that two never mix.
    """

    uri: str
    model_uri: str
    logs_uri: str
    attempt: str

    @property
    def name(self) -> str:
        return self.uri.rstrip("/").rsplit("/", 1)[-1]

    @property
    def checkpoints_uri(self) -> str:
        return join(self.uri, "checkpoints")

    @property
    def metrics_uri(self) -> str:
        return join(self.uri, "metrics.json")

    @property
    def history_uri(self) -> str:
        return join(self.uri, "history.jsonl")

    @property
    def state_uri(self) -> str:
        return join(self.uri, "run.json")

    @property
    def report_uri(self) -> str:
        return join(self.uri, "report.html")

    def write_state(
        self, status: RunStatus, loaded: LoadedConfig, stop_reason: str | None = None
    ) -> None:
        """Writes `run.json`; the starts and the lineage that it holds stay.

        Args:
            stop_reason: the engine's, of a finished run.
        Raises:
            RunError: as `check_is_held`.
        """
        changes = _state_of(status, loaded, stop_reason)
        self._change_state(lambda state: {**state, **changes})

    def is_this_start(self) -> bool:
        """Whether the folder is the one in which this very start has written its state."""
        return (self.read_state() or {}).get("attempt") == self.attempt

    def lock(self) -> AbstractContextManager[None]:
        """Keeps other starts from writing, on local disks and NFS; a thread may take it again."""
        return locked(join(self.uri, _LOCK), lambda text: say(f"run {self.name}: {text}"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Runs a block of writes during which no newer start takes the folder.

        On local disks and NFS a newer start waits for the end of the block. Object stores have no
        locks: there each file that `write` writes is conditional.

        Raises:
            RunError: as `check_is_held`.
        """
        with self.lock():
            self.check_is_held()
            yield

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file, if the folder is still this start's.

        Args:
            name: path in the folder, or the URI of an output elsewhere.
        Raises:
            RunError: as `check_is_held`.
        """
        data, uri = content.encode() if isinstance(content, str) else content, join(self.uri, name)
        with self.lock():
            while True:
                version = generation(uri)
                self.check_is_held()
                try:
                    write_if_unchanged(uri, data, version)
                except FileExistsError:
                    continue  # a newer start has written it, or an earlier try of this one
                return

    def check_is_held(self) -> None:
        """Looks whether the folder is still this start's: of two at a time the newer one has it.

        Raises:
            RunError: the run has been started once more, or its folder is gone.
        """
        state = self.read_state()
        if state is None:
            raise RunError(
                f"run.name={self.name!r} is invalid: {redact(self.uri)} was removed while the run "
                "went on. Start it again, from the beginning."
            )
        if state.get("attempt") != self.attempt:
            raise RunError(
                f"run.name={self.name!r} is invalid: the run was started once more, and this start "
                "leaves it to the newer one. Start a run once at a time, or set another run.name."
            )

    def record_start(self, *, resumed_from: str | None, step: int, num_workers: int) -> None:
        """Notes in `run.json` that the workers start, for the first time or again. Rank 0 only."""
        start = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "host": socket.gethostname(),
            "num_workers": num_workers,
            "step": step,
            "resumed_from": resumed_from,
        }
        self._change_state(lambda state: {**state, "starts": [*state.get("starts", []), start]})

    def read_lineage(self) -> frozenset[str] | None:
        """The starts whose checkpoints are of this run; None where all in the folder are.

        An overwritten start that still runs may finish a checkpoint on a store without locks.
        """
        lineage = (self.read_state() or {}).get("lineage")
        return None if lineage is None else frozenset(lineage)

    def forget_failure(self) -> None:
        """Deletes what an earlier start left of its failure: it would be taken for the result."""
        with self.held():
            for uri in (self.metrics_uri, self.report_uri):
                delete(uri)

    def read_starts(self) -> list[dict[str, Any]]:
        """Every start of the run's workers, the first one first."""
        return list((self.read_state() or {}).get("starts", []))

    def _change_state(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with self.lock():
            while True:
                version = generation(self.state_uri)
                self.check_is_held()
                state = change(self.read_state() or {})
                try:
                    write_if_unchanged(self.state_uri, _as_bytes(state), version)
                except FileExistsError:
                    continue
                return

    def read_state(self) -> dict[str, Any] | None:
        """What `run.json` says; null where it is not there.

        Raises:
            RunError: it is damaged.
        """
        fs, path = open_fs(self.state_uri)
        if not fs.exists(path):
            return None
        return _parsed_state(read_bytes(self.state_uri), self.uri)

    def is_run(self) -> bool:
        """Whether a run has left its state in the folder, damaged or not."""
        return exists(self.state_uri)

    def is_empty(self) -> bool:
        """Whether nothing is in the folder, or there is none."""
        fs, path = open_fs(self.uri)
        fs.invalidate_cache()
        found = fs.ls(path, detail=False) if fs.exists(path) else []
        own = {path.rstrip("/"), f"{path.rstrip('/')}/{_LOCK}"}
        return not [name for name in found if name.rstrip("/") not in own]

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        self.write(self.metrics_uri, json.dumps(metrics, indent=1) + "\n")

    def write_history(self, history: list[dict[str, float]]) -> None:
        self.write(self.history_uri, "".join(json.dumps(row) + "\n" for row in history))

    def read_history(self) -> list[dict[str, float]]:
        fs, path = open_fs(self.history_uri)
        if not fs.exists(path):
            return []
        return [json.loads(line) for line in read_text(self.history_uri).splitlines()]

    def clear(self) -> None:
        """Deletes everything of the run, logs and model included, and nothing of others."""
        for uri in dict.fromkeys((self.logs_uri, self.model_uri)):
            fs, path = open_fs(uri)
            fs.invalidate_cache()
            root = f"{path.rstrip('/')}/"
            for found in fs.find(path) if fs.exists(path) else []:
                if _WRITTEN_ELSEWHERE.fullmatch(found.removeprefix(root)):
                    fs.rm_file(found)
        if is_remote(self.uri):
            delete(self.uri)
            return
        for name in os.listdir(self.uri) if exists(self.uri) else []:
            if name != _LOCK:  # another start may wait for it
                delete(join(self.uri, name))


def check_run_folder(loaded: LoadedConfig, name: str) -> RunFolder:
    """Decides what a start under this name means, without writing anything.

    Fresh folder, or one whose workers never started: a new run. An unfinished run of the same
    config resumes, unless `checkpoint.resume` is never, and so does a finished one whose limit was
    raised. Anything else is refused before any work is done.

    Raises:
        RunError: the name is taken by a finished or another run, there is nothing to resume where
            `checkpoint.resume` demands it, or `run.overwrite` would delete what it starts from, or
            what no run has written.
    """
    run = loaded.config.run
    uri = absolute(join(run.storage_path, name))
    folder = RunFolder(
        uri=uri,
        model_uri=absolute(run.model_uri or uri),
        logs_uri=absolute(run.logs_uri or join(uri, "logs")),
        attempt=secrets.token_hex(3),
    )
    checkpoint = loaded.config.checkpoint
    _check_sources(checkpoint)
    try:
        state = None if run.overwrite else folder.read_state()
        is_foreign = run.overwrite and not folder.is_run() and not folder.is_empty()
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise _no_access("storage_path", run.storage_path, "read", error) from error
    if not run.overwrite:
        _check_state(state, loaded, folder)
        return folder
    if is_foreign:
        raise RunError(
            f"run.overwrite=True is invalid: {redact(folder.uri)} holds files, and no run: there "
            "is no run.json. Set another run.name, or empty the folder yourself."
        )
    _check_kept(folder, "checkpoint.resume", checkpoint.resume)
    if checkpoint.init_from is not None:
        _check_kept(folder, "checkpoint.init_from.uri", checkpoint.init_from.uri)
    return folder


def _parsed_state(content: bytes, uri: str) -> dict[str, Any]:
    try:
        state = parse_json(content)
        RunStatus(state["status"])
        if not isinstance(state["fingerprint"], str):
            raise TypeError("fingerprint is no text")
        for start in state.get("starts", []):
            datetime.fromisoformat(start["time"])
    except (DocumentError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{redact(join(uri, 'run.json'))} is damaged: {type(error).__name__}: {error}. Delete "
            "the file to go on from the run's checkpoints, or set --run.overwrite true to start "
            "from scratch."
        ) from error
    return dict(state)


def _check_sources(checkpoint: Checkpoint) -> None:
    """Looks whether what a run shall start from is there."""
    if "/" in checkpoint.resume:
        _check_source(
            f"checkpoint.resume={redact(checkpoint.resume)!r} is invalid",
            (join(checkpoint.resume, MANIFEST), join(checkpoint.resume, "checkpoints", LAST)),
            "no whole checkpoint is there. Set the folder of a run, or one of those in its "
            "checkpoints, or auto.",
        )
    if checkpoint.init_from is not None:
        _check_source(
            f"checkpoint.init_from.uri={redact(checkpoint.init_from.uri)!r} is invalid",
            (checkpoint.init_from.uri,),
            "nothing is there. Set the folder of a trained model or of a checkpoint.",
        )


def _check_source(key: str, uris: Sequence[str], rule: str) -> None:
    try:
        found = any(exists(uri) for uri in uris)
    except Exception as error:
        if not is_storage_error(error):
            raise
        text = " ".join(redact(str(error)).split())
        raise RunError(
            f"{key}: it cannot be read ({text}). Set one that this user may read."
        ) from error
    if not found:
        raise RunError(f"{key}: {rule}")


def _check_kept(folder: RunFolder, key: str, source: str) -> None:
    inside = f"{folder.uri.rstrip('/')}/"
    if "/" in source and f"{absolute(source)}/".startswith(inside):
        raise RunError(
            f"{key}={redact(source)!r} is invalid: run.overwrite removes the run that it is of. "
            "Set another run.name, or run.overwrite to false."
        )


def check_writable(folder: RunFolder, run: Run) -> None:
    """Tries whether the buckets of outputs may be written to, before any work is done for them.

    A local folder is left alone: it is made when the run starts, without delay.

    Raises:
        RunError: one may not.
    """
    places = {
        "storage_path": folder.uri,
        "model_uri": folder.model_uri,
        "logs_uri": folder.logs_uri,
    }
    for field, uri in places.items():
        given = getattr(run, field)
        if given is None or not is_remote(uri):
            continue
        probe = join(uri, f".write-{folder.attempt}")
        try:
            write_text(probe, "")
            fs, path = open_fs(probe)
            fs.rm(path)
        except Exception as error:
            if not is_storage_error(error):
                raise
            raise _no_access(field, given, "written", error) from error


def _no_access(field: str, given: str, what: str, error: Exception) -> RunError:
    text = " ".join(redact(str(error)).split())
    return RunError(
        f"run.{field}={redact(given)!r} is invalid: it cannot be {what} ({text}). Set a folder or "
        "bucket that this user may read and write."
    )


def open_run_folder(loaded: LoadedConfig, name: str) -> RunFolder:
    """Prepares the run folder for writing; with `run.overwrite` it is emptied first.

    From here on, an older start writes nothing into it any more.

    Raises:
        RunError: as `check_run_folder`, or the folder cannot be written.
    """
    folder = check_run_folder(loaded, name)
    try:
        with folder.lock():
            while not _claim(folder, loaded):
                pass  # another start has claimed it meanwhile, of which this one is the newer
            folder.write("config.yaml", loaded.saved_yaml())
    except OSError as error:
        raise _no_access(
            "storage_path", loaded.config.run.storage_path, "written", error
        ) from error
    return folder


def _claim(folder: RunFolder, loaded: LoadedConfig) -> bool:
    """Writes the first state of a start; returns false if another start came in between.

    Raises:
        RunError: as `check_run_folder`, by what is there now.
    """
    version = generation(folder.state_uri)
    check_run_folder(loaded, folder.name)
    overwrite = loaded.config.run.overwrite
    before = {} if overwrite else folder.read_state() or {}
    if overwrite:
        folder.clear()
        version = None if version is None else 0
    lineage = before.get("lineage")
    if overwrite or lineage:
        lineage = [*(lineage or ()), folder.attempt]
    kept = {"lineage": lineage, "starts": before.get("starts", [])}
    state = {**_state_of(RunStatus.RUNNING, loaded), "attempt": folder.attempt, **kept}
    try:
        write_if_unchanged(folder.state_uri, _as_bytes(state), version)
    except FileExistsError:
        return False
    return True


def _state_of(
    status: RunStatus, loaded: LoadedConfig, stop_reason: str | None = None
) -> dict[str, Any]:
    return {
        "status": status.value,
        "fingerprint": loaded.fingerprint(),
        "limits": loaded.limits(),
        "stop_reason": stop_reason,
        "raygnn": __version__,
    }


def _as_bytes(state: dict[str, Any]) -> bytes:
    return (json.dumps(state, indent=1) + "\n").encode()


def _check_state(state: dict[str, Any] | None, loaded: LoadedConfig, folder: RunFolder) -> None:
    """Raises RunError unless a start may have the folder in which `run.json` holds a state."""
    resume = loaded.config.checkpoint.resume
    taken = f"run.name={folder.name!r} is invalid"
    replace_it = "Set --run.overwrite true to replace it, or another run.name"
    if state is None or (state["status"] == RunStatus.RUNNING.value and not state.get("starts")):
        # Workers never started, as where a start is refused after it has opened the folder.
        if resume in ("must", "last", "best"):
            raise RunError(
                f"checkpoint.resume={resume!r} is invalid: no run named {folder.name!r} is there "
                "to resume. Set run.name and run.storage_path to those of the run, or resume to "
                "auto."
            )
        return
    is_finished = state["status"] == RunStatus.FINISHED.value
    if state["fingerprint"] != loaded.fingerprint():
        found = _differences(folder, loaded)
        what = "an unfinished run of another config is there"
        if is_finished:
            what = "that run has finished" + (", with another config" if found else "")
        raise RunError(f"{taken}: {what}{found}. {replace_it}.")
    if is_finished:
        limit = _limit_that_ended(state)
        if limit is None or not exists(join(folder.checkpoints_uri, LAST)):
            raise RunError(f"{taken}: that run has finished. {replace_it}.")
        before, now = state["limits"][limit], loaded.limits()[limit]
        if now is not None and now <= before:
            raise RunError(
                f"{taken}: that run has finished. {replace_it}, or {limit} to more than {before} "
                "to train on."
            )
    if resume == "never":
        raise RunError(
            f"checkpoint.resume='never' is invalid: run {folder.name!r} is there and would resume. "
            f"{replace_it}."
        )


def _limit_that_ended(state: dict[str, Any]) -> str | None:
    """The dotted path of the limit that ended a finished run."""
    reason = state.get("stop_reason") or ""
    limit = "early_stopping.patience" if reason.startswith("early") else reason.partition("=")[0]
    return limit if state.get("limits", {}).get(limit) is not None else None


def _differences(folder: RunFolder, loaded: LoadedConfig) -> str:
    """Where the config of the run in a folder is another one, for a message."""
    try:
        there = load_config(join(folder.uri, "config.yaml"), (), loaded.allow_modules)
    except (ConfigError, OSError):
        return ""  # it was removed, or needs an environment variable of that time
    found = [
        f"{path} is {before!r} there and {now!r} here"
        for path, (before, now) in loaded.differences(there).items()
    ]
    more = [f"and {len(found) - _MAX_SHOWN} more"] if found[_MAX_SHOWN:] else []
    return ": " + "; ".join([*found[:_MAX_SHOWN], *more]) if found else ""
