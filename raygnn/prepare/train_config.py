"""Configs to train with, which `raygnn prepare` writes beside graph.yaml."""

from __future__ import annotations

from typing import Any

from raygnn.config.documents import dump_yaml, parse_yaml
from raygnn.data.filesystem import join, open_fs, read_text, write_text

#: File of the config of a whole graph, in its folder.
CONFIG_NAME = "train.yaml"
_COMMENTS = {
    "on_error: drop": "leaves out rows that cannot be read, and counts them",
    "quantiles: [0.8, 0.9]": "the last tenth of the time is the test",
    "temporal: {}": "reads nothing later than the row that is predicted",
    "fanouts:": "events that could reveal later links are not read",
    "reverse_edges: true": "messages flow both ways",
    "num_workers: 0": "in this process; without this line, workers of Ray train",
}


def write_config(
    folder: str,
    task: str,
    args: dict[str, Any],
    *,
    name: str = CONFIG_NAME,
    about: str = "",
    model: str | None = "Hetero",
    drops: bool = False,
    reverse_edges: bool | None = None,
    splits: dict[str, Any] | None = None,
    temporal: dict[str, Any] | None = None,
    fanouts: dict[str, list[int]] | None = None,
    overwrite: bool = False,
) -> tuple[str, bool]:
    """Writes a config that trains on a graph.

    Args:
        folder: of the graph, as the config names it.
        args: of the task.
        about: lines of comments.
        model: None is the default.
        drops: whether bad rows are left out.
        overwrite: replaces an existing file.
    Returns:
        URI of the config, and whether it was written.
    """
    uri = join(folder, name)
    fs, path = open_fs(uri)
    if fs.exists(path) and not overwrite:
        return uri, False
    on_error = "drop" if drops else None
    sampling = {"temporal": temporal, "fanouts": fanouts}
    data = {"uri": folder, "on_error": on_error, "reverse_edges": reverse_edges, "splits": splits}
    config = {
        "data": {key: value for key, value in data.items() if value is not None},
        "task": {"type": task, "args": args},
        "model": model,
        "sampling": {key: value for key, value in sampling.items() if value is not None} or None,
        "scaling": {"num_workers": 0},
    }
    content = {key: value for key, value in config.items() if value is not None}
    lines = dump_yaml(content, flow_leaves=True).splitlines()
    for i, line in enumerate(lines):
        notes = [note for text, note in _COMMENTS.items() if text in line]
        lines[i] = f"{line}  # {notes[0]}" if notes else line
    write_text(uri, "\n".join([*about.splitlines(), *lines, ""]))
    return uri, True


def drops_rows(folder: str) -> bool:
    """Whether the config of a graph leaves out bad rows."""
    uri = join(folder, CONFIG_NAME)
    fs, path = open_fs(uri)
    content = parse_yaml(read_text(uri)).value if fs.exists(path) else None
    data = content.get("data") if isinstance(content, dict) else None
    return isinstance(data, dict) and data.get("on_error") == "drop"
