"""What a run prints on a real terminal, and in a file."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import raygnn.train
from tests.small_runs import small_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, small_tables: str) -> str:
    content = small_config(tmp_path / "runs", scaling__num_workers=0, data__uri=small_tables)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def _on_terminal(config: str) -> str:
    """What training writes to a terminal, and that it succeeds."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "raygnn.train", config]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=ROOT, env=env)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    text = b"".join(parts).decode()
    assert process.wait() == 0, text
    return text


def test_a_terminal_gets_lines(config):
    text = _on_terminal(config)
    assert "\x1b" not in text.removesuffix("\x1b[0m")  # which colorama prints at exit
    assert re.search(r"\[raygnn\] epoch 2/2, step +\d+/\d+ \| val/loss", text)


def test_a_file_gets_lines_without_codes(config, capfd):
    assert raygnn.train.main([config]) == 0
    shown = capfd.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert all(line.startswith("[raygnn] ") for line in lines)
    assert any(re.search(r"epoch 2/2, step +\d+/\d+ \| val/loss .* left$", line) for line in lines)
    assert any("300 nodes, 8 features, 3 classes; train" in line for line in lines)


def test_json_holds_every_event(config, capfd):
    assert raygnn.train.main([config, "--json"]) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    kinds = {event["event"] for event in events}
    assert {"message", "start", "step", "validation", "end", "test", "output", "usage"} <= kinds
    result = events.pop()
    assert (result["event"], result["exit_status"]) == ("result", 0)
    assert Path(result["run"], "metrics.json").exists()
    (tested,) = [event for event in events if event["event"] == "test"]
    assert result["metrics"]["test/accuracy"] == tested["metrics"]["test/accuracy"]
    last = [event for event in events if event["event"] == "validation"][-1]
    assert (last["epoch"], last["epochs"], last["left_s"]) == (2, 2, 0.0)
    assert 0 <= last["metrics"]["val/accuracy"] <= 1
    documented = (ROOT / "docs" / "training.md").read_text()
    for event in events:
        assert f"| `{event['event']}` |" in documented
        assert all(f"`{name}`" in documented for name in event)


def test_quiet_prints_nothing_but_warnings(config, capfd):
    assert raygnn.train.main([config, "--quiet"]) == 0
    shown = capfd.readouterr()
    assert all(line.startswith("[raygnn] warning: ") for line in shown.out.splitlines())
    assert shown.err == ""
