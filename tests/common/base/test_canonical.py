"""Canonical JSON: one byte string per value, and a reader that never does anything unexpected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.canonical import MAX_INTEGER, canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_written_is_read_back(value):
    assert parse_canonical(canonical_json(value), max_bytes=1 << 20) == value


@given(values)
def test_bytes_are_json_with_the_same_meaning(value):
    assert json.loads(canonical_json(value)) == value


def test_keys_come_in_utf16_order_as_in_rfc_8785_section_3_2_3():
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\xf6"]
    expected = [
        "\r",
        "1",
        "\x80",
        "\xf6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]  # D83D comes before FB33
    assert list(json.loads(canonical_json(dict.fromkeys(keys, 0)))) == expected


def test_escapes_are_minimal_and_lower_case():
    assert canonical_json('\x00\x1f\b\t\n\f\r"\\/\x7fé😀') == (
        '"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/\x7fé😀"'.encode()
    )


def test_whole_document_byte_for_byte():
    value = {"b": [None, True, False, -1, 0], "a": {"z": "", "aa": {}}, "": []}
    assert canonical_json(value) == b'{"":[],"a":{"aa":{},"z":""},"b":[null,true,false,-1,0]}'


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        MAX_INTEGER + 1,
        -MAX_INTEGER - 1,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        (1, 2),
        b"x",
        {"a": [1.5]},
        {1, 2},
    ],
)
def test_values_without_a_canonical_form_are_refused(value):
    with pytest.raises(ConfigError):
        canonical_json(value)


def test_depth_is_limited_to_32_on_both_ways():
    nested: object = 0
    for _ in range(32):
        nested = [nested]
    assert parse_canonical(canonical_json(nested), max_bytes=100) == nested
    with pytest.raises(ConfigError):
        canonical_json([nested])
    with pytest.raises(ProtocolError):
        parse_canonical(b"[" * 33 + b"0" + b"]" * 33, max_bytes=100)


@pytest.mark.parametrize("leaf", [0, "plain", "é"])
def test_depth_is_limited_alike_for_every_value_of_an_object(leaf):
    nested: object = {"a": leaf}
    for _ in range(31):
        nested = {"a": nested}
    canonical_json(nested)
    with pytest.raises(ConfigError):
        canonical_json({"a": nested})


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConfigError):
        canonical_json(loop)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" 1",
        b"1 ",
        b"1\n",
        b"1.0",
        b"1e3",
        b"-0",
        b"01",
        b"NaN",
        b"Infinity",
        b"9007199254740992",
        b"9" * 100_000,
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'"\\u0041"',
        b'"\\/"',
        b'"\\ud800"',
        b'"\xff"',
        b"\xef\xbb\xbf1",
        b"[1,]",
        b'"\x01"',
        b"[" * 200_000,
        b'{"a":' * 200_000,
    ],
)
def test_bytes_that_are_not_canonical_are_refused(data):
    with pytest.raises(ProtocolError):
        parse_canonical(data, max_bytes=1 << 21)


def test_size_is_limited_before_parsing():
    assert parse_canonical(b'"abc"', max_bytes=5) == "abc"
    with pytest.raises(ProtocolError, match="at most 4"):
        parse_canonical(b'"abc"', max_bytes=4)


@settings(max_examples=300)
@given(st.binary(max_size=60) | text.map(str.encode))
def test_reader_is_total(data):
    try:
        value = parse_canonical(data, max_bytes=50)
    except ProtocolError:
        return
    assert canonical_json(value) == data


def test_errors_do_not_quote_the_content():
    with pytest.raises(ProtocolError) as caught:
        parse_canonical(b'{"secret-name":"secret-value",}', max_bytes=100)
    assert "secret" not in str(caught.value)


def test_hash_has_one_input_per_meaning():
    inputs = [
        ("a",),
        ("a", b""),
        ("a", b"", b""),
        ("ab",),
        ("a", b"b"),
        ("a", b"b", b""),
        ("", b"a"),
    ]
    inputs += [("a", b"bc"), ("a", b"b", b"c")]
    assert len({hash_bytes(*each) for each in inputs}) == len(inputs)


def test_hash_is_pinned():
    """Ledgers and plans on disk depend on these bytes."""
    expected = "d713afe46678d9fa4a4db7c97672494362e79a3fff3139b22d04707be14ada02"
    assert hash_bytes("isonomy/test", b"part", b"").hex() == expected
