"""Words in Hydra's grammar: what quotes and codes do to them, and that both are read back."""

import unicodedata

import pytest

from tipcast.config.hydra_grammar import (
    decode_keys,
    encode_keys,
    literal,
    parsed,
    quoted,
    with_quoted_words,
)


def value_of(override: str) -> object:
    """Return the value of an override that the grammar takes, quoted texts as texts."""
    read = parsed(override)
    assert read is not None, override
    return getattr(read.value(), "text", read.value())


@pytest.mark.parametrize("text", ["", "\\", "'", "\\'", "a\\\\b[", "it\\'s\\", "größe", "1e3"])
def test_a_quoted_text_is_read_as_it_is(text: str) -> None:
    assert value_of(f"k={quoted(text)}") == text


@pytest.mark.parametrize("override", ["data.train=[a", "data.train=größe", "größe=1"])
def test_an_override_that_the_grammar_does_not_take_is_not_parsed(override: str) -> None:
    assert parsed(override) is None


@pytest.mark.parametrize(
    ("override", "encoded"),
    [
        ("data.types={größe: category}", "data.types={gr$uf6$$udf$e: category}"),
        ("+data.types.größe=category", "+data.types.gr$uf6$$udf$e=category"),
        ("columns={a: 'ö: x'}", "columns={a: 'ö: x'}"),
        ("data.types={a$u41$: none}", "data.types={a$u24$u41$: none}"),
        ("task.target=größe", "task.target=größe"),
    ],
)
def test_keys_that_name_columns_are_encoded_and_decoded(override: str, encoded: str) -> None:
    assert encode_keys(override) == encoded
    assert decode_keys(encoded) == override


def test_keys_get_one_form_before_they_are_encoded() -> None:
    override = "data.types={größe: category}"
    assert encode_keys(unicodedata.normalize("NFD", override)) == encode_keys(override)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("task.features=[größe, a]", "task.features=['größe', a]"),
        ("task.features=['größe', a]", "task.features=['größe', a]"),
        ("data.columns={größe: ö}", "data.columns={größe: 'ö'}"),
        ("seed=1", "seed=1"),
        ("task.features=[größe", "task.features=[größe"),
    ],
)
def test_only_words_that_need_quotes_get_them(override: str, expected: str) -> None:
    assert with_quoted_words(override) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (1e-05, "1e-05"),
        ("it's", "'it\\'s'"),
        (["a", 1], "['a', 1]"),
        ({"size (m)": 2, "b": {}}, "{size\\ \\(m\\): 2, b: {}}"),
    ],
)
def test_a_value_of_python_is_written_in_the_grammar(value: object, expected: str) -> None:
    assert literal(value) == expected
