"""The site's links: pages beside `docs/` and files that pages link to are found in it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "page", "link", "shown"),
    [
        ("CHANGELOG.md", "changelog.md", "docs/training.md#resume", "training.md#resume"),
        ("CHANGELOG.md", "changelog.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("CHANGELOG.md", "changelog.md", "Makefile", "files/Makefile"),
        ("benchmarks/README.md", "benchmarks.md", "../CONTRIBUTING.md", "contributing.md"),
        ("docs/api/errors.md", "api/errors.md", "../../CHANGELOG.md", "../changelog.md"),
        ("docs/cluster.md", "cluster.md", "../cluster/Dockerfile", "files/cluster/Dockerfile"),
        ("docs/cluster.md", "cluster.md", "../no/such/file", "../no/such/file"),
    ],
)
def test_links_lead_to_what_the_site_has(hooks, source, page, link, shown):
    assert hooks._relink(f"see [this]({link}).", source, page) == f"see [this]({shown})."


def test_a_notebook_links_to_the_pages_of_the_site(hooks):
    text = "[a](../serving.md#latency), [b](own-task.md), [c](https://example.org/a.md)"
    shown = "[a](../serving.html#latency), [b](own-task.html), [c](https://example.org/a.md)"
    assert hooks._to_html(text) == shown


def test_blocks_of_a_tutorial_become_cells(hooks):
    page = """# Title

Text.

```yaml title="a.yaml"
key: 1
```

```bash
ls
```

```python
1 + 1
```

```console
not run
```
"""
    cells = hooks.notebook(page)["cells"]
    assert [(cell["cell_type"], cell["source"]) for cell in cells] == [
        ("markdown", "# Title\n\nText."),
        ("code", "%%writefile a.yaml\nkey: 1"),
        ("code", "%%bash\nls"),
        ("code", "1 + 1"),
        ("markdown", "```console\nnot run\n```"),
    ]


def test_sections_of_docstrings_are_found():
    griffe = pytest.importorskip("griffe")  # of the extra docs
    from docs.docstrings import Sections

    extensions = griffe.load_extensions(Sections)
    module = griffe.load("raygnn.train", search_paths=[ROOT], extensions=extensions)
    kinds = [section.kind.value for section in module["fit"].docstring.parse("google")]
    assert kinds == ["text", "parameters", "returns", "raises"]
