"""Ray ends the process group of workers that it stops, while they train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from raygnn.errors import LostRankError
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import StepTotals
from tests.rank_pool import RankPool
from tests.small_runs import run_rank, small_config

COLLECTIVES: dict[str, Callable[[], Any]] = {
    "all_reduce_sum": lambda: collectives.all_reduce_sum(torch.ones(2)),
    "broadcast": lambda: collectives.broadcast(torch.ones(2)),
    "broadcast_object": lambda: collectives.broadcast_object(1),
    "gather_objects": lambda: collectives.gather_objects(1),
    "gather_numbers": lambda: collectives.gather_numbers([1]),
    "gather_rows": lambda: collectives.gather_rows(torch.ones(2)),
    "barrier": collectives.barrier,
}


class EndsGroup(Callback):
    """Does what Ray does to a worker, after the third step."""

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        if engine.position.step == 3:
            dist.destroy_process_group()


def call_after_the_end(name: str) -> tuple[str | None, int, int]:
    """The id of the error, the rank and the number of ranks."""
    with collectives.group_held():
        dist.destroy_process_group()
        try:
            COLLECTIVES[name]()
        except LostRankError as error:
            return error.id, collectives.rank(), collectives.world_size()
    return None, -1, -1


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_without_its_group_is_refused(ranks: RankPool, name: str) -> None:
    answers = ranks.run(call_after_the_end, 2, name)
    assert answers == [("run-group-ended", 0, 2), ("run-group-ended", 1, 2)]


def test_what_is_held_is_let_go() -> None:
    with collectives.group_held():
        assert (collectives.rank(), collectives.world_size()) == (0, 1)
    assert (collectives.rank(), collectives.world_size()) == (0, 1)


def test_no_rank_trains_on_alone(ranks: RankPool, small_bundle_path: str, tmp_path: Path) -> None:
    callback = {"type": f"{__name__}.EndsGroup"}
    config = small_config(tmp_path, callbacks=[callback])
    with pytest.raises(RuntimeError, match="run-group-ended"):
        ranks.run(run_rank, 2, config, small_bundle_path)
    folder = tmp_path / "run"
    assert not (folder / "model.safetensors").exists()
    assert not list(folder.glob("checkpoints/step-*"))
