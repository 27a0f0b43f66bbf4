"""A query's SIC over the source time window, from what its grants decided."""

from __future__ import annotations

import pytest

from penstock.control.measure.sic import QuerySic, SicLedger


def ledger() -> SicLedger:
    return SicLedger(stw_s=10.0)


def test_a_query_that_had_no_batch_yet_has_none() -> None:
    assert ledger().of("q", 0.0).value is None


def test_it_is_the_part_of_the_rows_that_was_admitted_in_the_window() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 100)
    books.decided(2.0, "q", "r", "s", 300, 100)
    found = books.of("q", 3.0)
    assert found.value == pytest.approx(0.5)
    assert found.batch == pytest.approx(1 / 3)
    assert books.of("q", 11.5).value == pytest.approx(1 / 3), "the first batch has left the window"


def test_a_level_is_of_what_stays_in_the_window_so_much_longer() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 0)
    books.decided(8.0, "q", "r", "s", 100, 50)
    assert books.level("q", 9.0, 0.0) == pytest.approx(0.25)
    assert books.level("q", 9.0, 4.0) == pytest.approx(0.5), "the first batch leaves the window by then"
    assert books.level("q", 9.0, 9.9) == pytest.approx(0.25), "nothing stays: all of it counts"
    assert books.level("another", 9.0, 0.0) is None


def test_in_a_level_a_source_that_sends_seldom_counts_over_all_of_the_window() -> None:
    books = ledger()
    books.decided(2.0, "q", "slow", "a", 10, 10)
    books.decided(8.0, "q", "fast", "b", 100, 50)
    assert books.level("q", 9.0, 4.0) == pytest.approx(0.75), "it would be 0.25 as if all of it were lost"


def test_a_source_is_silent_when_nothing_came_for_a_window_not_when_nothing_was_decided() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 40)
    books.came("q", "r", 9.0)
    assert books.of("q", 15.0).silent == ()
    assert books.of("q", 19.5).silent == ("s",)
    books.came("q", "nobody", 9.0)


def test_every_source_counts_alike_however_many_rows_it_has() -> None:
    books = ledger()
    books.decided(1.0, "q", "many", "a", 10_000, 10_000)
    books.decided(1.0, "q", "few", "b", 10, 5)
    assert books.of("q", 1.0).value == pytest.approx(0.75)


def test_the_share_of_a_silent_source_is_missing_and_it_is_named() -> None:
    books = ledger()
    books.decided(1.0, "q", "one", "a", 100, 100)
    books.decided(1.0, "q", "other", "b", 0, 0)
    found = books.of("q", 1.0)
    assert found.value == pytest.approx(0.5)
    assert found.silent == ("b",)
    for reader in ("one", "other"):
        books.gone("q", reader)
    assert books.of("q", 50.0) == found, "a closing report is written when all have stopped"


def test_a_source_that_was_silent_before_a_restart_is_missed_after_it() -> None:
    books = ledger()
    books.reads("q", "one", "a")
    books.reads("q", "other", "b")
    assert books.of("q", 0.5) == QuerySic(), "it had no batch yet, so nobody knows who is silent"
    books.decided(1.0, "q", "one", "a", 100, 100)
    before = books.of("q", 1.0)
    assert (before.value, before.silent) == (pytest.approx(0.5), ("b",))
    for reader in ("one", "other"):
        books.gone("q", reader)
        books.reads("q", reader, {"one": "a", "other": "b"}[reader])
    assert books.of("q", 2.0) == before, "what is known holds until the next batch"
    books.decided(3.0, "q", "one", "a", 100, 100)
    assert books.of("q", 3.0) == before


def test_a_reader_that_joins_again_keeps_its_books() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 40)
    books.reads("q", "r", "s")
    assert books.of("q", 2.0).value == pytest.approx(0.4)


def test_of_a_micro_batch_only_the_sources_that_had_a_part_in_it_count() -> None:
    books = ledger()
    books.decided(1.0, "q", "one", "a", 100, 100, grant=1, batch=0)
    books.decided(1.0, "q", "other", "b", 100, 10, grant=1, batch=0)
    assert books.of("q", 1.0).batch == pytest.approx(0.55)
    books.decided(2.0, "q", "one", "a", 100, 100, grant=2, batch=1)
    assert books.of("q", 2.0).batch == 1.0, "the other lost nothing in it"
    assert books.dropped(2.5, "q", {("one", 2): 50.0}) == pytest.approx(0.5)
    assert books.dropped(2.5, "q", {("one", 1): 50.0}) == pytest.approx(0.25)
    assert books.of("q", 2.5).batch == pytest.approx(0.5)


def test_a_query_without_a_batch_in_the_window_keeps_what_it_had() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 40)
    assert books.of("q", 5.0).value == pytest.approx(0.4)
    assert books.of("q", 100.0).value == pytest.approx(0.4)


def test_what_is_behind_a_shared_stream_stands_on_what_its_writer_kept() -> None:
    books = ledger()
    books.shares("shared", ["token"])
    books.joined("token", "writer")
    books.joined("of another", "q")
    books.decided(1.0, "writer", "w", "s", 100, 50)
    books.decided(1.0, "q", "r", "shared", 40, 20)
    assert books.of("q", 1.0).value == pytest.approx(0.25)
    assert books.upstream("shared", 1.0) == pytest.approx(0.5)
    assert books.upstream("s", 1.0) == 1.0
    assert books.readers_of("writer") == ["q"]
    assert books.readers_of("q") == []


def test_a_shared_stream_that_is_made_of_itself_has_a_sic_all_the_same() -> None:
    books = ledger()
    books.shares("shared", ["token"])
    books.joined("token", "q")
    books.decided(1.0, "q", "r", "shared", 40, 20)
    assert books.of("q", 1.0).value == pytest.approx(0.5)


def test_a_rate_that_changes_a_hundredfold_inside_the_window_leaves_it_between_0_and_1() -> None:
    books = ledger()
    for second in range(10):
        rows = 10_000 if second == 5 else 100
        books.decided(float(second), "q", "r", "s", rows, rows if second != 5 else rows // 2)
    assert books.of("q", 9.0).value == pytest.approx(5900 / 10_900)


def test_rows_of_a_whole_window_are_known_once_it_has_passed() -> None:
    books = ledger()
    for second in range(12):
        books.decided(float(second), "q", "r", "s", 100, 10)
    assert books.window_rows("q", "r", 11.0) == pytest.approx(1000)
    assert books.window_rows("q", "nobody", 11.0) is None
    books.decided(11.0, "q", "new", "s", 100, 10)
    assert books.window_rows("q", "new", 12.0) is None
    books.gone("q", "new")
    assert books.of("q", 12.0).value == pytest.approx(0.1)


def test_rows_that_the_watermark_drops_are_missing_from_their_own_batch() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 100, grant=1)
    books.decided(2.0, "q", "r", "s", 100, 50, grant=2)
    assert books.dropped(2.5, "q", {("r", 1): 40.0}) == pytest.approx(0.4)
    found = books.of("q", 2.5)
    assert found.value == pytest.approx((60 + 50) / 200)
    assert found.batch == pytest.approx(0.5), "the second batch lost nothing"
    assert books.dropped(2.6, "q", {("r", 2): 25.0}) == pytest.approx(0.25)
    assert books.of("q", 2.6).batch == pytest.approx(0.25)


def test_no_more_can_be_dropped_than_was_admitted_and_nothing_of_what_is_not_known() -> None:
    books = ledger()
    books.decided(1.0, "q", "r", "s", 100, 30, grant=1)
    assert books.dropped(2.0, "q", {("r", 1): 500.0}) == pytest.approx(0.3)
    assert books.of("q", 2.0).value == 0.0
    for key in (("r", 1), ("r", 7), ("nobody", 1)):
        assert books.dropped(2.0, "q", {key: 5.0}) == 0.0
    assert books.dropped(2.0, "nobody", {("r", 1): 5.0}) == 0.0
    assert books.of("q", 10.9).value == 0.0, "the rows have left the window, the word of their loss has not"


def test_of_two_sources_one_that_loses_half_of_its_rows_costs_a_quarter() -> None:
    books = ledger()
    books.decided(1.0, "q", "a", "a", 100, 100, grant=1)
    books.decided(1.0, "q", "b", "b", 10, 10, grant=1)
    assert books.dropped(1.0, "q", {("b", 1): 5.0}) == pytest.approx(0.25)
    assert books.of("q", 1.0).value == pytest.approx(0.75)


def test_what_a_writer_lost_is_missing_behind_its_shared_stream() -> None:
    books = ledger()
    books.shares("shared", ["token"])
    books.joined("token", "writer")
    books.decided(1.0, "writer", "w", "s", 100, 100, grant=1)
    books.decided(1.0, "q", "r", "shared", 40, 40, grant=1)
    books.dropped(1.0, "writer", {("w", 1): 25.0})
    assert books.of("q", 1.0).value == pytest.approx(0.75)
    assert books.dropped(1.0, "q", {("r", 1): 20.0}) == pytest.approx(0.375)
