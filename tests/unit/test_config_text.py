import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humigence_supervise.config_text import MAX_BYTES, MAX_DEPTH, Place, TextError, decode, parse

HOLDABLE = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | HOLDABLE
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(HOLDABLE, inner), max_leaves=30
)
LAYOUTS = st.sampled_from([{}, {"indent": 2}, {"indent": "\t"}, {"separators": (" ,\n", "\r\n: ")}])

# text, line, column, words of the message
FAULTS = [
    ("nul", 1, 1, 'found "nul"'),
    ('{"a": 1} x', 1, 10, "after the end"),
    ('{"a": 1}{}', 1, 9, "after the end"),
    ("[1 2]", 1, 4, 'expected "," or "]"'),
    ("[1", 1, 3, "found the end of the file"),
    ('{"a" 1}', 1, 6, 'expected ":"'),
    ("{a: 1}", 1, 2, 'in double quotes, found "a"'),
    ("{'a': 1}", 1, 2, "single quote"),
    ('{"a": 1,\n}', 1, 8, 'a comma before "}"'),
    ("[1,]", 1, 3, 'a comma before "]"'),
    ('{\n  // why\n  "a": 1}', 2, 3, "a comment"),
    ('{"a": # why\n 1}', 1, 7, "a comment"),
    ('{"a":\n  NaN}', 2, 3, "NaN is no JSON number"),
    ("[-Infinity]", 1, 2, "-Infinity is no JSON number"),
    ("[1e400]", 1, 2, "too large"),
    ("[-1e400]", 1, 2, "too large"),
    ("[9223372036854775808]", 1, 2, "64 bits"),
    ("[" + "9" * 10_000 + "]", 1, 2, "10000 digits"),
    ('["a\x01b"]', 1, 4, "0x01"),
    ('["a\nb"]', 1, 4, "0x0a"),
    ('["a', 1, 2, "never ends"),
    ('["\\q"]', 1, 3, "broken escape"),
    ('["\\u12"]', 1, 4, "broken escape"),
    ('["\\u0000"]', 1, 2, "NUL"),
    ('["\\ud800"]', 1, 2, "surrogate"),
    ("[" * 100 + "]" * 100, 1, MAX_DEPTH + 2, "nested deeper than 64"),
]


@given(DOCUMENTS, LAYOUTS, st.booleans())
def test_agrees_with_the_standard_library_on_valid_documents(value, layout, ascii_only):
    """Every document json.loads takes within our limits has the same value here."""
    text = json.dumps(value, ensure_ascii=ascii_only, **layout)
    assert parse(text).value == json.loads(text) == value


@given(st.text('{}[]",:01eE.+-tfn \n\\aNI', max_size=30))
def test_agrees_with_the_standard_library_on_what_is_no_document(text):
    """What json.loads refuses is refused, and what is taken has the same value."""
    try:
        value = parse(text).value
    except TextError:
        return
    assert value == json.loads(text)


@given(st.text('{}[]",:01eE.+-tfn \n\\a', max_size=30))
def test_refuses_nothing_the_standard_library_takes(text):
    """What json.loads takes is taken, but for numbers that are not finite or above 64 bits."""
    try:
        expected = json.loads(text, parse_float=_finite, parse_int=_small)
    except (ValueError, RecursionError):
        return
    assert parse(text).value == expected


def _finite(digits):
    if not math.isfinite(float(digits)):
        raise ValueError
    return float(digits)


def _small(digits):
    if int(digits).bit_length() > 63:
        raise ValueError
    return int(digits)


@pytest.mark.parametrize(("text", "line", "column", "words"), FAULTS)
def test_a_fault_is_named_with_its_place(text, line, column, words):
    """Each fault has a message of its own, at the line and column it stands in."""
    with pytest.raises(TextError) as caught:
        parse(text)
    assert caught.value.place == Place(line, column)
    assert words in caught.value.what


def test_depth_is_allowed_to_its_limit():
    """A document of exactly the allowed depth is taken, one deeper is not."""
    parse("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
    with pytest.raises(TextError):
        parse("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_megabytes_of_nesting_are_refused_at_once(opening):
    """A flood of brackets costs neither the stack nor the time."""
    text = opening * (4_000_000 // len(opening))
    begun = time.monotonic()
    with pytest.raises(TextError, match="nested deeper"):
        parse(text)
    assert time.monotonic() - begun < 2


def test_a_key_that_stands_twice_is_noted_with_both_places():
    """Both lines are kept; the last value counts, and equal keys elsewhere are no duplicates."""
    document = parse('{"a": {"x": 1},\n "b": {"x": 2},\n "a": 3}')
    (duplicate,) = document.duplicates
    assert (duplicate.path, duplicate.first, duplicate.second) == (("a",), Place(1, 2), Place(3, 2))
    assert document.value == {"a": 3, "b": {"x": 2}}


def test_places_of_keys_and_values():
    """Keys and values are found by their path; a path that is not there gives what is around it."""
    document = parse('{"a": [10,\n  {"b": true}]}')
    assert document.place_of_key(("a",)) == Place(1, 2)
    assert document.place_of_value(("a", 1, "b")) == Place(2, 9)
    assert document.place_of_key(("a", 1, "b")) == Place(2, 4)
    assert document.place_of_value(("a", 1, "missing")) == Place(2, 3)


def test_a_byte_order_mark_is_accepted():
    """Editors that write one are not punished."""
    assert decode(b"\xef\xbb\xbf{}") == "{}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b'{"a": "\xff"}', "byte 0xff at byte offset 7"),
        ('{"a": 1}'.encode("utf-16"), "byte 0xff at byte offset 0"),
        (b" " * (MAX_BYTES + 1), f"larger than {MAX_BYTES}"),
    ],
)
def test_bytes_that_are_no_text_are_refused(data, words):
    """Empty, not UTF-8, and too long each have a clear message."""
    with pytest.raises(TextError) as caught:
        decode(data)
    assert words in caught.value.what
    assert caught.value.place is None
