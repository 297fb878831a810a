"""The tutorials as notebooks: `python -m docs.notebooks FOLDER` writes them.

Tutorials are kept as Markdown, which diffs well. Of their fenced blocks `python` becomes a cell of
code, `bash` a cell that a shell runs, and a block with a title, such as `yaml title="train.yaml"`,
a cell that writes this file; all else is text.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```\n', re.DOTALL | re.MULTILINE)


def notebook(text: str) -> dict[str, Any]:
    """The notebook of a page, as the JSON of a file."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        if source:
            cells.append(cell)

    end = 0
    for match in _FENCE.finditer(text):
        language, title, content = match.groups()
        if title:
            content = f"%%writefile {title}\n{content}"
        elif language == "bash":
            content = f"%%bash\n{content}"
        elif language != "python":
            continue
        add("markdown", text[end : match.start()].strip())
        add("code", content.rstrip("\n"))
        end = match.end()
    add("markdown", text[end:].strip())
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write_notebooks(folder: Path) -> None:
    """Writes a notebook for each tutorial."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        content = json.dumps(notebook(page.read_text("utf-8")), indent=1)
        (folder / f"{page.stem}.ipynb").write_text(content, "utf-8")


if __name__ == "__main__":
    write_notebooks(Path(sys.argv[1]))
