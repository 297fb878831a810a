"""The run folder's file system in the form that Ray takes."""

from __future__ import annotations

import pyarrow.fs

from raygnn.data.filesystem import is_remote, open_fs


def arrow_filesystem(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """An Arrow file system over fsspec, and the path on it: one client for both worlds."""
    fs, path = open_fs(uri)
    if not is_remote(uri):
        return pyarrow.fs.LocalFileSystem(), path
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)), path
