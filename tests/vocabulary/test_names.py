"""Names, by the place where they are used."""

from __future__ import annotations

import pytest

from penstock.vocabulary.names import is_file_name, is_sql_name, is_word


@pytest.mark.parametrize(
    ("name", "sql", "word", "file"),
    [
        ("readings", True, True, True),
        ("my_readings2", True, True, True),
        ("_hidden", True, True, False),
        ("2nd", False, False, True),
        ("fraud-by-account", False, True, True),
        ("fraud.v2", False, False, True),
        (".hidden", False, False, False),
        ("-option", False, False, False),
        ("a/b", False, False, False),
        ("two words", False, False, False),
        ("line\n", False, False, False),
        ("häufig", False, False, False),
        ("", False, False, False),
    ],
)
def test_a_name_is_allowed_by_the_place_where_it_is_used(
    name: str, sql: bool, word: bool, file: bool
) -> None:
    assert (is_sql_name(name), is_word(name), is_file_name(name, 80)) == (sql, word, file)


def test_a_file_name_has_at_most_so_many_letters() -> None:
    assert is_file_name("a" * 80, 80)
    assert not is_file_name("a" * 81, 80)
