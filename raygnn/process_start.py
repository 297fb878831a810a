"""Settings of a process that must be made before torch, numba and PyG are imported."""

from __future__ import annotations

import os
import signal
import stat
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from itertools import pairwise
from pathlib import Path
from types import FrameType, ModuleType

#: Modules that call `exit_normally` when they are imported.
_COMMANDS = ("raygnn.train", "raygnn.tune", "raygnn.infer", "raygnn.prepare")
_STDERR = 2
_MESSAGE = b"stopped by SIGINT: nothing was started\n"


def exit_on_early_interrupt() -> None:
    """Lets Ctrl-C end `python -m raygnn.<command>` with status 130, until `exit_normally`.

    Python would print a traceback of the current import, and imports may swallow a
    KeyboardInterrupt. Does nothing if raygnn is imported as a library, or if SIGINT has another
    handler or is ignored.
    """
    is_command = any(
        option == "-m" and name in _COMMANDS for option, name in pairwise(sys.orig_argv)
    )
    # While Python looks for the module of -m, argv[0] is -m; later it is the module's file.
    if is_command and sys.argv[:1] == ["-m"] and _handler() is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def exit_normally() -> None:
    if _handler() is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _handler() -> object:
    return signal.getsignal(signal.SIGINT)


def _exit(number: int, frame: FrameType | None) -> None:
    try:
        os.write(_STDERR, _MESSAGE)
    finally:
        os._exit(130)


_VARIABLE = "NUMBA_CACHE_DIR"


def keep_kernels() -> None:
    """Points numba to a temporary folder of this user if its default folders are read-only.

    The defaults are next to the modules and in the user's cache folder. A container with a
    read-only root and no home has neither, and numba refuses to compile.
    """
    beside = Path(__file__).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    if _VARIABLE in os.environ or os.access(beside, os.W_OK) or _can_make(cache):
        return
    try:
        folder = Path(tempfile.gettempdir(), f"raygnn-kernels-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        # Cached kernels are code: nobody else may have put them there.
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder = Path(tempfile.mkdtemp(prefix="raygnn-kernels-"))
    except OSError:
        return  # no writable folder: numba prints a warning
    os.environ[_VARIABLE] = str(folder)


def _can_make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


_PACKAGES = frozenset({"torch_geometric.datasets"})


class _OnUse(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _PACKAGES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install_lazy_imports() -> None:
    """Delays the import of slow packages until they are used."""
    sys.meta_path.insert(0, _OnUse())


_SPIN_COUNT = 1_000  # a few microseconds, until the next operator starts


def wait_briefly() -> None:
    """Lets waiting threads sleep after microseconds instead of milliseconds.

    GNU's OpenMP spins by default, which takes the core from the thread it waits for if processes
    share cores. It reads the environment once, when torch is imported. The user's settings stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
