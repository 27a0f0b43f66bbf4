"""The query networks of the papers, built to what their texts state.

Costs follow from published throughput, see `docs/how-it-works.md` (calibration): QN-flat at c = 4.67 ms and
headroom 0.985 gives the 207.5 rows/s of pham2016 tables 1 and 2 and the 210 rows/s of table 4, with one
drop cost. The fixed cost a batch pays is 3.4 times a raw tuple's (pham2016 fig. 13: 120 us for a lone
tuple, 35,000 tuples/s in full batches).
"""

from __future__ import annotations

from penstock.sim.network import Kind, Network, Operator

TURN_TO_TUPLE_COST = 3.4
"""Fixed cost of a batch over the raw cost of one tuple (pham2016 fig. 13)."""

PHAM_HEADROOM = 0.985
"""Part of the CPU that AQSIOS's queries get; scheduling and statistics take the rest (pham2016 table 2)."""

_RAW_TUPLE_COST_S = 3.1e-6
"""Cost of one AQSIOS operator on one tuple without added delay (pham2016 fig. 13, full batches)."""


def qn_flat(cost_per_row_s: float = 4.67e-3) -> Network:
    """QN-flat of pham2016 4.3.1: source, eight selects and projects, output; cost added by delay.

    Args:
        cost_per_row_s: CPU seconds a row costs from source to output, in full batches.
    """
    turn_cost_s = TURN_TO_TUPLE_COST * _RAW_TUPLE_COST_S
    selectivities = [1.0] + [0.95, 1.0] * 4 + [1.0]
    passing, reach = 1.0, []
    for selectivity in selectivities:
        reach.append(passing)
        passing *= selectivity
    each_s = cost_per_row_s / sum(reach) - turn_cost_s / 50
    operators = [Operator("source", Kind.SOURCE, each_s)]
    for i, selectivity in enumerate(selectivities[1:-1]):
        name = f"{'select' if selectivity < 1 else 'project'}{i}"
        operators.append(Operator(name, Kind.OPERATOR, each_s, selectivity, (operators[-1].name,)))
    operators.append(Operator("output", Kind.OUTPUT, each_s, inputs=(operators[-1].name,)))
    return Network("QN-flat", tuple(operators), turn_cost_s=turn_cost_s, drop_cost_s=each_s / 4)


def qn_complex(groups: int = 60, cost_per_row_s: float = 92.7e-6, weighted: bool = False) -> Network:
    """QN-complex of pham2016 4.3.1: groups of four queries that share operators, 19 operators a group.

    Args:
        groups: 60 in the thesis, 1,140 operators.
        cost_per_row_s: CPU seconds a row of one source costs over all branches, in full batches.
        weighted: Gives the first half of the groups 1.5 times the scheduling quota (pham2016 5.3.2.4).
    """
    shape = _group("g", 1.0)
    unit = Network("unit", tuple(shape), turn_cost_s=TURN_TO_TUPLE_COST).cost_per_row_s()
    each_s = cost_per_row_s / unit
    operators: list[Operator] = []
    for g in range(groups):
        high = weighted and g < groups // 2
        label = ("high" if high else "low") if weighted else "all"
        operators += _group(f"g{g}", each_s, weight=1.5 if high else 1.0, label=label)
    return Network(
        "QN-complex",
        tuple(operators),
        turn_cost_s=TURN_TO_TUPLE_COST * each_s,
        drop_cost_s=each_s / 4,
        queue_rows=2048,
    )


def _group(name: str, cost_s: float, weight: float = 1.0, label: str = "all") -> list[Operator]:
    """Four queries on one source: two pairs share a select and a project, then each goes its own way."""
    operators: list[Operator] = []

    def add(part: str, kind: Kind, selectivity: float = 1.0, after: str | None = None) -> str:
        inputs = () if after is None else (after,)
        operators.append(
            Operator(f"{name}.{part}", kind, cost_s, selectivity, inputs, weight=weight, label=label)
        )
        return f"{name}.{part}"

    source = add("source", Kind.SOURCE)
    for pair, own_lengths in (("a", (3, 2)), ("b", (3, 2))):
        shared = add(f"{pair}.project", Kind.OPERATOR, 1.0, add(f"{pair}.select", Kind.OPERATOR, 0.9, source))
        for q, length in enumerate(own_lengths):
            last = shared
            for i in range(length):
                last = add(f"{pair}{q}.{i}", Kind.OPERATOR, 0.9 if i == 0 else 1.0, last)
            add(f"{pair}{q}.output", Kind.OUTPUT, 1.0, last)
    return operators
