"""Adds to the site of `docs/` the pages beside it, and the files that pages link to.

A reader of the repository can open the tests, examples and configs that pages link to. The site has
no repository beside it, so it gets a copy of each. Each tutorial is added as a notebook too.
"""

from __future__ import annotations

import json
import posixpath
import re
import runpy
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Pages beside `docs/`, by their path in the repository.
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "agents.md",
    "benchmarks/README.md": "benchmarks.md",
}
TUTORIALS = "tutorials/"
notebook = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["notebook"]
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages beside `docs/`, and the files that any page links to."""
    sources = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()}
    sources |= PAGES
    linked: set[str] = set()
    for source, page in sources.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for _, link, _ in _LINK.findall(text):
            path = _in_repository(source, link)
            if path and path not in sources and not path.startswith("docs/"):
                linked.add(path)
        if page.startswith(TUTORIALS):
            content = json.dumps(notebook(_to_html(text)), indent=1)
            files.append(File.generated(config, _notebook_of(page), content=content))
        if source in PAGES:
            files.append(File.generated(config, page, content=_relink(text, source, page)))
    for path in sorted(linked):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, f"files/{path}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leads links out of `docs/` to the copies, and from tutorials to their notebooks."""
    uri = page.file.src_uri
    if uri.startswith(TUTORIALS):
        title, _, text = markdown.partition("\n")
        name = posixpath.basename(_notebook_of(uri))
        markdown = f"{title}\n\n[This page as a notebook]({name})\n{text}"
    return markdown if uri in PAGES.values() else _relink(markdown, f"docs/{uri}", uri)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Takes the script of the search from the site, so that it works offline."""
    depth = page.url.count("/")
    return output.replace(
        "https://unpkg.com/iframe-worker/shim", "../" * depth + "assets/iframe-worker.js"
    )


def _notebook_of(page: str) -> str:
    return page.removesuffix(".md") + ".ipynb"


def _to_html(text: str) -> str:
    """The text of a page with links to the built pages of the site."""

    def built(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        return before + (link if "://" in link else re.sub(r"\.md$", ".html", link)) + after

    return _LINK.sub(built, text)


def _relink(text: str, source: str, page: str) -> str:
    """The text of a page with its links as they are in the site.

    Args:
        source: of the text, in the repository.
        page: its path in the site.
    """

    def in_site(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        path = _in_repository(source, link)
        if path is None:
            return match.group(0)
        target = PAGES.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
        )
        return before + posixpath.relpath(target, posixpath.dirname(page) or ".") + after

    return _LINK.sub(in_site, text)


def _in_repository(source: str, link: str) -> str | None:
    """The file that a relative link leads to; None where it is none of the repository."""
    if "://" in link:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if (ROOT / path).is_file() else None
