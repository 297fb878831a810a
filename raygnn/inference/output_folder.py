"""A folder of Parquet tables that is complete or missing, written by all ranks."""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data import filesystem
from raygnn.data.arrays import sync_folder
from raygnn.data.filesystem import redact
from raygnn.data.tables.files import read_parquet
from raygnn.errors import RunError

# Readers of Parquet folders skip names that begin so.
MANIFEST = "_manifest.json"
_RECORDS = "_ray"
_REPLACED = ".replaced"
_ALIVE = ".alive"  # locked by the process that fills the folder
_OURS = re.compile(
    r"[^/]+/part-\d{5,}-of-\d{5,}\.parquet|_manifest\.json|_ray/.*|\.replaced/.*|\.alive"
)


@dataclass(frozen=True)
class OutputFolder:
    """Tables at `<uri>/<table>/part-00000-of-00001.parquet`, and `<uri>/_manifest.json`.

    On a local disk (or one that all workers mount), files are written into a folder next to the
    target, which is renamed when complete. On a remote store they are written in place, and the
    manifest last: a folder without it is incomplete, and the next call replaces it. Crosses process
    boundaries.

    Attributes:
        staged_uri: folder in which files are written.
    """

    uri: str
    staged_uri: str

    @classmethod
    def check(cls, uri: str, overwrite: bool = False) -> OutputFolder:
        """Raises a RunError if it is a file, or has content other than that of an earlier call, or
        that of one without `overwrite`. Writes nothing.
        """
        fs, path, names = _listed(uri)
        if fs.isfile(path):
            raise RunError(
                f"out={redact(uri)!r} is invalid: it is a file. Name a folder. [output-is-file]"
            )
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if foreign:
            raise RunError(
                f"out={redact(uri)!r} is invalid: the folder holds files that raygnn.infer did not "
                f"write, such as {foreign[0]}. Name another folder. [output-foreign-files]"
            )
        is_whole = not filesystem.is_remote(uri) or MANIFEST in names
        if names and is_whole and not overwrite:
            raise RunError(
                f"out={redact(uri)!r} is invalid: it holds an earlier output ({len(names)} files). "
                "Name another folder, or pass --overwrite (overwrite=True). [output-not-empty]"
            )
        if filesystem.is_remote(uri):
            return cls(uri, uri)
        return cls(path, f"{path}.partial-{secrets.token_hex(4)}")

    @classmethod
    def of_file(cls, uri: str) -> OutputFolder:
        """Parts of a table that `finish_file` joins."""
        place = uri if filesystem.is_remote(uri) else _listed(uri)[1]
        return cls(place, f"{place}.partial-{secrets.token_hex(4)}")

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Context of writing files, which are removed after an exception.

        One process enters it before any writes, and calls `finish` at its end. Leftovers of killed
        calls are removed first. Raises a RunError if the folder is not writable.
        """
        self._make_room()
        with ExitStack() as stack:
            if self._is_staged:
                with suppress(filelock.Timeout):  # no locks here: it is never taken for left over
                    stack.enter_context(_held(Path(self.staged_uri)))
            try:
                yield
            except BaseException:
                self._abandon()
                raise

    def _make_room(self) -> None:
        try:
            if self._is_staged:
                self._remove_leftovers()
                Path(self.staged_uri).mkdir(parents=True)
            else:
                self._remove_files()
        except OSError as error:
            raise RunError(
                f"out={redact(self.uri)!r} is invalid: it cannot be written ({error}). Name a "
                "folder or bucket that this user may write to. [output-unwritable]"
            ) from error

    def write(self, table: str, part: int, num_parts: int, rows: pa.Table) -> dict[str, Any]:
        """Writes one file. Returns its entry in the manifest."""
        name = f"{table}/part-{part:05d}-of-{num_parts:05d}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer)
        content = buffer.getvalue()
        filesystem.write_bytes(filesystem.join(self.staged_uri, name), content.to_pybytes())
        return {"file": name, "num_rows": rows.num_rows, "num_bytes": content.size}

    @property
    def records_uri(self) -> str:
        return filesystem.join(self.staged_uri, _RECORDS)

    def finish(self, content: Mapping[str, Any]) -> None:
        """Writes the manifest, whose `tables` have the results of `write`, and shows the folder.

        One process calls it, after all have written. Raises a RunError if a file is missing,
        because another machine wrote it to its own disk.
        """
        self._written(content)
        filesystem.delete(self.records_uri)
        filesystem.write_text(
            filesystem.join(self.staged_uri, MANIFEST), json.dumps(content, indent=1) + "\n"
        )
        if not self._is_staged:
            return
        staged, target = Path(self.staged_uri), Path(self.uri)
        sync_folder(staged)
        if target.exists():
            target.rename(staged / _REPLACED)
        os.rename(staged, target)
        shutil.rmtree(target / _REPLACED, ignore_errors=True)
        (target / _ALIVE).unlink(missing_ok=True)

    def finish_file(
        self, content: Mapping[str, Any], write: Callable[[pa.Table, str], None]
    ) -> None:
        """Joins the parts of the only table and writes it with `write`, as `finish` does."""
        write(pa.concat_tables([read_parquet(uri) for uri in self._written(content)]), self.uri)
        self._abandon()

    def _written(self, content: Mapping[str, Any]) -> list[str]:
        uris = []
        for table in content["tables"].values():
            for file in table["files"]:
                uris.append(filesystem.join(self.staged_uri, file["file"]))
                if not filesystem.exists(uris[-1]):
                    raise RunError(
                        f"out={redact(self.uri)!r} is invalid: {file['file']} of a worker is not "
                        "seen here. Name a bucket or a shared folder. [output-not-shared]"
                    )
        return uris

    def _abandon(self) -> None:
        if self._is_staged:
            self._discard(Path(self.staged_uri))
        else:
            self._remove_files()

    @property
    def _is_staged(self) -> bool:
        return not filesystem.is_remote(self.uri)

    def _remove_leftovers(self) -> None:
        target = Path(self.uri)
        pattern = f"{glob.escape(target.name)}.partial-{'[0-9a-f]' * 8}"
        for folder in target.parent.glob(pattern):
            with suppress(filelock.Timeout), _held(folder):
                self._discard(folder)

    def _discard(self, staged: Path) -> None:
        target = Path(self.uri)
        if (staged / _REPLACED).exists() and not target.exists():
            (staged / _REPLACED).rename(target)
        shutil.rmtree(staged, ignore_errors=True)

    def _remove_files(self) -> None:
        fs, path, names = _listed(self.staged_uri)
        # The manifest is removed first, so that no reader considers the rest complete.
        for name in sorted(names, key=lambda name: name != MANIFEST):
            if _OURS.fullmatch(name):
                fs.rm_file(f"{path}/{name}")


def _listed(uri: str) -> tuple[Any, str, list[str]]:
    """File system, path, and names of all files below it."""
    fs, path = filesystem.open_fs(uri)
    path = path.rstrip("/")
    fs.invalidate_cache()  # remote listings are cached, and others write there too
    files = fs.find(path) if fs.exists(path) else []
    return fs, path, [name.removeprefix(path + "/") for name in files]


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Marks a folder as being filled. Raises filelock.Timeout if another process fills it."""
    lock = filelock.FileLock(folder / _ALIVE)
    try:
        lock.acquire(timeout=0)
    except NotImplementedError as error:  # a file system without locks
        raise filelock.Timeout(str(folder)) from error
    try:
        yield
    finally:
        lock.release()
