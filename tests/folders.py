"""Folders that tests compare, or copy into a bucket."""

from __future__ import annotations

from pathlib import Path

from raygnn.data.filesystem import open_fs


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """The content of all files below a folder whose names match, by relative path."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def upload(folder: Path, uri: str) -> str:
    """Copies all files of a folder; returns the URI."""
    fs, path = open_fs(uri)
    for name, content in contents(folder).items():
        fs.pipe_file(f"{path}/{name}", content)
    return uri
