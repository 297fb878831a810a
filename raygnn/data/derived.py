"""What is made of a finished bundle when it is first asked for, and then kept in its folder."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import filelock

from raygnn.data.arrays import sync_folder
from raygnn.errors import DataError


def build_once(folder: Path, build: Callable[[Path], None], what: str, remedy: str) -> Path:
    """Gives a folder, building it first where it is not there: by one process, and as a whole.

    Args:
        build: fills the folder that it is given.
        what: what the folder holds, as messages call it.
        remedy: what to do where the folder cannot be written.
    Raises:
        DataError: it has to be built, and its place cannot be written.
    """
    if folder.exists():
        return folder
    building = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        folder.parent.mkdir(exist_ok=True, parents=True)
        with filelock.FileLock(folder.parent / f"{folder.name}.lock"):
            if folder.exists():
                return folder
            # A live build holds the lock, so these are of dead ones.
            for stale in folder.parent.glob(f".building-{folder.name}-*"):
                shutil.rmtree(stale)
            building.mkdir()
            build(building)
            sync_folder(building)
            building.rename(folder)
    except OSError as error:
        raise DataError(
            f"bundle {folder.parents[1]}: {what} cannot be kept there: {error}. {remedy}"
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder
