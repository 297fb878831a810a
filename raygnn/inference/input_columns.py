"""Which column of a table each element of an input row comes from."""

from __future__ import annotations

from collections.abc import Mapping

from raygnn.data.manifest import DenseFeature, Manifest
from raygnn.data.transforms.state import FittedColumn, FittedFeature
from raygnn.inference.explanations import Element
from raygnn.loops.model_spec import ModelSpec
from raygnn.models.feature_layers import embedding_channels


def input_columns(spec: ModelSpec, manifest: Manifest | None) -> dict[str, list[Element]]:
    """By node type, of each element of the rows that its encoder reads, the table's column.

    A column that a transform made several numbers of, or a category's embedding, is one column; of
    a column of lists each element is one.

    Args:
        manifest: of the graph's tables; None of a graph that did not come from tables, whose
            columns are named by the feature.
    """
    found = {}
    for name, width in spec.widths.items():
        fitted = spec.transforms.get(name, {}).get(spec.feature)
        if fitted is not None:
            found[name] = _of_transforms(name, fitted)
            continue
        declared = (
            None if manifest is None else manifest.node_types[name].features.get(spec.feature)
        )
        names = declared.column_names if isinstance(declared, DenseFeature) else (spec.feature,)
        if len(names) == width:
            found[name] = [Element(name, column, None) for column in names]
        else:
            shown = names[0] if len(names) == 1 else spec.feature
            found[name] = [Element(name, shown, i) for i in range(width)]
    return found


def _of_transforms(name: str, fitted: FittedFeature) -> list[Element]:
    """As `CategoryInputs` orders them: numbers, then what each category is embedded as."""
    numbers, embedded, position = [], [], 0
    codes: Mapping[int, int] = fitted.num_codes
    for part in fitted.parts:
        is_list = not isinstance(part, FittedColumn) and part.width > 1
        for i in range(part.width):
            element = Element(name, part.column, i if is_list else None)
            if position in codes:
                embedded += [element] * embedding_channels(codes[position])
            else:
                numbers.append(element)
            position += 1
    return numbers + embedded
