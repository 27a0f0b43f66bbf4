"""The closing report: what is kept of a status, and how it is shown."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from penstock.show.report import (
    class_report,
    closing_table,
    live_table,
    own_status,
    query_report,
    query_table,
    status_line,
)
from penstock.vocabulary.histogram import Delays
from penstock.vocabulary.status import ClassStatus, QueryStatus, ReaderStatus, Status

DELAY, RESULT, NOTHING = Delays({400: 9.0}, 9.0, 1.8), Delays({450: 9.0}, 30.0, 4.25), Delays()


def a_query(name: str, offered: int, driver: str = "mine") -> QueryStatus:
    return QueryStatus(
        name=name,
        driver=driver,
        sic=0.62,
        sic_batch=None,
        dropped_by_watermark=4.0,
        silent=("logins",),
        offered=offered,
        admitted=offered - 3,
        shed=2,
        waiting=1,
        oldest_waiting_s=offered / 100,
        running=False,
        tick_due=False,
        batches=2,
        ungoverned=0,
        shed_reason=None,
        fixed_s=0.2,
        row_s=None,
        last_stage=None,
        readers={},
    )


def a_class(delay: Delays, **queries: QueryStatus) -> ClassStatus:
    return ClassStatus(
        target_s=2.0,
        priority=6.0,
        manager="deadline",
        dry_run=False,
        offered=1_234_567,
        admitted=1_234_000,
        shed=500,
        waiting=67,
        oldest_waiting_s=0.5,
        keep_fraction=0.75,
        delay=delay,
        result_delay=RESULT if delay.rows else NOTHING,
        used_s=1.0,
        share=0.6,
        quota=0.5,
        sic=0.87,
        jain=0.99,
        headroom=0.9,
        reason="room for [all] rows",
        floor_s=None,
        needs=None,
        feasible=None,
        least_target_s=None,
        queries=queries,
    )


def a_status(**classes: ClassStatus) -> Status:
    """With a mark from before any row."""
    return Status(0.0, 1.0, 1, True, classes, marked={name: a_class(NOTHING) for name in classes})


STATUS = a_status(
    gold=a_class(DELAY, a=a_query("fraud", 10), b=a_query("fraud", 20)),
    bulk=a_class(NOTHING, c=a_query("copy", 30)),
)


def shown(table: object, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_class_is_reported_with_its_delay_against_its_target() -> None:
    report = class_report(STATUS)
    assert report["gold"]["p95_to_target"] == 0.9
    assert report["bulk"]["p95_to_target"] is None
    assert report["gold"]["offered"] == sum(report["gold"][key] for key in ("admitted", "shed", "waiting"))


def test_readers_of_a_query_are_added_up_under_its_name() -> None:
    report = query_report(STATUS)
    assert report["fraud"]["offered"] == 30
    assert report["fraud"]["class"] == "gold"
    assert report["fraud"]["dropped_by_watermark"] == 8
    assert report["fraud"]["silent"] == ["logins"]
    assert list(report) == ["fraud", "copy"]


def test_the_closing_table_shows_every_figure_uncut_in_120_columns() -> None:
    text = shown(closing_table(class_report(STATUS), "small, 12 s"))
    for figure in (
        "1,234,567",
        "1,234,000",
        "500",
        "67",
        "0.50",
        "1.80",
        "4.25",
        "0.60",
        "0.87",
        "headroom",
    ):
        assert figure in text
    assert "headroom" in text
    assert "…" not in text


def test_the_live_table_says_why() -> None:
    text = shown(live_table(STATUS, "small, 3 s"))
    assert "gold: room for [all] rows" in text
    assert "0.87" in text
    assert "…" not in text


def test_a_querys_sic_is_shown_with_what_is_missing() -> None:
    text = shown(query_table({**query_report(STATUS), "failed": {"class": "bulk"}}), 80)
    fraud = next(line for line in text.splitlines() if line.lstrip().startswith("fraud"))
    assert fraud.split() == ["fraud", "gold", "0.62", "24", "4", "8", "logins"]
    failed = next(line for line in text.splitlines() if line.lstrip().startswith("failed"))
    assert failed.split() == ["failed", "bulk", "-", "0", "0", "0", "-"]
    assert "…" not in text


def test_reports_say_of_which_streams_positions_are_counted() -> None:
    counts = dict.fromkeys(("offered", "admitted", "shed", "sampled", "late", "expired", "poison"), 7)
    readers = {
        name: ReaderStatus(name, **counts, waiting=0, oldest_waiting_s=None, dense=name != "orders")
        for name in ("orders", "logins")
    }
    status = a_status(
        gold=a_class(DELAY, a=a_query("fraud", 10), b=replace(a_query("fraud", 20), readers=readers)),
        bulk=a_class(DELAY, c=a_query("copy", 30)),
    )
    classes, queries = class_report(status), query_report(status)
    assert {name: each["in_positions"] for name, each in classes.items()} == {"gold": ["orders"], "bulk": []}
    assert {name: each["in_positions"] for name, each in queries.items()} == {"fraud": ["orders"], "copy": []}
    said = "rows of orders are positions, some without a row"
    for table, name in (
        (closing_table(classes, "small"), "gold"),
        (live_table(status, "small"), "gold"),
        (query_table(queries), "fraud"),
    ):
        assert f"{name}: {said}" in " ".join(shown(table).split())
    before = {"gold": {key: value for key, value in classes["gold"].items() if key != "in_positions"}}
    assert "positions" not in shown(closing_table(before, "a report of an earlier Penstock"))


def test_a_line_has_every_class() -> None:
    line = status_line(STATUS, 5.2)
    assert line.strip().startswith("5 s  gold: keep 0.75, p95 1.80 of 2 s, waiting 67; bulk:")
    assert "p95 - of 2 s" in line


SHARED = a_status(
    gold=a_class(DELAY, a=a_query("fraud", 10), b=a_query("fraud", 20, "theirs")),
    bulk=a_class(NOTHING, c=a_query("copy", 30, "theirs")),
    rest=a_class(NOTHING),
)


def test_of_a_shared_control_plane_a_driver_reports_its_own_queries() -> None:
    mine = own_status(SHARED, "mine", ["gold", "bulk"])
    assert list(mine.classes) == ["gold", "bulk"], "classes of other drivers alone are theirs"
    assert {name: list(cls.queries) for name, cls in mine.classes.items()} == {"gold": ["a"], "bulk": []}
    assert query_report(mine)["fraud"]["offered"] == 10
    assert "copy" not in query_report(mine)
    assert SHARED.classes["gold"].queries.keys() == {"a", "b"}, "what was given is left as it is"


def test_a_classs_rows_are_those_of_the_drivers_own_queries_and_what_includes_others_is_said() -> None:
    mine = own_status(SHARED, "mine", ["gold", "bulk"])
    gold, bulk = class_report(mine)["gold"], class_report(mine)["bulk"]
    assert [gold[key] for key in ("offered", "admitted", "shed", "waiting")] == [10, 7, 2, 1]
    assert (gold["oldest_waiting_s"], gold["sic"], gold["jain"], gold["others"]) == (0.1, 0.62, 1.0, 1)
    assert (bulk["offered"], bulk["oldest_waiting_s"], bulk["sic"], bulk["others"]) == (0, None, None, 1)
    for table in (closing_table(class_report(mine), "small"), live_table(mine, "small")):
        said = " ".join(shown(table).split())
        assert "gold: delays, share and headroom include other drivers' queries (1)" in said
    assert "waiting 1, with other drivers' queries (1); bulk:" in status_line(mine, 5.0)


def test_a_control_plane_of_ones_own_is_reported_as_it_is() -> None:
    mine = own_status(STATUS, "mine", STATUS.classes)
    assert mine == STATUS
    assert class_report(mine)["gold"]["others"] == 0
    assert "other drivers" not in shown(closing_table(class_report(mine), "small"))
