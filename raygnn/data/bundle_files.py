"""The files of a bundle's arrays, as ingest writes them and readers map them."""

from __future__ import annotations

from pathlib import Path

INDPTR = "indptr.npy"
INDICES = "indices.npy"
SPLIT = "split.npy"


def column_path(folder: Path, name: str, part: str = "") -> Path:
    """The file of a column; sparse columns have the parts indptr, indices and values."""
    return folder / "columns" / (f"{name}.{part}.npy" if part else f"{name}.npy")
