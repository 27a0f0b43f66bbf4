"""SIC by hand: the papers' worked examples, and conservation over random operator graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.quality import (
    BatchSic,
    SlidingSums,
    SourceTimeWindow,
    derive,
    duplicate,
    partition,
    query_sic,
    share_among_windows,
    source_tuple_sic,
)
from penstock.vocabulary.errors import InvalidInputError


def tuples(sic: float, count: int) -> list[BatchSic]:
    """Tuples as batches of one."""
    return [BatchSic(1, sic)] * count


def total(batches: list[BatchSic]) -> float:
    return math.fsum(batch.sic for batch in batches)


def test_kalyvianaki_figure_2_without_shedding_the_query_sic_is_1() -> None:
    of_b, of_c = source_tuple_sic(np.array([4.0, 2.0]), 2.0)
    assert (of_b, of_c) == (0.125, 0.25)
    b, c = derive(tuples(of_b, 4), 2), derive(tuples(of_c, 2), 2)
    assert (b.tuple_sic, c.tuple_sic) == (0.25, 0.25)
    a = derive([b, c], 2)
    assert (a.tuple_sic, a.sic) == (0.5, 1.0)


def test_kalyvianaki_figure_2_with_shedding_the_query_sic_is_one_half() -> None:
    # b sheds two of its four inputs; of c's two derived tuples one is shed
    b = derive(tuples(0.125, 2), 1)
    c = partition(derive(tuples(0.25, 2), 2), [1, 1])[0]
    assert derive([b, c], 1).sic == 0.125 + 0.125 + 0.25 == 0.5


def test_fiscato_figure_3_7_a_fan_in_query_has_the_sum_of_its_sources() -> None:
    # absolute values as in the figure: three sources of 2, 4 and 3 tuples, each worth 1
    averages = [derive(tuples(1 / n, n), 1) for n in (2, 4, 3)]
    assert [average.sic for average in averages] == pytest.approx([1, 1, 1])
    assert derive(averages, 1).sic == pytest.approx(3)
    averages[1] = derive(tuples(1 / 4, 3), 1)  # one tuple of source 2 is lost
    assert averages[1].sic == pytest.approx(3 / 4)
    assert derive(averages, 1).sic == pytest.approx(11 / 4)


def test_fiscato_figure_3_8_a_split_leaves_tuples_their_sic() -> None:
    messages = derive(tuples(1 / 300, 300), 300)
    parts = partition(messages, [100, 100, 100])
    scored = [derive([part], 100) for part in parts]
    assert [batch.tuple_sic for batch in scored] == pytest.approx([1 / 300] * 3)
    top = derive(scored, 10)
    assert (top.tuple_sic, top.sic) == (pytest.approx(1 / 10), pytest.approx(1))


def test_fiscato_figure_3_9_multiplexed_output_shares_its_sic() -> None:
    keyword = derive(tuples(1 / 3, 3), 2)
    branches = duplicate(keyword, 2)
    assert [batch.tuple_sic for batch in branches] == pytest.approx([1 / 4] * 2)
    signs = [derive([branch], 1) for branch in branches]
    assert [batch.tuple_sic for batch in signs] == pytest.approx([1 / 2] * 2)
    counts = [duplicate(derive([sign], 1), 2) for sign in signs]
    assert [batch.tuple_sic for pair in counts for batch in pair] == pytest.approx([1 / 4] * 4)
    ratio = derive([pair[1] for pair in counts], 1)
    assert ratio.tuple_sic == pytest.approx(1 / 2)
    assert total([counts[0][0], counts[1][0], ratio]) == pytest.approx(1)


def test_an_operator_without_output_passes_its_sic_on_in_an_empty_batch() -> None:
    nothing = derive(tuples(0.1, 5), 0)
    assert (nothing.rows, nothing.tuple_sic) == (0, None)
    assert derive([nothing, *tuples(0.1, 5)], 1).sic == pytest.approx(1)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], int, bool]], int]:
    """Rows of each source, then operators: which streams they read, rows out, and whether a copy goes on."""
    sources = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    operators = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 30), min_size=1, max_size=3), st.integers(0, 12), st.booleans()
            ),
            max_size=12,
        )
    )
    return sources, operators, draw(st.integers(0, 2**32 - 1))


def run_graph(streams: list[BatchSic], operators: list[tuple[list[int], int, bool]]) -> list[BatchSic]:
    """Each operator takes streams out of those that are open and puts one in, or the same twice."""
    for reads, rows, copied in operators:
        taken = sorted({index % len(streams) for index in reads}, reverse=True)
        out = derive([streams.pop(index) for index in taken], rows)
        streams += duplicate(out, 2) if copied else [out]
        if rows > 1:
            streams += partition(streams.pop(), [1, rows - 1])
    return streams


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_without_shedding_the_query_sic_is_1_for_any_operator_graph(
    graph: tuple[list[int], list[tuple[list[int], int, bool]], int],
) -> None:
    sources, operators, _ = graph
    sic = source_tuple_sic(np.array(sources, float), float(len(sources)))
    streams = [BatchSic(rows, rows * float(one)) for rows, one in zip(sources, sic, strict=True)]
    assert total(run_graph(streams, operators)) == pytest.approx(1.0, abs=1e-9)


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_with_shedding_the_query_sic_is_that_of_the_kept_source_tuples(
    graph: tuple[list[int], list[tuple[list[int], int, bool]], int],
) -> None:
    sources, operators, seed = graph
    kept = [int(np.random.default_rng((seed, i)).integers(0, n + 1)) for i, n in enumerate(sources)]
    sic = source_tuple_sic(np.array(sources, float), float(len(sources)))
    streams = [BatchSic(rows, rows * float(one)) for rows, one in zip(kept, sic, strict=True)]
    expected = math.fsum(rows * float(one) for rows, one in zip(kept, sic, strict=True))
    assert total(run_graph(streams, operators)) == pytest.approx(expected, abs=1e-9)


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=50),
    st.floats(0.1, 20),
    st.floats(0.1, 20),
)
@settings(deadline=None)
def test_sharing_among_windows_conserves_sic(times: list[float], range_s: float, slide_s: float) -> None:
    sic = np.linspace(0.1, 1.0, len(times))
    _, shares = share_among_windows(np.array(times), sic, range_s, slide_s)
    assert shares.sum() == pytest.approx(sic.sum())


def test_a_tuple_in_four_windows_gives_each_a_quarter() -> None:
    window, share = share_among_windows(np.array([10.0]), np.array([0.8]), range_s=4.0, slide_s=1.0)
    assert window.tolist() == [11, 12, 13, 14]
    assert share.tolist() == [0.2] * 4


def test_a_tuple_between_windows_is_used_up_by_the_next() -> None:
    window, share = share_among_windows(np.array([2.0]), np.array([1.0]), range_s=1.0, slide_s=5.0)
    assert (window.tolist(), share.tolist()) == ([1], [1.0])


def each(source: int, rows: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array([source]), np.array([rows])


def test_counts_are_of_one_source_time_window_and_slide_out() -> None:
    window = SourceTimeWindow(1, stw_s=10.0, slide_s=0.25)
    for step in range(100):
        window.offer(step * 0.25, *each(0, 10))
    assert window.window_rows(24.75).tolist() == [400.0]
    assert window.window_rows(29.75).tolist() == [200.0]
    assert not window.silent(29.75)[0]
    assert window.silent(35.0)[0]


def test_a_window_that_is_not_full_yet_is_scaled_up_from_what_was_seen() -> None:
    window = SourceTimeWindow(1, stw_s=10.0, slide_s=0.25)
    window.offer(100.0, *each(0, 5))
    window.offer(100.25, *each(0, 5))
    assert window.window_rows(100.25).tolist() == [200.0]


def test_a_source_that_never_sends_keeps_its_share_and_is_named() -> None:
    window = SourceTimeWindow(4)
    window.offer(0.0, np.array([0, 1, 3]), np.array([1.0, 2.0, 3.0]))
    assert window.silent(0.0).tolist() == [False, False, True, False]
    assert source_tuple_sic(window.window_rows(0.0), 4.0)[2] == 0.25
    # whatever is processed of the other three: a quarter is missing
    assert query_sic(np.array([0.75]), np.array([0.75]), np.array([0.75])).tolist() == [0.75]


def simulated(rates: list[int], keep: float) -> float:
    """SIC of a query with one source whose rate is given slide by slide."""
    window, offered, results = SourceTimeWindow(1), SlidingSums(1), SlidingSums(1)
    for step, rows in enumerate(rates):
        now_s = step * 0.25
        window.offer(now_s, *each(0, rows))
        sic = rows * float(source_tuple_sic(window.window_rows(now_s), 1.0)[0])
        offered.add(now_s, *each(0, sic))
        results.add(now_s, *each(0, keep * sic))
    now_s = (len(rates) - 1) * 0.25
    assert offered.sums(now_s)[0] > 0
    return float(query_sic(results.sums(now_s), offered.sums(now_s), np.array([1.0]))[0])


@pytest.mark.parametrize("keep", [1.0, 0.5])
@pytest.mark.parametrize(
    "rates", [[10] * 80, [10] * 60 + [1000] * 20, [1000] * 60 + [10] * 20, [1, 1000] * 40]
)
def test_a_rate_that_changes_a_hundredfold_inside_a_window_does_not_look_like_loss(
    rates: list[int], keep: float
) -> None:
    assert simulated(rates, keep) == pytest.approx(keep, abs=1e-9)


def test_at_a_steady_rate_the_offered_sic_of_a_window_is_one() -> None:
    window, offered = SourceTimeWindow(1), SlidingSums(1)
    for step in range(200):
        window.offer(step * 0.25, *each(0, 7))
        offered.add(
            step * 0.25, *each(0, 7 * float(source_tuple_sic(window.window_rows(step * 0.25), 1.0)[0]))
        )
    assert offered.sums(199 * 0.25)[0] == pytest.approx(1.0, abs=1e-9)


def test_a_jump_in_time_empties_the_window() -> None:
    sums = SlidingSums(1)
    sums.add(0.0, *each(0, 1.0))
    assert sums.sums(1000.0).tolist() == [0.0]
    sums.add(3.0, *each(0, 1.0))  # late: counts as of the latest slide
    assert sums.sums(1009.0).tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SlidingSums(1, 10.0, 0.3),
            "holds a whole number of slides; got: 10.0 / 0.3; hint: 10 s and",
        ),
        (lambda: SlidingSums(1, 0.0), "the source time window must be a positive number; got: 0.0"),
        (lambda: SlidingSums(1, 10.0, -1.0), "the slide must be a positive number; got: -1.0"),
        (lambda: BatchSic(-1, 0.1), "rows and a SIC that are not negative; got: -1 rows, SIC 0.1"),
        (lambda: BatchSic(1, math.nan), "not negative; got: 1 rows, SIC nan"),
        (lambda: duplicate(BatchSic(1, 1.0), 0), "goes to one branch at the least; got: 0"),
        (lambda: partition(BatchSic(3, 1.0), [1, 1]), r"every tuple of a batch once; got: \[1, 1\] of 3"),
        (
            lambda: share_among_windows(np.zeros(1), np.zeros(1), 0.0, 1.0),
            "the window's range must be a positive number",
        ),
        (
            lambda: share_among_windows(np.zeros(1), np.zeros(1), 1.0, 0.0),
            "the window's slide must be a positive number",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]
