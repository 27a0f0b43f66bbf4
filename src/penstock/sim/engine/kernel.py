"""The engine's inner loop in virtual time, compiled by numba. It has tuples, queues and turns, but no policy.

State is in the arrays of `State`, which the kernel mutates; `penstock.sim.engine.plant` owns them. A
tuple is its arrival time. Each operator input is a port with a ring buffer of fixed size. Classes have
the CPU in turn, each for its quota of time or until it has nothing to do (CQC); inside a class operators
are visited round robin. A visit processes up to `quota` tuples in batches of at most `batch`, each batch
paying a fixed cost, and CPU time passes at the headroom's pace.

Rows come into a class through its *entries*: its sources, and operators that read what another class
produced. An entry tosses a coin for each row; only rows of a class that gives grants are let in by `grant`.

`run` unpacks the state into local arrays and calls helpers that take only what they need. Passing the whole
tuple to a helper copies some fifty array descriptors a call, which made `run` ten times slower.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

SOURCE, OPERATOR, JOIN, OUTPUT = 0, 1, 2, 3
KEEP_ON_READ, GRANTS = 0, 1

CLOCK_NOW, CLOCK_DEBT = 0, 1
COUNT_CLASS, COUNT_DELAYS = 0, 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


class State(NamedTuple):
    """Every array the kernel reads or writes."""

    # the network, constant
    kind: np.ndarray
    cost_s: np.ndarray
    selectivity: np.ndarray
    probe_cost_s: np.ndarray
    window_s: np.ndarray
    quota: np.ndarray
    batch: np.ndarray
    turn_cost_s: np.ndarray
    drop_cost_s: np.ndarray
    first_port: np.ndarray
    port_operator: np.ndarray
    out_start: np.ndarray
    out_port: np.ndarray
    source_of: np.ndarray
    entry_of: np.ndarray
    output_of: np.ndarray
    label_of: np.ndarray
    filtered_counts: np.ndarray
    # classes: their operators in the order of visits, and the rules in force
    member: np.ndarray
    member_start: np.ndarray
    class_of: np.ndarray
    class_mode: np.ndarray
    class_quota_s: np.ndarray
    class_target_s: np.ndarray
    class_credit_s: np.ndarray
    class_cursor: np.ndarray
    class_dry_from_s: np.ndarray
    class_dry_s: np.ndarray
    class_departed: np.ndarray
    keep: np.ndarray
    # queues and join windows
    queue: np.ndarray
    head: np.ndarray
    length: np.ndarray
    window: np.ndarray
    window_head: np.ndarray
    window_length: np.ndarray
    # input rows: arrival times of all sources one after the other
    arrival_s: np.ndarray
    row_shed: np.ndarray
    next_row: np.ndarray
    end_row: np.ndarray
    # the machine over time
    headroom_from_s: np.ndarray
    headroom: np.ndarray
    factor_from_s: np.ndarray
    factor: np.ndarray
    # scalars and counters
    clock: np.ndarray
    counts: np.ndarray
    random: np.ndarray
    admitted: np.ndarray
    shed: np.ndarray
    work_s: np.ndarray
    batches: np.ndarray
    rows_in: np.ndarray
    rows_out: np.ndarray
    delays_s: np.ndarray
    delay_class: np.ndarray
    output_sum_s: np.ndarray
    output_count: np.ndarray
    label_count: np.ndarray
    label_violations: np.ndarray
    label_violation_s: np.ndarray
    label_violation_max_s: np.ndarray


@njit(cache=True, inline="always")
def _mix(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@njit(cache=True, inline="always")
def _unit(z: Any) -> float:
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True)
def uniform(random: np.ndarray) -> float:
    """Next number in [0, 1) of a splitmix64 sequence."""
    random[0] += _GOLDEN
    return _unit(_mix(random[0]))


@njit(cache=True)
def row_uniform(random: np.ndarray, row: int) -> float:
    """A row's own number in [0, 1): the same row gets the same coin every time."""
    return _unit(_mix(_mix(random[1]) ^ (np.uint64(row) * _GOLDEN)))


@njit(cache=True)
def _step(times_s: np.ndarray, now: float, i: int) -> int:
    """Index of the step in force at `now`, searching on from step `i`."""
    while i + 1 < times_s.size and times_s[i + 1] <= now:
        i += 1
    return i


@njit(cache=True)
def _push(queue: np.ndarray, head: np.ndarray, length: np.ndarray, port: int, arrival: float) -> None:
    end = head[port] + length[port]
    size = queue.shape[1]
    queue[port, end if end < size else end - size] = arrival
    length[port] += 1


@njit(cache=True)
def _room(length: np.ndarray, out_port: np.ndarray, first: int, last: int, size: int) -> int:
    """Free places in the fullest of the queues an operator writes to."""
    room = size
    for e in range(first, last):
        room = min(room, size - length[out_port[e]])
    return room


@njit(cache=True)
def _join(
    window: np.ndarray,
    head: np.ndarray,
    length: np.ndarray,
    port: int,
    other: int,
    arrival: float,
    range_s: float,
) -> int:
    """Adds a tuple to its window, expires both windows; returns how many tuples the other window has."""
    size = window.shape[1]
    for p in (port, other):
        while length[p] > 0 and window[p, head[p]] < arrival - range_s:
            head[p] = (head[p] + 1) % size
            length[p] -= 1
    if length[port] == size:
        head[port] = (head[port] + 1) % size
        length[port] -= 1
    window[port, (head[port] + length[port]) % size] = arrival
    length[port] += 1
    return int(length[other])


@njit(cache=True)
def _ready_port(queue: np.ndarray, head: np.ndarray, length: np.ndarray, port: int, is_join: bool) -> int:
    """The input port to serve next (a join serves the older head); -1 when all are empty."""
    if not is_join:
        return port if length[port] > 0 else -1
    left, right = length[port] > 0, length[port + 1] > 0
    if left and right:
        return port if queue[port, head[port]] <= queue[port + 1, head[port + 1]] else port + 1
    return port if left else (port + 1 if right else -1)


@njit(cache=True)
def _next_arrival(
    arrival_s: np.ndarray, next_row: np.ndarray, end_row: np.ndarray, read_freely: np.ndarray
) -> float:
    """When the next row comes to a source that reads without a grant."""
    earliest = np.inf
    for source in range(next_row.size):
        if read_freely[source] and next_row[source] < end_row[source]:
            earliest = min(earliest, arrival_s[next_row[source]])
    return earliest


@njit(cache=True)
def run(s: State, t_end: float) -> bool:
    """Advances virtual time to `t_end` (visits are not cut short); False when `delays_s` must be drained."""
    kind, cost_s, selectivity, quota = s.kind, s.cost_s, s.selectivity, s.quota
    out_start, out_port, first_port = s.out_start, s.out_port, s.first_port
    queue, head, length, arrival_s = s.queue, s.head, s.length, s.arrival_s
    next_row, end_row, rows_in, rows_out = s.next_row, s.end_row, s.rows_in, s.rows_out
    random, delays_s, work_s, row_shed = s.random, s.delays_s, s.work_s, s.row_shed
    output_of, label_of, source_of, entry_of = s.output_of, s.label_of, s.source_of, s.entry_of
    member, member_start, class_mode, keep = s.member, s.member_start, s.class_mode, s.keep
    credit_s, cursor, dry_from_s = s.class_credit_s, s.class_cursor, s.class_dry_from_s
    probe_cost_s, window_s = s.probe_cost_s, s.window_s
    batch, turn_cost_s, drop_cost_s = s.batch[0], s.turn_cost_s[0], s.drop_cost_s[0]
    filtered_counts = s.filtered_counts[0]
    now, debt = s.clock[CLOCK_NOW], s.clock[CLOCK_DEBT]
    c, recorded = s.counts[COUNT_CLASS], s.counts[COUNT_DELAYS]
    size, classes, largest_turn = queue.shape[1], class_mode.size, quota.max()
    read_freely = np.zeros(next_row.size, np.bool_)
    for i in range(kind.size):
        if kind[i] == SOURCE:
            read_freely[source_of[i]] = class_mode[s.class_of[i]] != GRANTS
    h = f = 0
    idle = dry = 0  # visits without work in this class's turn, and classes without work in a row
    finished = True
    while now < t_end:
        if recorded + largest_turn > delays_s.size:
            finished = False
            break
        h, f = _step(s.headroom_from_s, now, h), _step(s.factor_from_s, now, f)
        pace, factor = 1.0 / s.headroom[h], s.factor[f]
        o = member[member_start[c] + cursor[c]]
        first, last = out_start[o], out_start[o + 1]
        used = 0.0
        turns = 0
        worked = debt > 0.0
        if kind[o] == SOURCE and class_mode[c] != GRANTS:
            source = source_of[o]
            while turns < quota[o]:
                row = next_row[source]
                if row >= end_row[source] or arrival_s[row] > now + used * pace:
                    break
                if _room(length, out_port, first, last, size) < 1:
                    break
                next_row[source] = row + 1
                worked = True
                if row_shed[row]:  # dropped while it waited, by the in-network shedder
                    continue
                if turns % batch == 0:
                    used += turn_cost_s
                turns += 1
                if row_uniform(random, row) < keep[source]:
                    used += cost_s[o] * factor
                    s.admitted[source] += 1
                    rows_in[o] += 1
                    rows_out[o] += 1
                    for e in range(first, last):
                        _push(queue, head, length, out_port[e], arrival_s[row])
                else:
                    debt += drop_cost_s
                    s.shed[source] += 1
        else:
            is_join = kind[o] == JOIN
            entry = -1 if kind[o] == SOURCE else entry_of[o]
            while turns < quota[o]:
                port = _ready_port(queue, head, length, first_port[o], is_join)
                if port < 0:
                    break
                if entry >= 0 and keep[entry] < 1.0 and uniform(random) >= keep[entry]:
                    head[port] = head[port] + 1 if head[port] + 1 < size else 0
                    length[port] -= 1
                    debt += drop_cost_s
                    s.shed[entry] += 1
                    turns += 1
                    continue
                met = 0
                copies_at_least, chance = 1, 0.0
                if is_join or selectivity[o] != 1.0:
                    other = 2 * first_port[o] + 1 - port
                    mean = selectivity[o] * s.window_length[other] if is_join else selectivity[o]
                    copies_at_least = int(mean)
                    chance = mean - copies_at_least
                # room for the most that it may emit is checked before the draw: a new draw on every try
                # while the queue is full would favour small numbers
                most = min(copies_at_least + (1 if chance > 0.0 else 0), size)
                if _room(length, out_port, first, last, size) < most:
                    break
                copies = copies_at_least
                if chance > 0.0 and uniform(random) < chance:
                    copies += 1
                copies = min(copies, size)
                if turns % batch == 0:
                    used += turn_cost_s
                turns += 1
                arrival = queue[port, head[port]]
                head[port] = head[port] + 1 if head[port] + 1 < size else 0
                length[port] -= 1
                rows_in[o] += 1
                if entry >= 0:
                    s.admitted[entry] += 1
                if is_join:
                    met = _join(s.window, s.window_head, s.window_length, port, other, arrival, window_s[o])
                used += (cost_s[o] + probe_cost_s[o] * met) * factor
                rows_out[o] += copies
                for e in range(first, last):
                    for _ in range(copies):
                        _push(queue, head, length, out_port[e], arrival)
                if kind[o] == OUTPUT or copies == 0:
                    s.class_departed[c] += 1
                    if kind[o] == OUTPUT or filtered_counts:
                        delay, target_s = now + used * pace - arrival, s.class_target_s[c]
                        delays_s[recorded] = delay
                        s.delay_class[recorded] = c
                        recorded += 1
                        output, label = output_of[o], label_of[o]
                        if output >= 0:
                            s.output_sum_s[output] += delay
                            s.output_count[output] += 1
                        s.label_count[label] += 1
                        if delay > target_s:
                            s.label_violations[label] += 1
                            s.label_violation_s[label] += delay - target_s
                            s.label_violation_max_s[label] = max(
                                s.label_violation_max_s[label], delay - target_s
                            )
            worked = worked or turns > 0
        members = member_start[c + 1] - member_start[c]
        cursor[c] = cursor[c] + 1 if cursor[c] + 1 < members else 0
        if worked:
            idle = dry = 0
            if dry_from_s[c] >= 0.0:
                s.class_dry_s[c] += now - dry_from_s[c]
                dry_from_s[c] = -1.0
        else:
            idle += 1
        work_s[o] += used
        s.batches[o] += (turns + batch - 1) // batch
        elapsed = (used + debt) * pace
        debt = 0.0
        now += elapsed
        credit_s[c] -= elapsed
        if idle >= members:
            if dry_from_s[c] < 0.0:
                dry_from_s[c] = now
            dry += 1
        if idle >= members or credit_s[c] <= 0.0:
            # unused time is passed on, not saved; a visit that ran over is paid back by missed turns
            idle = 0
            while True:
                c = c + 1 if c + 1 < classes else 0
                credit_s[c] = min(credit_s[c], 0.0) + s.class_quota_s[c]
                if credit_s[c] > 0.0:
                    break
                dry = 0  # it may have work
        if dry >= classes:
            dry = 0
            now = min(t_end, max(now, _next_arrival(arrival_s, next_row, end_row, read_freely)))
    s.clock[CLOCK_NOW], s.clock[CLOCK_DEBT] = now, debt
    s.counts[COUNT_CLASS], s.counts[COUNT_DELAYS] = c, recorded
    return finished


@njit(cache=True)
def grant(
    s: State, source: int, operator: int, until_row: int, shed_before_s: float, keep: float, limit_rows: float
) -> None:
    """Decides about a source's waiting rows up to `until_row`: kept rows enter its queue, others are shed."""
    port = s.first_port[operator]
    row = s.next_row[source]
    admitted = 0
    while row < until_row:
        if s.arrival_s[row] >= shed_before_s and row_uniform(s.random, row) < keep:
            if admitted + 1 > limit_rows or s.length[port] >= s.queue.shape[1]:
                break  # later rows go on waiting
            admitted += 1
            _push(s.queue, s.head, s.length, port, s.arrival_s[row])
            s.admitted[source] += 1
        else:
            s.shed[source] += 1
            s.clock[CLOCK_DEBT] += s.drop_cost_s[0]
        row += 1
    s.next_row[source] = row


@njit(cache=True)
def shed_inside(s: State, coefficients: np.ndarray, load_s: float) -> float:
    """Drops queued tuples at random places until `load_s` CPU seconds are dropped; returns load that is left.

    A place is an operator's input queue or the rows that wait at a source. From a queue the newest tuple is
    dropped, as by a drop box in front of the operator; from waiting rows a random one.
    """
    now = s.clock[CLOCK_NOW]
    ports, sources = s.port_operator.size, s.next_row.size
    waiting = np.zeros(sources, np.int64)
    coefficient = np.zeros(sources)
    for o in range(s.kind.size):
        if s.kind[o] == SOURCE:
            source = s.source_of[o]
            coefficient[source] = coefficients[o]
            row = s.next_row[source]
            while row < s.end_row[source] and s.arrival_s[row] <= now:
                waiting[source] += 1 - s.row_shed[row]
                row += 1
    places = np.empty(ports + sources, np.int64)
    while load_s > 0.0:
        found = 0
        for port in range(ports):
            if s.length[port] > 0:
                places[found] = port
                found += 1
        for source in range(sources):
            if waiting[source] > 0:
                places[found] = ports + source
                found += 1
        if found == 0:
            break
        place = places[int(uniform(s.random) * found)]
        if place < ports:
            s.length[place] -= 1
            s.admitted[0] -= 1  # a tuple inside represents one admitted row (the engine checks that)
            s.shed[0] += 1
            load_s -= coefficients[s.port_operator[place]]
            continue
        source = place - ports
        skip = int(uniform(s.random) * waiting[source])
        row = s.next_row[source]
        while skip > 0 or s.row_shed[row]:
            skip -= 1 - s.row_shed[row]
            row += 1
        s.row_shed[row] = 1
        waiting[source] -= 1
        s.shed[source] += 1
        load_s -= coefficient[source]
    return max(load_s, 0.0)
