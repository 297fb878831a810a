"""The run folder: its files, and who may write them."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from raygnn import __version__
from raygnn.config import LoadedConfig
from raygnn.console import say, warn
from raygnn.data import filesystem
from raygnn.data.file_lock import locked
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_storage_error
from raygnn.documents import parse_json
from raygnn.errors import PreemptedError, RuleError, RunError

#: Files that a run writes to `run.model_uri` and `run.logs_uri`, which several runs may share.
_WRITTEN_ELSEWHERE = re.compile(
    r"model\.(safetensors|json)|config\.yaml|metrics\.jsonl|events\.out\.tfevents\..+"
    r"|profiler/rank-\d+\.\d+\.pt\.trace\.json\.gz"
)

#: Names the snapshots that a run reads, if its tables come from databases.
SNAPSHOTS = "snapshots.json"

#: The file whose lock a start holds while it writes.
_LOCK = "run.lock"


class RunStatus(Enum):
    """State of a run; only `FINISHED` is terminal, others can resume."""

    RUNNING = "running"
    STOPPED = "stopped"  # by a signal
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run on any fsspec URI. Only rank 0 and the driver write.

    Attributes:
        model_uri: folder of `model.safetensors` and its config; default: the run folder.
        logs_uri: folder of TensorBoard events; default: `<folder>/logs`.
        attempt: identifies this start's files, so that two starts never mix.
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
        return filesystem.join(self.uri, "checkpoints")

    @property
    def metrics_uri(self) -> str:
        return filesystem.join(self.uri, "metrics.json")

    @property
    def history_uri(self) -> str:
        return filesystem.join(self.uri, "history.jsonl")

    @property
    def state_uri(self) -> str:
        return filesystem.join(self.uri, "run.json")

    @property
    def report_uri(self) -> str:
        return filesystem.join(self.uri, "report.html")

    def write_state(
        self, status: RunStatus, loaded: LoadedConfig, stop_reason: str | None = None
    ) -> None:
        """Writes `run.json`, keeping its starts and lineage. Raises a RunError as `check_is_held`.

        `stop_reason`: the engine's, of a finished run.
        """
        changes = state_of(status, loaded, stop_reason)
        self._change_state(lambda state: {**state, **changes})

    @contextmanager
    def stop_recorded(self) -> Iterator[None]:
        """Writes into `run.json` that a signal stopped the run in this block."""

        def stopped(state: dict[str, Any]) -> dict[str, Any]:
            is_running = state.get("status") == RunStatus.RUNNING.value
            return {**state, "status": RunStatus.STOPPED.value} if is_running else state

        try:
            yield
        except (PreemptedError, KeyboardInterrupt):
            try:
                self._change_state(stopped)
            except Exception as error:
                if not isinstance(error, RunError) and not is_storage_error(error):
                    raise
                warn(f"could not write the stop into run.json: {redact(str(error))}")
            raise

    def is_this_start(self) -> bool:
        return (self.read_state() or {}).get("attempt") == self.attempt

    def lock(self) -> AbstractContextManager[None]:
        """Blocks other starts from writing, on local disks and NFS. Reentrant per thread."""
        return locked(
            filesystem.join(self.uri, _LOCK), lambda text: say(f"run {self.name}: {text}")
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Runs a block of writes during which no newer start takes the folder.

        On local disks and NFS a newer start waits for the end of the block. Object stores have no
        locks: there, `write` is conditional for each file. Raises a RunError as `check_is_held`.
        """
        with self.lock():
            self.check_is_held()
            yield

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file, if the folder still belongs to this start.

        `name`: path in the folder, or URI elsewhere. Raises a RunError as `check_is_held`.
        """
        data = content.encode() if isinstance(content, str) else content
        self._write_held(filesystem.join(self.uri, name), lambda: data)

    def _write_held(self, uri: str, content: Callable[[], bytes]) -> None:
        with self.lock():
            while True:
                version = filesystem.generation(uri)
                self.check_is_held()
                try:
                    filesystem.write_if_unchanged(uri, content(), version)
                except FileExistsError:
                    continue  # a newer start has written it, or an earlier try of this one
                return

    def check_is_held(self) -> None:
        """Raises a RunError if a newer start has taken the folder, or it was deleted."""
        state = self.read_state()
        if state is None:
            raise RunError(
                f"run.name={self.name!r} is invalid: {redact(self.uri)} was removed during the "
                "run. Start it again, from the beginning. [run-removed]"
            )
        if state.get("attempt") != self.attempt:
            raise RunError(
                f"run.name={self.name!r} is invalid: the run was started again, and this start "
                "leaves it to the newer one. Set another run.name. [run-started-again]"
            )

    def record_start(self, *, resumed_from: str | None, step: int, num_workers: int) -> None:
        start = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "host": socket.gethostname(),
            "num_workers": num_workers,
            "step": step,
            "resumed_from": resumed_from,
        }
        status = RunStatus.RUNNING.value  # after a failure, if Ray restarts the workers
        self._change_state(
            lambda state: {**state, "status": status, "starts": [*state.get("starts", []), start]}
        )

    def read_lineage(self) -> frozenset[str] | None:
        """The starts whose checkpoints belong to this run; None if all in the folder do.

        An overwritten start that still runs may finish a checkpoint on a store without locks.
        """
        lineage = (self.read_state() or {}).get("lineage")
        return None if lineage is None else frozenset(lineage)

    def forget_failure(self) -> None:
        """Deletes the failure record of an earlier start, which would be taken for the result."""
        with self.held():
            for uri in (self.metrics_uri, self.report_uri):
                filesystem.delete(uri)

    def read_starts(self) -> list[dict[str, Any]]:
        return list((self.read_state() or {}).get("starts", []))

    def _change_state(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._write_held(self.state_uri, lambda: state_bytes(change(self.read_state() or {})))

    def read_state(self) -> dict[str, Any] | None:
        """Content of `run.json`; None if it is missing. Raises a RunError if it is damaged."""
        if not filesystem.exists(self.state_uri):
            return None
        return _parsed_state(filesystem.read_bytes(self.state_uri), self.uri)

    def is_run(self) -> bool:
        """Whether the folder has a run's state, damaged or not."""
        return filesystem.exists(self.state_uri)

    def is_empty(self) -> bool:
        fs, path = filesystem.open_fs(self.uri)
        fs.invalidate_cache()
        files = fs.ls(path, detail=False) if fs.exists(path) else []
        ignored = {path.rstrip("/"), f"{path.rstrip('/')}/{_LOCK}"}
        return not [name for name in files if name.rstrip("/") not in ignored]

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        content = {**metrics, "raygnn": __version__}
        self.write(self.metrics_uri, json.dumps(content, indent=1) + "\n")

    def write_history(self, history: list[dict[str, float]]) -> None:
        self.write(self.history_uri, "".join(json.dumps(row) + "\n" for row in history))

    def read_history(self) -> list[dict[str, float]]:
        if not filesystem.exists(self.history_uri):
            return []
        return [json.loads(line) for line in filesystem.read_text(self.history_uri).splitlines()]

    def clear(self) -> None:
        """Deletes everything of the run, including logs and model, and nothing else."""
        for uri in dict.fromkeys((self.logs_uri, self.model_uri)):
            fs, path = filesystem.open_fs(uri)
            fs.invalidate_cache()
            root = f"{path.rstrip('/')}/"
            for file in fs.find(path) if fs.exists(path) else []:
                if _WRITTEN_ELSEWHERE.fullmatch(file.removeprefix(root)):
                    fs.rm_file(file)
        if filesystem.is_remote(self.uri):
            filesystem.delete(self.uri)
            return
        for name in os.listdir(self.uri) if filesystem.exists(self.uri) else []:
            if name != _LOCK:  # another start may wait for it
                filesystem.delete(filesystem.join(self.uri, name))


def _parsed_state(content: bytes, uri: str) -> dict[str, Any]:
    try:
        state = parse_json(content)
        RunStatus(state["status"])
        if not isinstance(state["fingerprint"], str):
            raise TypeError("fingerprint is no text")
        for start in state.get("starts", []):
            datetime.fromisoformat(start["time"])
    except (RuleError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{redact(filesystem.join(uri, 'run.json'))} is damaged: {type(error).__name__}: "
            f"{error}. Delete the file to resume, or set run.overwrite. [run-damaged]"
        ) from error
    return dict(state)


def state_of(
    status: RunStatus, loaded: LoadedConfig, stop_reason: str | None = None
) -> dict[str, Any]:
    return {
        "status": status.value,
        "fingerprint": loaded.fingerprint(),
        "limits": loaded.limits(),
        "stop_reason": stop_reason,
        "raygnn": __version__,
    }


def state_bytes(state: dict[str, Any]) -> bytes:
    return (json.dumps(state, indent=1) + "\n").encode()
