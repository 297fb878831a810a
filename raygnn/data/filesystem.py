"""Local paths and fsspec URIs behind one set of functions, repeated when a store fails."""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import shutil
import stat
import tarfile
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import fsspec

from raygnn.data.storage_retry import is_storage_error, retried
from raygnn.errors import DataError
from raygnn.redaction import redact_text

if TYPE_CHECKING:
    import pyarrow.fs

#: How pyarrow says that Java or Hadoop is not installed, which hdfs:// needs.
_MISSING_LIBRARY = "Unable to load lib"

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(::|://)")

#: Errors for which no second try helps: an archive that is missing or is none
#: (zip://missing), settings that a URI cannot give (github://x), a package that is not installed.
_WRONG_URI = (
    ValueError,
    TypeError,
    ImportError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def redact(uri: str) -> str:
    return redact_text(uri)


def open_fs(uri: str | os.PathLike[str]) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a path or URI, and the path in its notation (absolute on the local disk).

    Raises a DataError if the scheme is unknown, its package is not installed, or its archive is
    missing or damaged.
    """
    text = os.fspath(uri)
    try:
        if "\0" in text:
            raise ValueError("it holds a null character")
        fs, path = fsspec.core.url_to_fs(text)
    except (*_WRONG_URI, OSError) as error:
        if not isinstance(error, _WRONG_URI) and not str(error).startswith(_MISSING_LIBRARY):
            raise
        reason = str(error).partition("\n")[0]  # pyarrow lists where it looked
        raise DataError(
            f"uri={redact(text)!r} is invalid: {reason}. Use a path, or a scheme that fsspec can "
            "open here. [data-uri]"
        ) from error
    return fs, path


def is_remote(uri: str | os.PathLike[str]) -> bool:
    """Whether the bytes are not on a local disk, so that they cannot be memory-mapped."""
    text = os.fspath(uri)
    if not _SCHEME.match(text):
        return False
    return not text.startswith(("file://", "local://"))


def absolute(uri: str | os.PathLike[str], folder: str = "") -> str:
    """A URI that means the same in any folder: workers run in other folders than the driver.

    `folder`: start of relative paths. Default: the current folder.
    """
    text = os.fspath(uri)
    if is_remote(text):
        return text
    if folder and not text.startswith("~"):
        text = join(folder, text)
    return str(open_fs(text)[1])


def join(uri: str | os.PathLike[str], *parts: str) -> str:
    """Joins parts to a path or URI. An absolute path or URI among the parts replaces the start."""
    joined = os.fspath(uri)
    for part in parts:
        if _SCHEME.match(part) or part.startswith("/"):
            joined = part
        elif joined.endswith("/") or not joined:
            joined += part
        else:
            joined = f"{joined}/{part}"
    return joined


def is_below(uri: str, roots: Sequence[str]) -> bool:
    """Whether a path or URI is one of some folders or below it.

    Local paths are compared after resolving symbolic links and `..`, other URIs as text.
    """
    if "::" in uri.rpartition("://")[2]:  # a chain of file systems leads anywhere
        return False
    place = _canonical(uri)
    return ".." not in place.split("/") and any(
        place == root or place.startswith(f"{root}/") for root in map(_canonical, roots)
    )


def _canonical(uri: str) -> str:
    if not is_remote(uri):
        return os.path.realpath(open_fs(uri)[1]).rstrip("/")
    scheme, _, path = uri.rpartition("://")
    # HTTP servers read %2e%2e as `..`.
    return f"{scheme}://{posixpath.normpath(unquote(path).lstrip('/'))}"


def check_regular(uri: str, place: str) -> None:
    """Raises a DataError if a local path is a device, a pipe or a socket, which may never end."""
    if is_remote(uri):
        return
    path = open_fs(uri)[1]
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if not os.path.islink(path):
            return  # opening it raises the error
        raise DataError(
            f"{place} is a broken symbolic link. Write the file again. [data-file-irregular]"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(
            f"{place} is invalid: it is not a regular file. Name another one. [data-file-irregular]"
        )


@retried
def read_bytes(uri: str | os.PathLike[str]) -> bytes:
    """Reads a whole file. Raises a DataError if it is missing or not a regular file."""
    fs, path = open_fs(uri)
    named = f"uri={redact(os.fspath(uri))!r}"
    check_regular(os.fspath(uri), named)
    try:
        content: bytes = fs.cat_file(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        text = os.fspath(uri)
        where = "" if is_remote(text) or os.path.isabs(text) else f" in {os.getcwd()}"
        raise DataError(
            f"{named} is invalid: there is no such file{where}. Check the path. [data-file-missing]"
        ) from error
    return content


def read_text(uri: str | os.PathLike[str]) -> str:
    """Reads a UTF-8 text file. Raises a DataError if it is missing or not UTF-8."""
    try:
        return read_bytes(uri).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"uri={redact(os.fspath(uri))!r} is invalid: it is not UTF-8 text: {error}. Write it "
            "again. [data-file-encoding]"
        ) from error


@contextmanager
def reading_input(uri: str | os.PathLike[str]) -> Iterator[None]:
    """Reports failures of storage within a block as a DataError about the user's input."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        cause, location = " ".join(redact(str(error)).split()), redact(os.fspath(uri))
        raise DataError(
            f"uri={location!r} is invalid: it cannot be read ({cause}). Check that this user "
            "may read it. [data-unreadable]"
        ) from error


@contextmanager
def naming_missing(where: str) -> Iterator[None]:
    """Reports a missing file within a block as a DataError that names it `where`."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(
            f"{where}: there is no such file. Check the path. [prepare-file-missing]"
        ) from error


def _fresh(uri: str | os.PathLike[str]) -> tuple[fsspec.AbstractFileSystem, str]:
    """Opens the filesystem without its cached listings, since others write too."""
    fs, path = open_fs(uri)
    fs.invalidate_cache()
    return fs, path


@retried
def exists(uri: str | os.PathLike[str]) -> bool:
    fs, path = _fresh(uri)
    is_there: bool = fs.exists(path)
    return is_there


@retried
def files_below(uri: str | os.PathLike[str]) -> dict[str, int]:
    """Current size of all files below a folder, by relative path; empty if it does not exist."""
    fs, path = _fresh(uri)
    files: dict[str, dict[str, Any]] = fs.find(path, detail=True) if fs.exists(path) else {}
    return {posixpath.relpath(name, path): entry["size"] for name, entry in files.items()}


@retried
def folder_names(uri: str | os.PathLike[str]) -> list[str]:
    fs, path = _fresh(uri)
    try:
        entries = fs.ls(path, detail=True)
    except FileNotFoundError:
        return []
    folders = (entry["name"] for entry in entries if entry["type"] == "directory")
    return [name.rstrip("/").rsplit("/", 1)[-1] for name in folders]


@retried
def delete(uri: str | os.PathLike[str]) -> None:
    fs, path = open_fs(uri)
    if not is_remote(uri):  # fsspec asks for the current folder, which may be gone
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        return
    fs.invalidate_cache()
    if fs.exists(path):
        fs.rm(path, recursive=True)


def write_text(uri: str | os.PathLike[str], text: str) -> None:
    write_bytes(uri, text.encode("utf-8"))


@retried
def write_bytes(uri: str | os.PathLike[str], content: bytes) -> None:
    """Writes a whole file. Readers see the old or the new one, never a part.

    Object stores show only complete objects, so a plain write is atomic there.
    """
    fs, path = open_fs(uri)
    if is_remote(uri):
        fs.pipe_file(path, content)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _written_beside(target, content) as temporary:
        temporary.replace(target)


def create_bytes(uri: str, content: bytes) -> None:
    """Writes a whole file that does not exist yet, and returns when it is durable.

    If several writers create one file, one succeeds. A write whose answer was lost is repeated, and
    may then find its own file.

    Raises:
        FileExistsError: the file exists.
        DataError: the store cannot create files exclusively.
    """
    if is_remote(uri):
        _create_object(uri, content)
        return
    target = Path(open_fs(uri)[1])
    with _written_beside(target, content) as temporary:
        os.link(temporary, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _written_beside(target: Path, content: bytes) -> Iterator[Path]:
    """A hidden file with this content in the folder of `target`, synced; removed at the end."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@retried
def _create_object(uri: str, content: bytes) -> None:
    if generation(uri) is not None:
        _upload(uri, content, 0)
        return
    fs, path = open_fs(uri)
    if "mode" not in inspect.signature(getattr(fs, "_pipe_file", fs.pipe_file)).parameters:
        raise DataError(
            f"uri={redact(uri)!r} is invalid: two writers could overwrite each other here. Use a "
            "local folder, gs:// or s3://. [data-store-exclusive]"
        )
    fs.pipe_file(path, content, mode="create")


def arrow_filesystem(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """An Arrow file system over fsspec, and the path on it: one client for both."""
    import pyarrow.fs

    fs, path = open_fs(uri)
    if not is_remote(uri):
        return pyarrow.fs.LocalFileSystem(), path
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)), path


# gcsfs uploads larger objects in parts, without a generation.
_MAX_BYTES = 50 << 20


@retried
def generation(uri: str) -> int | None:
    """Version of an object, 0 if it does not exist. None on stores without versions."""
    fs, path = open_fs(uri)
    if "gs" not in fs.protocol:
        return None
    fs.invalidate_cache()
    try:
        return int(fs.info(path)["generation"])
    except FileNotFoundError:
        return 0


def write_if_unchanged(uri: str, content: bytes, version: int | None) -> None:
    """Writes a file like `write_bytes`, if its generation is still the given one.

    A version of None always writes, as does content above 50 MiB. Raises a FileExistsError if
    the object has changed.
    """
    if version is None or len(content) >= _MAX_BYTES:
        write_bytes(uri, content)
    else:
        _upload(uri, content, version)


@retried
def _upload(uri: str, content: bytes, version: int) -> None:
    fs, path = open_fs(uri)
    bucket, key, _ = fs.split_path(path)
    fs.call(
        "POST",
        fs.base.replace("/storage/", "/upload/storage/", 1) + "b/{}/o",
        bucket,
        uploadType="media",
        name=key,
        ifGenerationMatch=version,
        data=content,
        headers={"Content-Type": "application/octet-stream"},
    )
    fs.invalidate_cache()
