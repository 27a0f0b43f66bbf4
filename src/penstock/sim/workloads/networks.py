"""The query networks of the papers, built to what their texts state.

Costs follow from published throughput, see `docs/plants.md` (calibration): QN-flat at c = 4.67 ms and
headroom 0.985 gives the 207.5 rows/s of pham2016 tables 1 and 2 and the 210 rows/s of table 4, with one
drop cost. QN-complex at c = 91.5 us (60 sources) and a fixed cost a batch of half a tuple's cost gives the
losses of Aurora at 0.92 and 0.93 and of SEaMLeSS in pham2016 table 3.
"""

from __future__ import annotations

from penstock.sim.workloads.network import Kind, Network, Operator

TURN_TO_TUPLE_COST = 0.5
"""Fixed cost of a batch over the cost of one tuple: the batch effect of pham2016 fig. 14. Fitted to Aurora's
losses in table 3, which come from the measured cost rising in small batches. (Fig. 13 would allow up to
3.4, if all of a lone tuple's 120 us were CPU time; Aurora would then lose 68 %, the thesis has 37.59 %.)"""

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


def qn_complex(groups: int = 60, cost_per_row_s: float = 91.5e-6, weighted: bool = False) -> Network:
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
    """Four queries on one source: two pairs share a select and a project, then each query is separate."""
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


TU_HEADROOM = 0.97
"""Headroom that tu2006 identified for its Borealis node (fig. 6)."""


def borealis(capacity_per_s: float = 190.0) -> Network:
    """The fourteen delay operators of tu2006 4.2: three paths of different length, filters on the way.

    Args:
        capacity_per_s: Rows a second at headroom 0.97 (fig. 5: delays grow beyond 190/s), a third each path.
    """
    lengths, passing = (4, 5, 5), 0.9
    executions = sum(2 + passing * (length - 2) for length in lengths) / len(lengths)
    each_s = TU_HEADROOM / capacity_per_s / executions
    operators: list[Operator] = []
    for p, length in enumerate(lengths):
        operators.append(Operator(f"p{p}.0", Kind.SOURCE, each_s))
        for i in range(1, length):
            kind = Kind.OUTPUT if i == length - 1 else Kind.OPERATOR
            operators.append(
                Operator(f"p{p}.{i}", kind, each_s, passing if i == 1 else 1.0, (operators[-1].name,))
            )
    return Network("Borealis-14", tuple(operators), batch_rows=1, delay_of_filtered=True)


def qn_long(groups: int = 5, cost_s: float = 12e-6, window_s: float = 10.0) -> Network:
    """QN-long of pham2016 5.3.1: groups of four queries, five range-window joins deep, with shared prefixes.

    A group has six sources. The first join is shared by all four queries; two of them share everything up
    to the group-aggregate. The thesis gives no costs or selectivities: see bench/papers/pham2016, fig19.

    Args:
        groups: 5 in the thesis.
        cost_s: CPU seconds of one operator on one tuple, in full batches.
        window_s: Range of the join windows.
    """
    operators: list[Operator] = []

    def add(name: str, kind: Kind, *inputs: str, selectivity: float = 1.0) -> str:
        operators.append(Operator(name, kind, cost_s, selectivity, inputs))
        return name

    def join(name: str, left: str, right: str) -> str:
        probe_s = cost_s / 2000
        operators.append(Operator(name, Kind.JOIN, cost_s, _LONG_MATCH, (left, right), window_s, probe_s))
        return name

    for g in range(groups):
        sources = [add(f"g{g}.source{i}", Kind.SOURCE) for i in range(6)]
        first = join(f"g{g}.join1", sources[0], sources[1])
        for query in ("a", "b", "c"):
            last = first
            for i in range(2, 6):
                last = join(f"g{g}.{query}.join{i}", last, sources[i])
            stream = add(f"g{g}.{query}.istream", Kind.OPERATOR, last)
            rows = add(f"g{g}.{query}.rows", Kind.OPERATOR, stream)
            aggregate = add(f"g{g}.{query}.aggregate", Kind.OPERATOR, rows)
            for own in ("1", "2") if query == "a" else ("1",):
                having = add(f"g{g}.{query}{own}.having", Kind.OPERATOR, aggregate, selectivity=0.8)
                add(f"g{g}.{query}{own}.output", Kind.OUTPUT, having)
    return Network(
        "QN-long", tuple(operators), turn_cost_s=TURN_TO_TUPLE_COST * cost_s, drop_cost_s=cost_s / 4
    )


_LONG_MATCH = 1 / 6000
"""Probability that two tuples of QN-long join: windows of 10 s at 264 rows/s give about half a match."""
