"""Memory and random states of a process, and its settings after a run."""

from __future__ import annotations

import io
import platform
import random
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.loops.process import (
    keep_freed_memory,
    random_state,
    restore_random_state,
    seed_micro_batch,
    seed_process,
)
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


def test_a_micro_batch_seeds_by_what_it_is():
    draws = {}
    for epoch in range(2):
        for index in range(3):
            seed_micro_batch(7, epoch, index)
            draws[epoch, index] = torch.rand(4)
    seed_micro_batch(7, 1, 2)
    assert torch.equal(torch.rand(4), draws[1, 2])
    assert len({tuple(d.tolist()) for d in draws.values()}) == 6


def test_states_survive_a_safe_round_trip():
    seed_process(3)
    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    expected = (random.random(), np.random.rand(), torch.rand(2))
    seed_process(4)
    restore_random_state(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    found = (random.random(), np.random.rand(), torch.rand(2))
    assert found[:2] == expected[:2]
    assert torch.equal(found[2], expected[2])
