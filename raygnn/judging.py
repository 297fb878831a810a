"""A model on the test rows of another run, so that both can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from raygnn.console import say
from raygnn.data.filesystem import exists, is_remote
from raygnn.errors import RunError
from raygnn.inference.evaluate import Judged
from raygnn.outputs.stored_run import StoredRun
from raygnn.trained_model import load


def judge_run(run: StoredRun, newest: StoredRun, graph: str | None) -> dict[str, Any]:
    """Metrics of a run's model on the test rows of the newest run, as `metrics.json` has them.
    Arguments and errors: see `judge`.
    """
    judged = judge(run, newest, graph)
    assert judged.rows is not None
    return {
        **{f"test/{name}": value for name, value in judged.metrics.items()},
        "intervals": {f"test/{name}": ends for name, ends in judged.intervals.items()},
        "standard_errors": {f"test/{name}": e for name, e in judged.standard_errors.items()},
        "test_rows": judged.rows.digest,
    }


def judge(
    run: StoredRun,
    newest: StoredRun,
    graph: str | None,
    allow_outside: Sequence[str] = (),
    allow_modules: Sequence[str] = (),
    *,
    with_outputs: bool = False,
) -> Judged:
    """Evaluates a run's model on the test rows of the newest run.

    Args:
        graph: of the newest run; None takes that of its config, if it is local.
        allow_outside: as `data.allow_outside`, for this graph.
        allow_modules: modules whose classes the config of the run may name.
        with_outputs: see `TrainedModel.judge`.
    Raises:
        RaygnnError: the model, the graph or the rows are not there.
    """
    uri = graph or newest.data.get("uri")
    if not uri or (graph is None and (is_remote(uri) or not exists(uri))):
        raise RunError(
            f"the graph of {newest.name} is not here. Name it with --graph. [report-no-graph]"
        )
    say(f"{run.name}: predicting the test rows of {newest.name}")
    splits = json.dumps(newest.data.get("splits"))
    keys = ["--data.splits", splits, "--data.allow_outside", json.dumps([*allow_outside])]
    model = load(run.uri, keys, allow_modules=allow_modules)
    judged = model.judge(uri, split="test", with_outputs=with_outputs)
    rows = judged.rows
    if rows is None or rows.digest != newest.metrics["test_rows"]:
        raise RunError(
            f"{uri} no longer has the test rows of {newest.name}. Name its graph with --graph; to "
            "retrain on it, set another --run.name. [report-other-rows]"
        )
    if any(rows.overlaps(sketch) for sketch in run.metrics["learned_rows"]):
        raise RunError(
            f"{run.name} learned from some of the test rows of {newest.name}. Train both with the "
            "same splits. [report-learned-rows]"
        )
    return judged
