"""YAML with lines, by the rules of YAML 1.2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.config.yaml_source import YamlError, dump_yaml, parse_scalar, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", float("inf")),
        ("1_000_000", 1_000_000),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("true", True),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("null", None),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("e3", "e3"),
        ("1.2.3", "1.2.3"),
        ('"1"', "1"),
        ("[-1, 5]", [-1, 5]),
        ("{a: 1e-6}", {"a": 1e-6}),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_float() -> None:
    assert parse_scalar(".nan") != parse_scalar(".nan")


def test_lines_of_keys_and_items() -> None:
    lines = parse_yaml("a: 1\nb:\n  c:\n    - 1\n    - d: 2\n").lines
    assert lines[("a",)] == 1
    assert lines[("b", "c")] == 3
    assert lines[("b", "c", 1)] == 5
    assert lines[("b", "c", 1, "d")] == 5


def test_duplicate_keys_are_problems_with_their_line() -> None:
    document = parse_yaml("a: 1\nb: {c: 1, d: 2, c: 3}\na: 2\n")
    assert [(p.path, p.line) for p in document.problems] == [(("b", "c"), 2), (("a",), 3)]
    assert "after line 1" in document.problems[1].rule


def test_anchors_and_merge_keys() -> None:
    document = parse_yaml("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\n")
    assert document.value["mine"] == {"x": 1, "y": 3}
    assert document.problems == []
    assert document.lines[("mine", "y")] == 4
    assert document.lines[("mine", "x")] == 1


def test_merge_of_several_mappings() -> None:
    document = parse_yaml("a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: [*a, *b]}\n")
    assert document.value["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("a: [1, 2\nb: 3\n", 2, "flow sequence"),
        ("a: 1\nb: *missing\n", 2, "undefined alias"),
        ("a: 1\nb: !!python/object:os.system x\n", 2, "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", 2, "single document"),
        ("a: 1\n? [x]\n: 2\n", 2, "a key must be a word"),
        ("a: 1\nb: \x01\n", 2, "is not allowed"),
        ("a: &a\n  b: *a\n", 1, "nested deeper"),
    ],
)
def test_what_is_no_yaml_tells_its_line(text: str, line: int, rule: str) -> None:
    with pytest.raises(YamlError, match=rule) as caught:
        parse_yaml(text)
    assert caught.value.line == line


def test_aliases_that_multiply_are_refused() -> None:
    levels = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 9))
    with pytest.raises(YamlError, match="more than 100000 values"):
        parse_yaml("x0: &x0 [1]\n" + levels)


def test_a_scalar_with_duplicate_keys_is_an_error() -> None:
    with pytest.raises(YamlError, match="a: the key stands here again"):
        parse_scalar("{a: 1, a: 2}")


def test_keys_that_look_like_other_types_are_words() -> None:
    assert parse_yaml("1: a\nnull: b\ntrue: c\non: d\n").value == {
        "1": "a",
        "null": "b",
        "true": "c",
        "on": "d",
    }


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
    | st.sampled_from(["1e-3", "on", "yes", "0x1f", "010", "1:30", "~", "null", "2024-01-31", "="]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "on", "1", "b_c"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=_values)
def test_what_is_dumped_is_parsed_equal(value: Any) -> None:
    assert parse_yaml(dump_yaml(value)).value == value
