"""QN-A and QN-B of pham2016 6.2.1: three classes with the same eleven queries on one engine.

The thesis names the queries (five aggregates, two window joins, four selects on thirteen sources a class)
and the rate at which their total load is slightly above the capacity. Costs and selectivities are ours; the
cost of an operator follows from that load.
"""

from __future__ import annotations

from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.sim.workloads.networks import TURN_TO_TUPLE_COST
from penstock.vocabulary.model import QueryClass

CLASSES = (
    QueryClass("class1", 0.3, 6.0, "aloma"),
    QueryClass("class2", 0.4, 3.0, "aloma"),
    QueryClass("class3", 0.5, 1.0, "aloma"),
)
"""Priorities 6, 3, 1 and delay targets of 300, 400, 500 ms."""

SOURCES = 13
"""Of a class: one an aggregate or select, two a join."""
QN_A_COST_S = 8.4e-6
"""CPU seconds of one operator on one tuple. Fitted to DILoS's loss in table 8: at 950 tuples/s the classes
need 1.03 of the machine in full batches, "slightly higher than the total system capacity" (6.2.1)."""

_AGGREGATES, _JOINS, _SELECTS = 5, 2, 4
_PASSING, _AGGREGATED = 0.8, 0.2
_WINDOW_S = 0.2
_MATCH = 1 / 1500
_PROBE_FRACTION = 0.01


def qn_a(
    cost_s: float = QN_A_COST_S, sharing: bool = False, first: int = 1, queue_rows: int = 4096
) -> Network:
    """The query network of three classes.

    Args:
        cost_s: CPU seconds of one operator on one tuple.
        sharing: Whether class 3's first join reads the two sources and two selects of class 1's first join.
        first: How often class 1 has the eleven queries: 1 is QN-A, 3 is QN-B.
        queue_rows: Size of every queue, the shared ones included.
    """
    operators: list[Operator] = []
    for cls in CLASSES:
        for copy in range(first if cls.name == "class1" else 1):
            shared = sharing and cls.name == "class3"
            operators += _queries(
                cls.name, f"{cls.name}.{copy}", cost_s, "class1.0.join0" if shared else None
            )
    return Network(
        "QN-B" if first > 1 else "QN-A",
        tuple(operators),
        turn_cost_s=TURN_TO_TUPLE_COST * cost_s,
        drop_cost_s=cost_s / 4,
        queue_rows=queue_rows,
    )


def _queries(cls: str, name: str, cost_s: float, shared_join: str | None) -> list[Operator]:
    """Eleven queries of a class; the first join may begin behind the selects of another class's."""
    operators: list[Operator] = []

    def add(part: str, kind: Kind, *inputs: str, selectivity: float = 1.0) -> str:
        operators.append(Operator(f"{name}.{part}", kind, cost_s, selectivity, inputs, label=cls, cls=cls))
        return f"{name}.{part}"

    for q in range(_AGGREGATES):
        source = add(f"aggregate{q}.source", Kind.SOURCE)
        groups = add(f"aggregate{q}.aggregate", Kind.OPERATOR, source, selectivity=_AGGREGATED)
        having = add(f"aggregate{q}.having", Kind.OPERATOR, groups)
        add(f"aggregate{q}.output", Kind.OUTPUT, having)
    for q in range(_SELECTS):
        source = add(f"select{q}.source", Kind.SOURCE)
        rows = add(f"select{q}.select", Kind.OPERATOR, source, selectivity=_PASSING)
        columns = add(f"select{q}.project", Kind.OPERATOR, rows)
        add(f"select{q}.output", Kind.OUTPUT, columns)
    for q in range(_JOINS):
        sides = []
        for side in ("left", "right"):
            if q == 0 and shared_join is not None:
                sides.append(add(f"join{q}.{side}.entry", Kind.OPERATOR, f"{shared_join}.{side}.select"))
                continue
            source = add(f"join{q}.{side}.source", Kind.SOURCE)
            sides.append(add(f"join{q}.{side}.select", Kind.OPERATOR, source, selectivity=_PASSING))
        operators.append(
            Operator(
                f"{name}.join{q}.join",
                Kind.JOIN,
                cost_s,
                _MATCH,
                (sides[0], sides[1]),
                _WINDOW_S,
                _PROBE_FRACTION * cost_s,
                label=cls,
                cls=cls,
            )
        )
        add(f"join{q}.output", Kind.OUTPUT, f"{name}.join{q}.join")
    return operators
