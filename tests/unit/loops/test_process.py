"""Memory that a step frees is there for the next one."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch

import raygnn.train
from raygnn.loops.process import keep_freed_memory
from tests.small_runs import small_bundle, small_config

COUNTS_FAULTS = """
import resource
import torch
from raygnn.loops.process import keep_freed_memory

def step():
    return len([torch.ones(4 << 20) for _ in range(8)])  # 16 MiB each, all freed

torch.set_num_threads(1)
assert keep_freed_memory()
for _ in range(8):
    step()
before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
"""
_PAGES = (128 << 20) // resource.getpagesize()  # of a step


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_memory_that_is_taken_again_is_not_faulted_in_again():
    """In a process of its own: what ran before changes where memory comes from."""
    command = [sys.executable, "-c", COUNTS_FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Without the settings most processes fault three quarters of them in, or all.
    assert int(done.stdout) < 0.1 * _PAGES


def test_a_c_library_without_such_settings_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()


def test_a_run_leaves_the_settings_of_its_process_as_they_were(tmp_path):
    small_bundle(tmp_path)
    uri = str(tmp_path / "tables")
    precision = {"training__matmul_precision": "high"}
    config = small_config(tmp_path, data__uri=uri, scaling__num_workers=0, **precision)
    assert config["deterministic"]
    torch.manual_seed(3)
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    draws = [torch.rand(1)]
    torch.manual_seed(3)
    raygnn.train.fit(config)
    after = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    assert before == after == ("highest", False)
    assert [torch.rand(1)] == draws
