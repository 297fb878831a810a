"""A storage that fails on demand: `faulty://<local path>`, a file system of fsspec."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

#: Names the faults of a process, as JSON: a list of the arguments of `Fault`.
VARIABLE = "RAYGNN_TEST_FAULTS"


@dataclass
class Fault:
    """What fails.

    Attributes:
        path: pattern of the paths whose writing or reading fails.
        number: name of the error's number.
        skip: how many operations come through first.
        times: how many fail then; None is all.
        reads: whether it is reading that fails, and not writing.
        delay_s: seconds that the operation takes instead of failing.
    """

    path: str
    number: str = "EIO"
    skip: int = 0
    times: int | None = None
    reads: bool = False
    delay_s: float | None = None

    def strike(self, path: str, *, reads: bool) -> None:
        """Raises OSError if this operation is one to fail."""
        if reads != self.reads or not re.search(self.path, path) or self.times == 0:
            return
        if self.skip > 0:
            self.skip -= 1
            return
        if self.times is not None:
            self.times -= 1
        if self.delay_s is not None:
            time.sleep(self.delay_s)
            return
        number = getattr(errno, self.number)
        raise OSError(number, os.strerror(number), path)


_FAULTS: list[Fault] | None = None


def _strike(path: str, *, reads: bool) -> None:
    global _FAULTS
    if _FAULTS is None:
        _FAULTS = [Fault(**arguments) for arguments in json.loads(os.environ.get(VARIABLE, "[]"))]
    for fault in _FAULTS:
        fault.strike(path, reads=reads)


class FaultyFileSystem(LocalFileSystem):
    """A local folder as a store that may fail.

    A failed write leaves half of a new file, and the old content of one that is there.
    """

    protocol = "faulty"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("faulty://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.makedirs(self._parent(path), exist_ok=True)
        try:
            _strike(path, reads=False)
        except OSError:
            if not self.exists(path):
                super().pipe_file(path, value[: len(value) // 2])
            raise
        super().pipe_file(path, value, **options)

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        if "r" in mode:
            _strike(path, reads=True)
        return super()._open(path, mode, *arguments, **options)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
