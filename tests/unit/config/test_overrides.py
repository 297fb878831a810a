"""Overrides of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.config.schema import Config
from raygnn.config.source import Source, apply_overrides

DEFAULTS = Config().model_dump(mode="json")


def overridden(raw: dict[str, Any], *tokens: str) -> dict[str, Any]:
    source = Source(raw)
    assert apply_overrides(source, tokens, DEFAULTS) == []
    return source.value


def problem(raw: dict[str, Any], *tokens: str) -> str:
    (only,) = apply_overrides(Source(raw), tokens, DEFAULTS)
    return only.text()


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        (("--a.b", "1"), {"a": {"b": 1}}),
        (("--a.b=1e-3",), {"a": {"b": 1e-3}}),
        (("--a.b", "-1"), {"a": {"b": -1}}),
        (("--a.b", "null"), {"a": {"b": None}}),
        (("--a.b=",), {"a": {"b": None}}),
        (("--a.b=x=y",), {"a": {"b": "x=y"}}),
        (("--a.b=--x",), {"a": {"b": "--x"}}),
        (("--a.b",), {"a": {"b": True}}),
        (("--a.b", "--c", "2"), {"a": {"b": True}, "c": 2}),
        (("--a", "[1, {b: x}]"), {"a": [1, {"b": "x"}]}),
        (("--a.b", "1", "--a.b", "2"), {"a": {"b": 2}}),
        (("--a.b", "1", "--a!"), {}),
    ],
)
def test_values(tokens: tuple[str, ...], value: dict[str, Any]) -> None:
    assert overridden({}, *tokens) == value


@pytest.mark.parametrize(
    ("raw", "tokens", "value"),
    [
        ({"a": [3, {"b": 1}]}, "--a.0 -1 --a.1.c 2", {"a": [-1, {"b": 1, "c": 2}]}),
        ({}, "--sampling.fanouts.0 5", {"sampling": {"fanouts": [5, 10]}}),  # as by default
        ({"a": [1, 2], "b": {"c": 1, "d": 2}}, "--a.0! --b.c!", {"a": [2], "b": {"d": 2}}),
        ({"model": "GCN"}, "--model.args.a 0.5", {"model": {"type": "GCN", "args": {"a": 0.5}}}),
        (
            {},
            "--model Hetero --model.relative_time",
            {"model": {"type": "Hetero", "relative_time": True}},
        ),
        ({"profiler": None}, "--profiler.active 5", {"profiler": {"active": 5}}),
    ],
)
def test_items_components_and_sections_are_changed(raw, tokens, value) -> None:
    assert overridden(raw, *tokens.split()) == value


def test_defaults_are_not_changed_by_overrides_of_their_items() -> None:
    overridden({}, "--sampling.fanouts.0", "5")
    assert DEFAULTS["sampling"]["fanouts"] == [15, 10]


@pytest.mark.parametrize(
    ("raw", "tokens", "text"),
    [
        ({}, ("oops",), "oops is invalid: it is not part of an override. Write --section.key"),
        ({}, ("--",), "it is not part of an override"),
        ({}, ("--a", "[1"), "a is invalid: the override's value cannot be read: it is not YAML"),
        ({"a": [1]}, ("--a.1", "2"), "a is a list of 1, which has no item 1. Override the whole"),
        ({"a": []}, ("--a.0", "2"), "a is a list of 0"),
        ({"a": [1]}, ("--a.x", "2"), "has no item x"),
        ({"a": [[1]]}, ("--a.3.0", "2"), "has no item 3"),
        ({"a": 3}, ("--a.b", "2"), "a is a value, not a mapping. Override a itself"),
        ({"a": {"mode": 1}}, ("--a.mod!",), "does not set it. Did you mean mode?"),
        ({}, ("--a!",), "a is invalid: the config does not set it. To switch off a default"),
        ({}, ("--a.b!",), "the config does not set it"),
        ({"a": [1]}, ("--a.4!",), "has no item 4"),
    ],
)
def test_what_does_not_fit(raw: dict[str, Any], tokens: tuple[str, ...], text: str) -> None:
    assert text in problem(raw, *tokens)


def test_the_last_override_is_named() -> None:
    source = Source({})
    apply_overrides(source, ["--a.b", "1", "--a", "{c: 2}"], DEFAULTS)
    assert source.origins == {("a",): "--a"}


@pytest.mark.parametrize(
    ("token", "rule"),
    [
        ("--" + "a." * 1_500 + "b=1", "nested deeper than 64 levels"),
        ("--a\udcff=1", "half of a surrogate pair"),
        ("--a=\udcff", "is not allowed"),
        ("--a=" + "9" * 4_400, "not a number"),
        ("--a=" + "[" * 1_500, "nested deeper than 64 levels"),
        ("--a=!!int abc", "'abc' is not a number"),
        ("--sampling.fanouts.0=" + str(2**70), "beyond 64 bits"),
    ],
)
def test_malformed_overrides_are_refused(token: str, rule: str) -> None:
    assert rule in problem({}, token)


def test_digits_that_are_no_index() -> None:
    digits = "9" * 4_400
    assert overridden({}, f"--a.{digits}=1") == {"a": {digits: 1}}
