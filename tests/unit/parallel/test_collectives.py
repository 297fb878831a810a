from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from raygnn.parallel import collectives


@pytest.mark.parametrize(
    ("config", "has_cuda", "rows", "numbers"),
    [
        ("cpu:gloo,cuda:gloo", True, "cpu", "cpu"),
        ("cuda:nccl", True, "cuda", "cuda"),
        (collectives.CUDA_BACKEND, True, "cuda", "cpu"),
        (collectives.CUDA_BACKEND, False, "cpu", "cpu"),  # torch's default, without a GPU
    ],
)
def test_rows_go_over_nccl_and_numbers_over_gloo(monkeypatch, config, has_cuda, rows, numbers):
    monkeypatch.setattr(collectives, "_held", (0, 2))
    monkeypatch.setattr(dist, "get_backend_config", lambda: config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert collectives.communication_device().type == rows
    assert collectives._device_of_numbers().type == numbers
