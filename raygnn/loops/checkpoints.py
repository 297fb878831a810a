"""Checkpoints on any fsspec URI: whole or not there, and verified before they are trusted."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
from dataclasses import dataclass
from typing import Any

import torch

from raygnn.data.filesystem import join, open_fs, write_text
from raygnn.errors import CheckpointError
from raygnn.loops import collectives

MANIFEST = "manifest.json"
STATE = "state.pt"
FORMAT = "raygnn/checkpoint-v1"


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay. Decides only; the store deletes.

    Attributes:
        policy: all | best | last | none.
        keep_last_n: how many of the newest stay under `best` and `last`.
    """

    policy: str = "best"
    keep_last_n: int = 1

    def obsolete(self, names: list[str], best: str | None) -> list[str]:
        """Of the checkpoints' names, oldest first, those that nothing needs any more."""
        if self.policy == "all":
            return []
        kept = set(names[-max(self.keep_last_n, 1) :])
        if best is not None and self.policy == "best":
            kept.add(best)
        return [name for name in names if name not in kept]


class CheckpointStore:
    """The `checkpoints` folder of one run.

    A checkpoint is a folder of files with `manifest.json`, which holds their sha256 and is
    written last: a folder without it, or with a sum that does not match, is never loaded.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._fs, self._root = open_fs(uri)

    def path_of(self, name: str) -> str:
        """The checkpoint's path on its file system, without the scheme."""
        return posixpath.join(self._root, name)

    def save(self, name: str, state: dict[str, Any], rank_state: dict[str, Any]) -> None:
        """Writes one checkpoint: rank 0 the shared state, every rank its own.

        Collective: all ranks must call with equal names and shared states.

        Raises:
            CheckpointError: a rank could not write; raised on all ranks.
        """
        payloads = {f"rank-{collectives.rank()}.pt": rank_state}
        if collectives.rank() == 0:
            payloads[STATE] = state
        sums: dict[str, str] = {}
        problem = None
        try:
            self._fs.makedirs(self.path_of(name), exist_ok=True)
            for file, payload in payloads.items():
                sums[file] = self._write(posixpath.join(name, file), payload)
        except OSError as error:
            problem = f"rank {collectives.rank()}: {error}"
        gathered = collectives.gather_objects((sums, problem))
        self._raise_first(name, [text for _, text in gathered])
        if collectives.rank() == 0:
            files = {file: digest for part, _ in gathered for file, digest in part.items()}
            manifest = {"format": FORMAT, "files": files, "world_size": collectives.world_size()}
            try:
                write_text(join(self.uri, name, MANIFEST), json.dumps(manifest, indent=1))
            except OSError as error:
                problem = f"rank 0: {error}"
        self._raise_first(name, [collectives.broadcast_object(problem)])

    def load(self, name: str, rank: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Reads a verified checkpoint.

        Returns:
            The shared state, and this rank's own if the run had as many workers then.
        Raises:
            CheckpointError: incomplete or damaged.
        """
        manifest = self.verify(name)
        state = self._read(posixpath.join(name, STATE))
        own = f"rank-{rank}.pt"
        if manifest["world_size"] != collectives.world_size() or own not in manifest["files"]:
            return state, None
        return state, self._read(posixpath.join(name, own))

    def verify(self, name: str) -> dict[str, Any]:
        """Checks a checkpoint's manifest and sums, and returns the manifest.

        Raises:
            CheckpointError: incomplete or damaged; the message says which file.
        """
        path = posixpath.join(self.path_of(name), MANIFEST)
        if not self._fs.exists(path):
            raise CheckpointError(f"{self.path_of(name)} has no {MANIFEST}: it was never finished")
        try:
            manifest = json.loads(self._fs.cat_file(path))
            files = manifest["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a checkpoint's manifest: {error}") from error
        if manifest.get("format") != FORMAT:
            raise CheckpointError(f"{path} has the format {manifest.get('format')}, not {FORMAT}")
        for file, digest in files.items():
            target = posixpath.join(self.path_of(name), file)
            if not self._fs.exists(target):
                raise CheckpointError(f"{target} is missing")
            if hashlib.sha256(self._fs.cat_file(target)).hexdigest() != digest:
                raise CheckpointError(f"{target} is damaged: its sha256 is not the manifest's")
        return manifest

    def names(self) -> list[str]:
        """Names of all checkpoint folders, oldest first, finished or not."""
        if not self._fs.exists(self._root):
            return []
        self._fs.invalidate_cache(self._root)
        entries = self._fs.ls(self._root, detail=True)
        return sorted(
            posixpath.basename(entry["name"].rstrip("/"))
            for entry in entries
            if entry["type"] == "directory"
        )

    def newest_valid(self) -> tuple[str | None, list[str]]:
        """The newest checkpoint that verifies, and a message for each one passed over.

        Raises:
            CheckpointError: there are checkpoints and every one is damaged.
        """
        messages: list[str] = []
        finished = False
        for name in reversed(self.names()):
            try:
                self.verify(name)
            except CheckpointError as error:
                finished |= "never finished" not in str(error)
                messages.append(f"skipping checkpoint {name}: {error}")
            else:
                return name, messages
        if finished:
            raise CheckpointError(
                "No checkpoint of this run can be read:\n" + "\n".join(messages) + "\nSet "
                "checkpoint.resume to never with run.overwrite true to start from scratch."
            )
        return None, messages

    def pointer(self, which: str) -> str | None:
        """The name that the pointer `best` or `last` holds."""
        path = posixpath.join(self._root, f"{which}.json")
        if not self._fs.exists(path):
            return None
        return json.loads(self._fs.cat_file(path))["checkpoint"]

    def point(self, which: str, name: str) -> None:
        """Makes the pointer `best` or `last` name a finished checkpoint. Rank 0 only."""
        write_text(join(self.uri, f"{which}.json"), json.dumps({"checkpoint": name}))

    def prune(self, retention: Retention) -> None:
        """Deletes what nothing needs, manifest first. Rank 0 only."""
        for name in retention.obsolete(self.names(), self.pointer("best")):
            manifest = posixpath.join(self.path_of(name), MANIFEST)
            if self._fs.exists(manifest):
                self._fs.rm_file(manifest)
            self._fs.rm(self.path_of(name), recursive=True)

    def _write(self, file: str, payload: dict[str, Any]) -> str:
        buffer = io.BytesIO()
        torch.save(payload, buffer)
        content = buffer.getvalue()
        self._fs.pipe_file(posixpath.join(self._root, file), content)
        return hashlib.sha256(content).hexdigest()

    def _read(self, file: str) -> dict[str, Any]:
        content = self._fs.cat_file(posixpath.join(self._root, file))
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)

    def _raise_first(self, name: str, problems: list[str | None]) -> None:
        for problem in problems:
            if problem is not None:
                raise CheckpointError(f"Writing {join(self.uri, name)} failed on {problem}")
