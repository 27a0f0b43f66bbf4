"""A manager, shedder or capacity policy that raises whatever exception never ends a query."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.control.shed.checked import checked
from penstock.control.state.guard import SAY_EVERY_S, Guard
from penstock.policies.capacity import CAPACITY_POLICIES, HighestRate
from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.shedding import SHEDDERS
from penstock.policies.shedding.base import ShedDecision, ShedObservation, WaitingBatches
from penstock.policies.shedding.random import RandomConfig
from penstock.record.recording import LiveRecorder
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError, PenstockError

UNICODE = {UnicodeDecodeError: ("ascii", b"", 0, 1, "u"), UnicodeEncodeError: ("ascii", "", 0, 1, "u")}


class UnwritableError(Exception):
    """An exception that cannot be written."""

    def __repr__(self) -> str:
        raise SystemExit(1)

    __str__ = __repr__


ERRORS: list[BaseException] = [
    *(
        kind(*UNICODE.get(kind, ("u", 0, 1, "u") if kind is UnicodeTranslateError else ("e",)))
        for kind in vars(builtins).values()
        if isinstance(kind, type)
        and issubclass(kind, BaseException)
        and not issubclass(kind, BaseExceptionGroup | KeyboardInterrupt)
    ),
    ExceptionGroup("several", [ValueError("v"), KeyError("k")]),
    BaseExceptionGroup("several", [ValueError("v"), SystemExit(1)]),
    asyncio.CancelledError(),
    UnwritableError(),
    PenstockError("p"),
    InvalidInputError("a rule", "got", "hint"),
]
"""Each built-in exception, and Penstock's own. `KeyboardInterrupt` is a user's wish, not a policy's error."""
SETTINGS: dict[str, dict[str, Any]] = {"semantic": {"utility": "value"}, "window": {"size": "100ms"}}


def raising(*errors: BaseException) -> Callable[..., Any]:
    """A method that raises one of these after the other."""
    turns = itertools.cycle(errors)

    def fails(*_: Any, **__: Any) -> Any:
        raise next(turns)

    return fails


def overloaded(virtual: Any, **settings: Any) -> Any:
    """A cluster with two queries of one class that gets three times what it can process."""
    cluster = virtual({"gold": {"target": 2.0, **settings}, "bulk": {"target": 8.0}})
    rate_per_s = 1.5 * virtual.machine().capacity_per_s(2.0)
    for i in range(2):
        cluster.add(f"q{i}", "gold", virtual.stream(cluster, rate_per_s, key="sensor"), seed=i)
    cluster.run(8.0)
    return cluster


def check_goes_on(virtual: Any, cluster: Any, seconds: float = 6.0) -> None:
    """Queries have batches while something fails, and their books are right."""
    before = {key: len(query.batches) for key, query in cluster.queries.items()}
    cluster.run(seconds)
    for key, query in cluster.queries.items():
        assert len(query.batches) > before[key]
    virtual.check_books(cluster)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_policy_raises_penstock_goes_on_without_its_word(error: BaseException) -> None:
    assert Guard().call("the manager", raising(error), lambda _: "instead", "no shedding", 0.0) == "instead"


def test_an_interrupt_by_the_user_is_not_caught() -> None:
    with pytest.raises(KeyboardInterrupt):
        Guard().call("the manager", raising(KeyboardInterrupt()), str, "no shedding", 0.0)


@pytest.mark.briefly("ctrl", "deadline")
@pytest.mark.parametrize("manager", sorted(LOAD_MANAGERS))
def test_a_manager_that_fails_sheds_nothing_and_is_asked_again(
    virtual: Any, manager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = overloaded(virtual, manager=manager)
    cycle = cluster.engine.classes["gold"].cycle
    with monkeypatch.context() as failing:
        failing.setattr(cycle.manager, "decide", raising(*ERRORS))
        cluster.run(2.0)  # of a manager with a period, the next decision
        count = {key: len(query.batches) for key, query in cluster.queries.items()}
        check_goes_on(virtual, cluster)
        for key, query in cluster.queries.items():
            assert all(b.books.shed == 0 for b in query.batches[count[key] :])
        assert "the manager failed" in cluster.status().classes["gold"].reason
    check_goes_on(virtual, cluster)
    assert "the manager failed" not in cluster.status().classes["gold"].reason


@pytest.mark.parametrize("answer", [None, 0.5, "text", {}], ids=str)
def test_a_manager_that_answers_nonsense_sheds_nothing(
    virtual: Any, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = overloaded(virtual)
    monkeypatch.setattr(cluster.engine.classes["gold"].cycle.manager, "decide", lambda _: answer)
    check_goes_on(virtual, cluster)


@pytest.mark.parametrize("shedder", sorted(SHEDDERS))
def test_a_shedder_that_fails_leaves_the_choice_to_coins(
    virtual: Any, shedder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = overloaded(virtual, shedder=shedder, shedder_settings=SETTINGS.get(shedder, {}))
    governed = cluster.engine.classes["gold"]
    monkeypatch.setattr(governed.shedder, "decide", raising(*ERRORS), raising=False)
    check_goes_on(virtual, cluster)
    assert sum(q.batches[-1].offset.books.sampled for q in cluster.queries.values()) > 0


NONSENSE: dict[str, Callable[[ShedDecision], object]] = {
    "None": lambda _: None,
    "a number": lambda _: 0.5,
    "a text": lambda _: "keep all",
    "an empty mapping": lambda _: {},
    "no SIC": lambda d: replace(d, expected_sic=None),
    "SIC of no query": lambda d: replace(d, expected_sic=np.empty(0)),
    "SIC as an empty mapping": lambda d: replace(d, expected_sic={}),
    "SIC by names": lambda d: replace(d, expected_sic={"q0": 0.5, "q1": 0.5}),
    "SIC of queries that are not there": lambda d: replace(d, expected_sic=np.ones(9)),
    "SIC of NaN": lambda d: replace(d, expected_sic=np.full_like(d.expected_sic, np.nan)),
    "a negative SIC": lambda d: replace(d, expected_sic=-1.0 - d.expected_sic),
    "a load of NaN": lambda d: replace(d, kept_load=np.nan),
    "a negative load": lambda d: replace(d, kept_load=-7.0),
    "no load": lambda d: replace(d, kept_load=None),
    "no reason": lambda d: replace(d, reason=None),
    "another observation": lambda d: replace(d, observation_id=d.observation_id + 1),
    "nothing to keep": lambda d: replace(d, keep=None),
    "too few batches": lambda d: replace(d, keep=d.keep[:1]),
    "too many batches": lambda d: replace(d, keep=np.ones(d.keep.size + 1, np.bool_)),
    "negative rows": lambda d: replace(d, keep=np.full(d.keep.size, -1.0)),
    "rows of NaN": lambda d: replace(d, keep=np.full(d.keep.size, np.nan)),
    "a list": lambda d: replace(d, keep=d.keep.tolist()),
    "a chance of NaN": lambda d: replace(d, unit="key", keep_probability=np.nan),
    "a negative chance": lambda d: replace(d, unit="key", keep_probability=-0.5),
    "a chance that is a text": lambda d: replace(d, unit="key", keep_probability="half"),
    "a seed that is a text": lambda d: replace(d, unit="key", keep_probability=0.5, seed="s"),
}
"""By what is wrong with it, an answer of a shedder that cannot be carried out."""


@pytest.mark.parametrize("spoil", NONSENSE.values(), ids=NONSENSE)
def test_a_decision_that_cannot_be_carried_out_is_refused(spoil: Callable[[ShedDecision], Any]) -> None:
    one = np.ones(3)
    batches = WaitingBatches(np.array([0, 0, 1]), np.array([5, 6, 7]), one / 9, one, one)
    seen = ShedObservation(4, 1.0, batches, one[:2] / 2, one[:2] / 9, 11.0)
    decision = RandomConfig().build(seed=7).decide(seen)
    assert checked(decision, seen) is decision
    with pytest.raises((InvalidInputError, TypeError, AttributeError, ValueError)):
        checked(spoil(decision), seen)


@pytest.mark.briefly(
    *("None-random", "SIC of no query-random", "SIC as an empty mapping-random", "SIC of NaN-random"),
    *("negative rows-random", "too few batches-semantic", "a seed that is a text-cohort"),
)
@pytest.mark.parametrize("shedder", ["random", "cohort", "semantic"])
@pytest.mark.parametrize("spoil", NONSENSE.values(), ids=NONSENSE)
def test_a_shedder_that_answers_nonsense_has_failed_and_the_grant_goes_on_without_it(
    virtual: Any,
    shedder: str,
    spoil: Callable[[ShedDecision], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = overloaded(virtual, shedder=shedder, shedder_settings=SETTINGS.get(shedder, {}))
    governed = cluster.engine.classes["gold"]
    decide = governed.shedder.decide
    monkeypatch.setattr(governed.shedder, "decide", lambda seen: spoil(decide(seen)))
    before = {key: len(query.batches) for key, query in cluster.queries.items()}
    check_goes_on(virtual, cluster)
    assert f"class gold: its shedder {shedder} failed (1 times so far)" in caplog.text
    units = {b.offset.plan.unit for k, q in cluster.queries.items() for b in q.batches[before[k] + 1 :]}
    assert units <= {"row", "segment"}, "no plan is the shedder's"
    assert sum(q.batches[-1].offset.books.sampled for q in cluster.queries.values()) > 0


@pytest.mark.parametrize("policy", sorted(CAPACITY_POLICIES))
def test_a_capacity_policy_that_fails_leaves_shares_as_they_are(
    virtual: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = virtual({"gold": {"target": 2.0}, "bulk": {"target": 8.0}}, capacity={"policy": policy})
    for name in ("gold", "bulk"):
        cluster.add(name, name, virtual.stream(cluster, 30_000.0))
    cluster.run(8.0)
    kind = type(cluster.engine.classes.capacity.policy)
    monkeypatch.setattr(kind, "redistribute", raising(*ERRORS))
    shares = dict(cluster.engine.classes.capacity.shares)
    check_goes_on(virtual, cluster)
    assert cluster.engine.classes.capacity.shares == shares
    assert not any(cluster.engine.classes.capacity._reports.values()), "what it was told does not pile up"


SHARES: dict[str, Callable[[dict[str, float]], object]] = {
    "None": lambda _: None,
    "a number": lambda _: 0.5,
    "a text": lambda _: "gold",
    "an empty mapping": lambda _: {},
    "a class is missing": lambda shares: {"gold": sum(shares.values())},
    "a class is not there": lambda shares: {**shares, "lead": 0.0},
    "NaN": lambda shares: dict.fromkeys(shares, np.nan),
    "negative": lambda shares: {"gold": 2.0, "bulk": -1.0},
    "infinite": lambda shares: dict.fromkeys(shares, np.inf),
    "a text as a share": lambda shares: dict.fromkeys(shares, "half"),
    "None as a share": lambda shares: dict.fromkeys(shares, None),
    "more than there is": lambda shares: dict.fromkeys(shares, 1.0),
    "less than there is": lambda shares: dict.fromkeys(shares, 0.1),
}
"""By what is wrong with it, an answer of a capacity policy that cannot be carried out."""


@pytest.mark.briefly("a class is not there", "NaN", "negative", "more than there is")
@pytest.mark.parametrize("spoil", SHARES.values(), ids=SHARES)
def test_a_capacity_policy_that_answers_nonsense_leaves_shares_as_they_are_until_it_answers_again(
    virtual: Any,
    spoil: Callable[[dict[str, float]], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = virtual({"gold": {"target": 2.0}, "bulk": {"target": 8.0}}, capacity={"policy": "dilos"})
    for name in ("gold", "bulk"):
        cluster.add(name, name, virtual.stream(cluster, 30_000.0))
    cluster.run(8.0)
    capacity = cluster.engine.classes.capacity
    redistribute, shares, claims = capacity.policy.redistribute, dict(capacity.shares), dict(capacity.claims)
    kind = type(capacity.policy)
    with monkeypatch.context() as failing:
        failing.setattr(kind, "redistribute", lambda _, uses: spoil(redistribute(uses)))
        check_goes_on(virtual, cluster)
        assert (capacity.shares, capacity.claims) == (shares, claims)
        assert "capacity policy dilos failed (1 times so far)" in caplog.text
    asked = []
    monkeypatch.setattr(kind, "redistribute", lambda _, uses: asked.append(uses) or redistribute(uses))
    check_goes_on(virtual, cluster)
    assert asked
    assert caplog.text.count("capacity policy dilos failed") == 1


@pytest.mark.parametrize("answer", [None, "a query that is not there", 7, ["q0"], np.ones(2)], ids=repr)
def test_an_order_inside_a_class_that_answers_nonsense_starves_nobody(
    virtual: Any, answer: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = overloaded(virtual)
    monkeypatch.setattr(HighestRate, "next_of", lambda *_: answer)
    check_goes_on(virtual, cluster)
    assert "highest rate failed (1 times so far)" in caplog.text


@pytest.mark.parametrize("method", ["next_of", "took"])
def test_an_order_inside_a_class_that_fails_starves_nobody(
    virtual: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = overloaded(virtual)
    monkeypatch.setattr(HighestRate, method, raising(KeyError("k")))
    before = sum(len(query.batches) for query in cluster.queries.values())
    cluster.run(6.0)
    assert sum(len(query.batches) for query in cluster.queries.values()) > before
    virtual.check_books(cluster)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_record_that_fails_is_cut_off_and_ends_no_query(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        abandoned = 0

        def __getattr__(self, name: str) -> Any:
            return raising(error)

        def abandon(self) -> None:
            self.abandoned += 1

    broken = Broken()
    recorder = LiveRecorder(broken)  # type: ignore[arg-type]
    recorder.record_sic({"a": np.nan})
    recorder.record(None)  # type: ignore[arg-type]
    assert broken.abandoned == 1
    assert caplog.text.count("not recorded any further") == 1


def test_a_policy_that_fails_at_every_grant_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    timer = ManualClock(0.0)
    guard = Guard()
    for _ in range(100):
        assert guard.call("the manager", raising(ValueError("v")), str, "no shedding", timer()) == "v"
        timer.advance(SAY_EVERY_S / 50)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 2
    assert "the manager failed (51 times so far); no shedding" in said[1]
