"""Random tables: the ingest gives what a naive reader computes, or names the file and the rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.errors import DataError
from tests.fuzz.cases import cases
from tests.graph_writer import cut, write_graph

_TYPE = ("n", "to", "n")
_DTYPES = ["int8", "uint8", "int16", "int32", "int64", "float32", "float64"]


@dataclass
class _Tables:
    """A graph as lists; `columns` are features of nodes, each of its own type."""

    ids: list
    id_type: pa.DataType
    ends: list[list]  # sources and targets
    columns: dict[str, list]
    dtypes: dict[str, str]
    suffix: str
    num_shards: int
    spec: dict[str, str] = field(default_factory=dict)


def _tables(draw: random.Random) -> _Tables:
    num_nodes, num_edges = draw.randint(2, 30), draw.randint(2, 60)
    if draw.random() < 0.5:
        id_type, ids = pa.int64(), draw.sample(range(-50, 10 ** draw.randint(2, 15)), num_nodes)
    else:
        id_type = draw.choice([pa.string(), pa.large_string()])
        letters = "abcxyz\u00e4\u00df-_ "
        ids = [
            f"k{i}{''.join(draw.choices(letters, k=draw.randint(0, 5)))}z" for i in range(num_nodes)
        ]
        draw.shuffle(ids)
    names = [f"c{i}" for i in range(draw.randint(1, 4))]
    dtypes = {name: draw.choice(_DTYPES) for name in names}
    columns = {name: _values(dtype, num_nodes, draw) for name, dtype in dtypes.items()}
    ends = [draw.choices(ids, k=num_edges), draw.choices(ids, k=num_edges)]
    suffix = draw.choice([".parquet", ".parquet", ".csv", ".tsv"])
    return _Tables(ids, id_type, ends, columns, dtypes, suffix, draw.randint(1, 3))


def _values(dtype: str, count: int, draw: random.Random) -> list:
    if dtype.startswith("float"):
        return [float(np.dtype(dtype).type(draw.uniform(-1e3, 1e3))) for _ in range(count)]
    limits = np.iinfo(dtype)
    return [draw.randint(max(limits.min, -(2**53)), min(limits.max, 2**53)) for _ in range(count)]


def _write(tables: _Tables, folder: Path) -> Path:
    columns = {
        name: pa.array(values, None if isinstance(values[0], str) else tables.dtypes[name])
        for name, values in tables.columns.items()
    }
    nodes = pa.table({"id": pa.array(tables.ids, tables.id_type), **columns})
    source, target = (pa.array(end, tables.id_type) for end in tables.ends)
    edges = pa.table({"s": source, "t": target, "row": np.arange(len(source))})
    return write_graph(
        folder,
        cut(nodes, tables.num_shards),
        cut(edges, tables.num_shards),
        {"features": {name: name for name in tables.columns} | tables.spec},
        {"features": {"row": "row"}},
        tables.suffix,
    )


def _check(bundle: Bundle, tables: _Tables) -> None:
    """Compares a bundle with dicts and sorted lists."""
    assert bundle.ids("n").to_pylist() == tables.ids
    for name, values in tables.columns.items():
        found = np.asarray(bundle.column("n", name)).reshape(-1)
        assert np.array_equal(found, np.asarray(values).astype(found.dtype))
        assert found.dtype.kind == "f" or found.astype(object).tolist() == values
    dense = {key: i for i, key in enumerate(tables.ids)}
    pairs = zip(*tables.ends, strict=True)
    expected = sorted(
        (dense[target], dense[source], row) for row, (source, target) in enumerate(pairs)
    )
    csc = bundle.csc(_TYPE)
    assert (
        np.diff(csc.indptr).tolist()
        == np.bincount([edge[0] for edge in expected], minlength=len(dense)).tolist()
    )
    assert csc.indices.tolist() == [edge[1] for edge in expected]
    rows = np.asarray(bundle.column(_TYPE, "row")).reshape(-1)
    assert rows.tolist() == [edge[2] for edge in expected]


def _repeat_id(tables: _Tables, draw: random.Random) -> str:
    first, second = draw.sample(range(len(tables.ids)), 2)
    tables.ids[first] = tables.ids[second]
    return r"nodes/part-\d"


def _null_id(tables: _Tables, draw: random.Random) -> str:
    tables.ids[draw.randrange(len(tables.ids))] = None
    return r"nodes/part-\d"


def _dangling_end(tables: _Tables, draw: random.Random) -> str:
    end = draw.choice(tables.ends)
    end[draw.randrange(len(end))] = -77 if tables.id_type == pa.int64() else "nobody"
    return r"edges/part-\d"


def _null_end(tables: _Tables, draw: random.Random) -> str:
    end = draw.choice(tables.ends)
    end[draw.randrange(len(end))] = None
    return r"edges/part-\d"


def _null_feature(tables: _Tables, draw: random.Random) -> str:
    values = draw.choice(list(tables.columns.values()))
    values[draw.randrange(1, len(values))] = None
    return r"nodes/part-\d"


def _texts_as_feature(tables: _Tables, draw: random.Random) -> str:
    name = draw.choice(list(tables.columns))
    tables.columns[name] = ["word" for _ in tables.ids]
    return rf"features.{name}"


def _missing_column(tables: _Tables, draw: random.Random) -> str:
    tables.spec["x"] = "not_there"
    return r"not_there"


_DAMAGES: list[Callable[[_Tables, random.Random], str]] = [
    _repeat_id, _null_id, _dangling_end, _null_end, _null_feature, _texts_as_feature,
    _missing_column,
]  # fmt: skip


def _damage_a_file(folder: Path, suffix: str, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.rglob(f"part-*{suffix}")))
    content = file.read_bytes()
    damaged = [b"", content[: len(content) // 2], draw.randbytes(64), content[:-4] + b"\0\0\0\0"]
    if suffix != ".parquet":
        damaged = [b"", draw.randbytes(64) + b"\xff\xfe", b'id;x\n"a']
    file.write_bytes(draw.choice(damaged))
    return f"{file.parent.name}|{file.name}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", cases(full=500, short=20))
def test_tables_are_read_as_they_are_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    tables = _tables(draw)
    kind = draw.choice(["whole", "rows", "file"])
    place = draw.choice(_DAMAGES)(tables, draw) if kind == "rows" else None
    uri = _write(tables, tmp_path / "graph")
    if kind == "file":
        place = _damage_a_file(tmp_path / "graph", tables.suffix, draw)
    if place is None:
        _check(ingest(uri, cache_dir=tmp_path / "cache"), tables)
        return
    with pytest.raises(DataError, match=place) as caught:
        ingest(uri, cache_dir=tmp_path / "cache")
    assert caught.value.exit_status == 2
