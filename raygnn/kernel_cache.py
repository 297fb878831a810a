"""Where numba keeps compiled kernels when none of its usual places can be written."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"


def keep_kernels() -> None:
    """Points numba to a temporary folder of this user's, if its own places are read-only.

    These are beside the modules and in the user's cache folder. In a container with a read-only
    root and a user without a home there is neither, and numba refuses to compile at all. Acts
    before numba is imported, and so does nothing that takes time.
    """
    beside = Path(__file__).parent
    if _VARIABLE in os.environ or os.access(beside, os.W_OK) or _can_make(_user_cache()):
        return
    try:
        folder = Path(tempfile.gettempdir(), f"raygnn-kernels-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        # Cached kernels are code: nobody else may have put them there.
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder = Path(tempfile.mkdtemp(prefix="raygnn-kernels-"))
    except OSError:
        return  # no place at all; numba says so
    os.environ[_VARIABLE] = str(folder)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")


def _can_make(folder: Path) -> bool:
    """Makes a folder, as numba would; whether it is there then, and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
