"""Each rank traces the same steps into a file of its own."""

from __future__ import annotations

import gzip
import json

from tests.small_runs import run_rank, small_config


def test_each_rank_traces_the_steps_of_the_batches(ranks, small_bundle_path, tmp_path):
    folder = tmp_path / "traces"
    config = small_config(
        tmp_path,
        scaling__num_workers=2,
        loader={"batch_size": 20, "eval_batch_size": 100},
        training={"max_steps": 5},
        profiler={"begin_batch": 4, "end_batch": 7, "logs_uri": str(folder)},
        checkpoint={"policy": "none"},
    )
    ranks.run(run_rank, 2, config, small_bundle_path)
    traces = sorted(folder.iterdir())
    assert [trace.name.partition(".")[0] for trace in traces] == ["rank-0", "rank-1"]
    for trace in traces:
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        names = {e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#")}
        # Batches 4 to 7 are in steps 2 to 4 of two ranks; a trace counts its own from 0.
        assert names == {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"}
