import pytest

from penstock.vocabulary.durations import parse_duration_s, parse_interval_s
from penstock.vocabulary.errors import InvalidInputError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        pytest.param(2, 2.0, id="a_number_is_seconds"),
        pytest.param(0.5, 0.5, id="a_fraction_is_seconds"),
        pytest.param("2", 2.0, id="a_text_without_a_unit_is_seconds"),
        pytest.param("2s", 2.0, id="seconds"),
        pytest.param("500ms", 0.5, id="milliseconds"),
        pytest.param("250us", 250e-6, id="microseconds"),
        pytest.param("250µs", 250e-6, id="microseconds_with_the_greek_letter"),
        pytest.param("1min", 60.0, id="minutes"),
        pytest.param("1.5 h", 5400.0, id="hours_after_a_blank"),
        pytest.param("1e-3s", 0.001, id="an_exponent"),
        pytest.param(" .5S ", 0.5, id="capitals_and_blanks"),
    ],
)
def test_a_duration_reads_as_people_write_it(written: object, seconds: float) -> None:
    assert parse_duration_s(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("soon", "the target must be a number with a unit; got: 'soon'; hint: write 2, 2s, 500ms or 1min"),
        ("", "the target must be a number with a unit; got: ''"),
        ("nan", "the target must be a number with a unit; got: 'nan'"),
        ("2 fortnights", "the target must have a unit of us, ms, s, min or h; got: '2 fortnights'"),
        ("-2s", "the target must be a positive number of seconds; got: '-2s'"),
        (0, "the target must be a positive number of seconds; got: 0"),
        (float("nan"), "the target must be a positive number of seconds; got: nan"),
        (10**400, "the target must be a positive number of seconds; got: 1000"),
        (True, "the target must be a number with a unit; got: True"),
        (None, "the target must be a number with a unit; got: None"),
        ([2], r"the target must be a number with a unit; got: \[2\]"),
    ],
)
def test_what_is_not_a_duration_is_rejected_with_rule_value_and_hint(written: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_duration_s(written, "the target")


def test_a_moment_may_be_zero_where_a_duration_may_not() -> None:
    assert parse_duration_s("0s", allow_zero=True) == 0.0
    with pytest.raises(InvalidInputError, match="must be 0 or a positive number"):
        parse_duration_s(-1, allow_zero=True)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10 seconds", 10.0),
        ("1 second", 1.0),
        ("INTERVAL 1 hour 30 minutes", 5400.0),
        ("500 milliseconds", 0.5),
        ("2 WEEKS 1 day", 1_296_000.0),
    ],
)
def test_an_interval_of_spark_sql_is_seconds(written: str, seconds: float) -> None:
    assert parse_interval_s(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "1 month", "soon", "10", "seconds", "1.5 seconds", "10 seconds and"])
def test_an_interval_without_a_fixed_length_is_refused(written: str) -> None:
    with pytest.raises(InvalidInputError, match="a window's length is an interval of fixed length; got: "):
        parse_interval_s(written)
