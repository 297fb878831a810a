"""Memory that a step frees is there for the next one."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from raygnn.loops.process import keep_freed_memory

NUM_ELEMENTS = 4 << 20  # 16 MiB of float32
_PAGES = 4 * NUM_ELEMENTS // resource.getpagesize()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_memory_that_is_taken_again_is_not_faulted_in_again():
    assert keep_freed_memory()
    torch.ones(NUM_ELEMENTS)
    faults = []
    for _ in range(3):  # a busy system may take pages back meanwhile, hardly in each round
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(10):
            torch.ones(NUM_ELEMENTS)
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    assert min(faults) < 5 * _PAGES  # else all ten are faulted in, page by page


def test_a_c_library_without_such_settings_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()
