"""Meaning of a start under a run's name: a new run, a resumed one, or a mistake."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from raygnn.config import ConfigError, LoadedConfig, load_config
from raygnn.config.run_section import Run
from raygnn.config.training_section import Checkpoint
from raygnn.data import filesystem
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_storage_error
from raygnn.errors import RunError
from raygnn.outputs.checkpoints.names import LAST, MANIFEST
from raygnn.outputs.run_folder import SNAPSHOTS, RunFolder, RunStatus, state_bytes, state_of

#: Keys that a message about another config names, at most.
_MAX_SHOWN = 8


def check_run_folder(loaded: LoadedConfig, name: str) -> RunFolder:
    """Determines what a start under this name means, without writing anything.

    A fresh folder, or one whose workers never started, is a new run. An unfinished run of the same
    config resumes, unless `checkpoint.resume` is never, and so does a finished one with a raised
    limit. Anything else is refused before any work is done. Raises a RunError if the name belongs
    to a finished or another run, there is nothing to resume although `checkpoint.resume` requires
    it, or `run.overwrite` would delete its own starting point or files that no run has written.
    """
    run = loaded.config.run
    uri = filesystem.absolute(filesystem.join(run.storage_path, name))
    folder = RunFolder(
        uri=uri,
        model_uri=filesystem.absolute(run.model_uri or uri),
        logs_uri=filesystem.absolute(run.logs_uri or filesystem.join(uri, "logs")),
        attempt=secrets.token_hex(3),
    )
    checkpoint = loaded.config.checkpoint
    _check_sources(checkpoint)
    with _storage_errors(partial(_no_access, "storage_path", run.storage_path, "read")):
        state = None if run.overwrite else folder.read_state()
        is_foreign = run.overwrite and not folder.is_run() and not folder.is_empty()
    if not run.overwrite:
        _check_state(state, loaded, folder)
        return folder
    if is_foreign:
        raise RunError(
            f"run.overwrite=True is invalid: {redact(folder.uri)} holds files, and no run.json. "
            "Set another run.name, or empty the folder. [run-overwrite-foreign]"
        )
    _check_kept(folder, "checkpoint.resume", checkpoint.resume)
    if checkpoint.init_from is not None:
        _check_kept(folder, "checkpoint.init_from.uri", checkpoint.init_from.uri)
    return folder


def _check_sources(checkpoint: Checkpoint) -> None:
    if "/" in checkpoint.resume:
        _check_source(
            f"checkpoint.resume={redact(checkpoint.resume)!r} is invalid",
            (
                filesystem.join(checkpoint.resume, MANIFEST),
                filesystem.join(checkpoint.resume, "checkpoints", LAST),
            ),
            "it has no complete checkpoint. Set the folder of a run, or one of those in its "
            "checkpoints, or auto.",
        )
    if checkpoint.init_from is not None:
        _check_source(
            f"checkpoint.init_from.uri={redact(checkpoint.init_from.uri)!r} is invalid",
            (checkpoint.init_from.uri,),
            "nothing is there. Set the folder of a trained model or of a checkpoint.",
        )


def _check_source(key: str, uris: Sequence[str], rule: str) -> None:
    def unreadable(cause: str) -> RunError:
        return RunError(
            f"{key}: it cannot be read ({cause}). Set another one. [run-source-unreadable]"
        )

    with _storage_errors(unreadable):
        is_present = any(filesystem.exists(uri) for uri in uris)
    if not is_present:
        raise RunError(f"{key}: {rule}", id="run-source-missing")


def _check_kept(folder: RunFolder, key: str, source: str) -> None:
    inside = f"{folder.uri.rstrip('/')}/"
    if "/" in source and f"{filesystem.absolute(source)}/".startswith(inside):
        raise RunError(
            f"{key}={redact(source)!r} is invalid: run.overwrite would remove the run that it "
            "belongs to. Set another run.name, or run.overwrite to false. [run-overwrite-own]"
        )


def check_writable(folder: RunFolder, run: Run) -> None:
    """Raises a RunError if a bucket of outputs is not writable, before any work is done for it. A
    local folder is not tested: it is made when the run starts, immediately.
    """
    places = {
        "storage_path": folder.uri,
        "model_uri": folder.model_uri,
        "logs_uri": folder.logs_uri,
    }
    for field, uri in places.items():
        value = getattr(run, field)
        if value is None or not filesystem.is_remote(uri):
            continue
        probe = filesystem.join(uri, f".write-{folder.attempt}")
        with _storage_errors(partial(_no_access, field, value, "written")):
            filesystem.write_text(probe, "")
            filesystem.delete(probe)


@contextmanager
def _storage_errors(named: Callable[[str], RunError]) -> Iterator[None]:
    """Raises `named(cause)` if a disk or a store fails in a block."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise named(" ".join(redact(str(error)).split())) from error


def _no_access(field: str, uri: str, what: str, cause: str) -> RunError:
    return RunError(
        f"run.{field}={redact(uri)!r} is invalid: it cannot be {what} ({cause}). Set a folder or "
        "bucket that this user may read and write. [run-no-access]"
    )


def open_run_folder(
    loaded: LoadedConfig, name: str, snapshots: Mapping[str, Any] | None = None
) -> RunFolder:
    """Prepares the run folder for writing; with `run.overwrite` it is emptied first.

    From here on, an older start can no longer write into it. Raises a RunError as
    `check_run_folder`, or if the folder is not writable.

    Args:
        snapshots: `graph`, the graph.yaml of snapshots that the run reads, and their records.
    """
    folder = check_run_folder(loaded, name)
    storage_path = loaded.config.run.storage_path
    with (
        _storage_errors(partial(_no_access, "storage_path", storage_path, "written")),
        folder.lock(),
    ):
        while not _claim(folder, loaded):
            pass  # another start, older than this one, has claimed it meanwhile
        folder.write("config.yaml", loaded.saved_yaml())
        if snapshots:
            folder.write(SNAPSHOTS, json.dumps(snapshots, indent=1) + "\n")
    return folder


def _claim(folder: RunFolder, loaded: LoadedConfig) -> bool:
    version = filesystem.generation(folder.state_uri)
    check_run_folder(loaded, folder.name)
    overwrite = loaded.config.run.overwrite
    before = {} if overwrite else folder.read_state() or {}
    if overwrite:
        folder.clear()
        version = None if version is None else 0
    lineage = before.get("lineage")
    if overwrite or lineage:
        lineage = [*(lineage or ()), folder.attempt]
    record = {"lineage": lineage, "starts": before.get("starts", [])}
    state = {**state_of(RunStatus.RUNNING, loaded), "attempt": folder.attempt, **record}
    try:
        filesystem.write_if_unchanged(folder.state_uri, state_bytes(state), version)
    except FileExistsError:
        return False
    return True


def _check_state(state: dict[str, Any] | None, loaded: LoadedConfig, folder: RunFolder) -> None:
    resume = loaded.config.checkpoint.resume
    taken = f"run.name={folder.name!r} is invalid"
    replace_it = "Set run.overwrite to true to replace it, or another run.name"
    is_finished = state is not None and state["status"] == RunStatus.FINISHED.value
    if state is None or (not is_finished and not state.get("starts")):
        # Workers never started, as where a start is refused after it has opened the folder.
        if resume in ("must", "last", "best"):
            raise RunError(
                f"checkpoint.resume={resume!r} is invalid: there is no run {folder.name!r}. Set "
                "run.name and run.storage_path, or resume to auto. [resume-no-run]"
            )
        return
    differences: str | None = ""
    if state["fingerprint"] != loaded.fingerprint():
        differences = _differences(folder, loaded)
    if differences is None or differences:
        what = "an unfinished run of another config is there"
        if is_finished:
            what = "that run has finished" + (", with another config" if differences else "")
        raise RunError(f"{taken}: {what}{differences or ''}. {replace_it}. [run-other-config]")
    if is_finished:
        limit = _limit_that_ended(state)
        if limit is None or not filesystem.exists(filesystem.join(folder.checkpoints_uri, LAST)):
            raise RunError(f"{taken}: that run has finished. {replace_it}. [run-finished]")
        before, now = state["limits"][limit], loaded.limits()[limit]
        if now is not None and now <= before:
            raise RunError(
                f"{taken}: that run has finished. {replace_it}, or {limit} above {before} to train "
                "on. [run-finished]"
            )
    if resume == "never":
        raise RunError(
            f"checkpoint.resume='never': run {folder.name!r} exists. {replace_it}. [resume-never]"
        )


def _limit_that_ended(state: dict[str, Any]) -> str | None:
    reason = state.get("stop_reason") or ""
    limit = "early_stopping.patience" if reason.startswith("early") else reason.partition("=")[0]
    return limit if state.get("limits", {}).get(limit) is not None else None


def _differences(folder: RunFolder, loaded: LoadedConfig) -> str | None:
    """Names the differences from the config of a run; None if that config cannot be read. A key
    that only this release has, with its default, is no difference.
    """
    try:
        there = load_config(filesystem.join(folder.uri, "config.yaml"), (), loaded.allow_modules)
    except (ConfigError, OSError):
        return None  # it was removed, or needs an environment variable of that time
    changes = [
        f"{path} is {before!r} there and {now!r} here"
        for path, (before, now) in loaded.differences(there).items()
    ]
    more = [f"and {len(changes) - _MAX_SHOWN} more"] if changes[_MAX_SHOWN:] else []
    return ": " + "; ".join([*changes[:_MAX_SHOWN], *more]) if changes else ""
