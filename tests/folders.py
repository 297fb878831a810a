"""A folder in a bucket."""

from __future__ import annotations

from pathlib import Path

from raygnn.data.filesystem import open_fs


def upload(folder: Path, uri: str) -> str:
    """Copies all files of a folder; returns the URI."""
    fs, path = open_fs(uri)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return uri
