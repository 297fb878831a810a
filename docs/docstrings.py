"""Separates the sections of docstrings for the site, whose parser expects blank lines."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SECTION = re.compile(r"\n+(?=(?:Args|Attributes|Returns|Raises|Yields):\n)")


class Sections(Extension):
    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Adds the blank lines to the docstring of a module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = _SECTION.sub("\n\n", obj.docstring.value)
