"""Checkpoints on any fsspec URI: complete or missing, and verified before use."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raygnn import __version__
from raygnn.data.filesystem import (
    delete,
    exists,
    folder_names,
    join,
    open_fs,
    read_bytes,
    redact,
    write_bytes,
    write_text,
)
from raygnn.documents import parse_json
from raygnn.errors import CheckpointError, DataError, RuleError
from raygnn.models.node_inputs import RowShare
from raygnn.outputs.checkpoints.names import MANIFEST, CheckpointName
from raygnn.parallel import collectives
from raygnn.parallel.sharded_tables import ShardedTables

STATE = "state.pt"
CONFIG = "config.yaml"
FORMAT = "raygnn/checkpoint-v1"


class CheckpointStore:
    """The `checkpoints` folder of one run.

    A checkpoint is a folder of files with `manifest.json`, which has their sha256 and is written
    last: a folder without it, or with a wrong sum, is never loaded. `write` writes the files that
    make a checkpoint valid: its manifest and the pointers.
    """

    def __init__(self, uri: str, write: Callable[[str, str], None] = write_text) -> None:
        self.uri = uri
        self._write = write

    def path_of(self, name: str) -> str:
        return open_fs(join(self.uri, name))[1]

    def write_parts(self, name: str, parts: dict[str, bytes]) -> None:
        """Writes this rank's files of an unfinished checkpoint, by name."""
        fs, path = open_fs(join(self.uri, name))
        fs.makedirs(path, exist_ok=True)
        for file, content in parts.items():
            write_bytes(join(self.uri, name, file), content)

    def finish(self, name: str, files: dict[str, str], world_size: int) -> None:
        """Completes a checkpoint with its manifest, after all files are written. Rank 0 only."""
        manifest = {
            "format": FORMAT,
            "files": files,
            "world_size": world_size,
            "versions": {"raygnn": __version__, "torch": torch.__version__},
        }
        self._write(join(self.uri, name, MANIFEST), json.dumps(manifest, indent=1))

    def load(
        self, name: str, rank: int, tables: ShardedTables | None = None
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Reads and verifies a checkpoint: the shared state, and this rank's own if the number of
        workers is the same. Raises a CheckpointError if it is incomplete or damaged.

        Args:
            tables: sharded learned rows of this rank; None reads all rows.
        """
        manifest = self.manifest(name)
        state = self._load(name, STATE, manifest)
        if LAYOUT in state:

            def read(of_rank: int) -> RowsByPath:
                return self._load(name, rows_file(of_rank), manifest)

            put_rows(state, read, manifest["world_size"], tables)
        local = rank_file(rank)
        if manifest["world_size"] != collectives.world_size() or local not in manifest["files"]:
            return state, None
        return state, self._load(name, local, manifest)

    def manifest(self, name: str) -> dict[str, Any]:
        """Raises a CheckpointError if it is missing or foreign."""
        uri = join(self.uri, name, MANIFEST)
        try:
            manifest: dict[str, Any] = parse_json(read_bytes(uri))
            assert isinstance(manifest["files"], dict)
            assert isinstance(manifest["world_size"], int)
        except DataError as error:
            raise UnfinishedError(f"{join(self.uri, name)} was never finished") from error
        except (RuleError, KeyError, TypeError, AssertionError) as error:
            raise CheckpointError(
                f"{uri} is not a checkpoint's manifest ({error}). [checkpoint-manifest]"
            ) from error
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"{uri} has the format {manifest.get('format')}, not {FORMAT}",
                id="checkpoint-format",
            )
        return manifest

    def is_finished(self, name: str) -> bool:
        """Whether a checkpoint was completed; it may be damaged since."""
        return exists(join(self.uri, name, MANIFEST))

    def verify(self, name: str) -> dict[str, Any]:
        """Verifies a checkpoint and returns its manifest. CheckpointErrors name the file."""
        manifest = self.manifest(name)
        for file in manifest["files"]:
            self.read(name, file, manifest)
        return manifest

    def read(self, name: str, file: str, manifest: dict[str, Any]) -> bytes:
        """One verified file. Raises a CheckpointError for a damaged one."""
        uri = join(self.uri, name, file)
        try:
            content = read_bytes(uri)
        except DataError as error:
            raise CheckpointError(f"{uri} is missing [checkpoint-file-missing]") from error
        if hashlib.sha256(content).hexdigest() != manifest["files"][file]:
            raise CheckpointError(
                f"{uri} is damaged: its sha256 differs from the manifest [checkpoint-damaged]"
            )
        return content

    def parsed_names(self) -> list[CheckpointName]:
        """In the order of writing."""
        names = [CheckpointName.parse(text) for text in folder_names(self.uri)]
        known = [name for name in names if name is not None]
        return sorted(known, key=lambda name: (name.number, str(name)))

    def names(self) -> list[str]:
        return [str(name) for name in self.parsed_names()]

    def newest_valid(self, names: list[str]) -> tuple[str | None, dict[str, str]]:
        """The newest valid one of some checkpoints, oldest first, and why each newer one was
        skipped. Raises a CheckpointError if some are finished, and each of these is damaged.
        """
        passed_over: dict[str, str] = {}
        damaged = False
        for name in reversed(names):
            try:
                self.verify(name)
            except CheckpointError as error:
                damaged |= not isinstance(error, UnfinishedError)
                passed_over[name] = str(error)
            else:
                return name, passed_over
        if damaged:
            lines = [f"{name}: {reason}" for name, reason in passed_over.items()]
            raise CheckpointError(
                "No checkpoint of this run can be read:\n" + "\n".join(lines) + "\nSet "
                "checkpoint.resume to never and run.overwrite to true to start from scratch.",
                id="checkpoint-none-valid",
            )
        return None, passed_over

    def pointer(self, which: str) -> str | None:
        """The name in the pointer `best` or `last`; None if it is missing or damaged."""
        uri = join(self.uri, f"{which}.json")
        try:
            name = parse_json(read_bytes(uri))["checkpoint"] if exists(uri) else None
        except (RuleError, TypeError, KeyError):
            return None
        return name if isinstance(name, str) else None

    def point(self, which: str, name: str | None) -> None:
        """Sets the pointer `best` or `last` to a finished checkpoint, or none. Rank 0 only."""
        uri = join(self.uri, f"{which}.json")
        if name is None:
            delete(uri)
        elif self.pointer(which) != name:
            self._write(uri, json.dumps({"checkpoint": name}))

    def remove(self, name: str) -> None:
        delete(join(self.uri, name, MANIFEST))
        delete(join(self.uri, name))

    def _load(self, name: str, file: str, manifest: dict[str, Any]) -> dict[Any, Any]:
        return decode(self.read(name, file, manifest), join(self.uri, name, file))


def find_checkpoint(source: str) -> tuple[CheckpointStore, str | None, bool]:
    """The store and name of a checkpoint, or of the newest complete one of a run, if any; and
    whether `source` is a run.
    """
    source = source.rstrip("/")
    if exists(join(source, MANIFEST)):
        root, _, name = source.rpartition("/")
        return CheckpointStore(root or "."), name, False
    store = CheckpointStore(join(source, "checkpoints"))
    newest, _ = store.newest_valid(store.names())
    return store, newest, True


class UnfinishedError(CheckpointError):
    """The checkpoint has no manifest: its writer died before it was complete."""


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def rows_file(rank: int) -> str:
    return f"rows-{rank}.pt"


def encode(state: dict[Any, Any]) -> bytes:
    """A state as file content, independent of later changes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def decode(content: bytes, uri: str) -> dict[Any, Any]:
    """A state from file content: tensors and plain values. Raises a CheckpointError for others."""
    cause: Exception | None = None
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if isinstance(state, dict):
            return state
    except (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, EOFError) as error:
        cause = error
    raise CheckpointError(
        f"{redact(uri)} is invalid: it was not written by raygnn, and unpickling other files could "
        "run code. Choose another checkpoint. [checkpoint-not-a-state]"
    ) from cause


def gather_files(parts: dict[str, bytes]) -> dict[str, str]:
    """sha256 of the files of all ranks, by name. Collective: all ranks must call."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    return {name: file for part in collectives.gather_objects(files) for name, file in part.items()}


#: Keys from an engine's state down to a tensor.
Path = tuple[str | int, ...]
RowsByPath = dict[Path, Tensor]

#: Key of the layout of rows stored separately: name of the table, all of its rows, of a block.
LAYOUT = "rows"


def take_rows(state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer) -> RowsByPath:
    """Removes this rank's rows from an engine's state, and marks them as missing there."""
    rows: RowsByPath = {}
    layout: dict[Path, tuple[str, int, int]] = {}
    held = {name: len(weight) for name, weight in tables.weights.items()}
    for path, name in list(_paths(state, tables, optimizer, held)):
        rows[path] = _section(state, path).pop(path[-1])
        layout[path] = name, tables.num_rows[name], tables.share_of(name).block_rows
    if layout:
        state[LAYOUT] = layout
    return rows


def keep_held_rows(state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer) -> None:
    """Reduces a complete state to this rank's rows."""
    for path, name in list(_paths(state, tables, optimizer, tables.num_rows)):
        section = _section(state, path)
        section[path[-1]] = section[path[-1]][tables.share_of(name).ids(tables.num_rows[name])]


def put_rows(
    state: dict[str, Any],
    read: Callable[[int], RowsByPath],
    world_size: int,
    tables: ShardedTables | None,
) -> None:
    """Puts removed rows back into a state, with one rank's file in memory at a time.

    Args:
        read: reads a rank's rows, by its number, of the `world_size` that have written.
        tables: tables with only this rank's rows; others get all rows.
    """
    layout = state.pop(LAYOUT)
    names = frozenset() if tables is None else tables.names
    wanted = {
        path: tables.share_of(name) if tables is not None and name in names else None
        for path, (name, *_) in layout.items()
    }
    for rank in range(world_size):
        written = {path: RowShare(rank, world_size, block) for path, (*_, block) in layout.items()}
        here = [path for path in layout if _may_overlap(written[path], wanted[path])]
        rows = read(rank) if here else {}
        for path in here:
            _copy(rows[path], written[path], state, path, layout[path][1], wanted[path])


def _may_overlap(written: RowShare, wanted: RowShare | None) -> bool:
    if wanted is None or written == wanted:
        return True
    return (written.world_size, written.block_rows) != (wanted.world_size, wanted.block_rows)


def _copy(
    rows: Tensor,
    written: RowShare,
    state: dict[str, Any],
    path: Path,
    num_rows: int,
    wanted: RowShare | None,
) -> None:
    places = written.ids(num_rows)
    num_kept = num_rows
    if wanted is not None:
        is_own = wanted.owner(places) == wanted.rank
        places, rows = wanted.place(places[is_own]), rows[is_own]
        num_kept = wanted.num_held(num_rows)
    section = _section(state, path)
    if path[-1] not in section:
        section[path[-1]] = rows.new_zeros(num_kept, *rows.shape[1:])
    section[path[-1]][places] = rows


def _paths(
    state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer, sizes: Mapping[str, int]
) -> Iterator[tuple[Path, str]]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    index = {id(weight): i for i, weight in enumerate(weights)}
    for name, weight in tables.weights.items():
        slots = state["optimizer"]["state"].get(index.get(id(weight)), {})
        places: list[Path] = [("model", name), ("best", "weights", name), ("average", name)]
        places += [("optimizer", "state", index[id(weight)], key) for key in slots]
        for path in places:
            value = (_section(state, path) or {}).get(path[-1])
            if isinstance(value, Tensor) and value.shape[:1] == (sizes[name],):
                yield path, name


def _section(state: Any, path: Path) -> Any:
    for key in path[:-1]:
        state = state[key]
    return state
