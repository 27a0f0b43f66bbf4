"""Lays a network, its input and its machine out as the arrays that the kernel works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.sim.engine import kernel
from penstock.sim.engine.machine import Machine
from penstock.sim.workloads.network import Kind, Network
from penstock.vocabulary.model import FloatArray

_JOIN_WINDOW_ROWS = 65536
"""Most rows of a join window; when it is full, the oldest rows are removed first."""
_DELAY_BUFFER_ROWS = 1 << 16


def initial_state(
    network: Network,
    arrivals_s: Sequence[FloatArray],
    machine: Machine,
    class_of: Sequence[int],
    modes: Sequence[int],
    seed: int,
) -> kernel.State:
    """The arrays before anything has run.

    Args:
        network: The network.
        arrivals_s: Arrival times, one array a source.
        machine: The machine.
        class_of: For each operator, the number of its class.
        modes: For each class, how rows come in.
        seed: Fixes selectivities and coins.
    """
    ops = network.operators
    n, outputs = len(ops), [i for i, op in enumerate(ops) if op.kind is Kind.OUTPUT]
    ports_of = [2 if op.kind is Kind.JOIN else 1 for op in ops]
    first_port = np.concatenate(([0], np.cumsum(ports_of)[:-1])).astype(np.int64)
    ports = sum(ports_of)
    port_operator = np.repeat(np.arange(n), ports_of)
    out: list[list[int]] = [[] for _ in ops]
    for i, op in enumerate(ops):
        for side, name in enumerate(op.inputs):
            out[network.index[name]].append(int(first_port[i]) + side)
    labels = {label: k for k, label in enumerate(network.labels)}
    label_of = np.array([labels.get(op.label, 0) for op in ops], np.int64)
    output_of = np.full(n, -1, np.int64)
    output_of[outputs] = np.arange(len(outputs))
    source_of = np.full(n, -1, np.int64)
    source_of[list(network.sources)] = np.arange(len(network.sources))
    sizes = np.array([a.size for a in arrivals_s], np.int64)
    ends = np.cumsum(sizes)
    joins = any(op.kind is Kind.JOIN for op in ops)
    entries = network.entries
    entry_of = np.full(n, -1, np.int64)
    entry_of[list(entries)] = np.arange(len(entries))
    members = [[i for i in range(n) if class_of[i] == c] for c in range(len(modes))]
    classes = len(modes)
    random = np.array([seed * 2 + 1, seed * 2 + 2], np.uint64)
    f8, i8 = np.float64, np.int64
    return kernel.State(
        kind=np.array([op.kind for op in ops], i8),
        cost_s=np.array([op.cost_s for op in ops], f8),
        selectivity=np.array([op.selectivity for op in ops], f8),
        probe_cost_s=np.array([op.probe_cost_s for op in ops], f8),
        window_s=np.array([op.window_s for op in ops], f8),
        quota=np.array([max(1, round(op.weight * network.batch_rows)) for op in ops], i8),
        batch=np.array([network.batch_rows], i8),
        turn_cost_s=np.array([network.turn_cost_s], f8),
        drop_cost_s=np.array([network.drop_cost_s], f8),
        first_port=first_port,
        port_operator=port_operator,
        out_start=np.concatenate(([0], np.cumsum([len(o) for o in out]))).astype(i8),
        out_port=np.array([p for o in out for p in o], i8),
        source_of=source_of,
        entry_of=entry_of,
        output_of=output_of,
        label_of=label_of,
        filtered_counts=np.array([network.delay_of_filtered], np.bool_),
        member=np.array([i for part in members for i in part], i8),
        member_start=np.concatenate(([0], np.cumsum([len(part) for part in members]))).astype(i8),
        class_of=np.array(class_of, i8),
        class_mode=np.array(modes, i8),
        class_quota_s=np.full(classes, np.inf),
        class_target_s=np.full(classes, np.inf),
        class_credit_s=np.full(classes, np.inf),
        class_cursor=np.zeros(classes, i8),
        class_dry_from_s=np.full(classes, -1.0),
        class_dry_s=np.zeros(classes, f8),
        class_departed=np.zeros(classes, i8),
        keep=np.ones(len(entries), f8),
        queue=np.zeros((ports, network.queue_rows), f8),
        head=np.zeros(ports, i8),
        length=np.zeros(ports, i8),
        window=np.zeros((ports if joins else 1, _JOIN_WINDOW_ROWS if joins else 1), f8),
        window_head=np.zeros(ports, i8),
        window_length=np.zeros(ports, i8),
        arrival_s=np.ascontiguousarray(np.concatenate(arrivals_s), f8),
        row_shed=np.zeros(int(ends[-1]), np.uint8),
        next_row=np.concatenate(([0], ends[:-1])).astype(i8),
        end_row=ends.astype(i8),
        headroom_from_s=np.array([t for t, _ in machine.headroom], f8),
        headroom=np.array([h for _, h in machine.headroom], f8),
        factor_from_s=np.array([t for t, _ in machine.cost_factor], f8),
        factor=np.array([f for _, f in machine.cost_factor], f8),
        clock=np.zeros(2, f8),
        counts=np.zeros(2, i8),
        random=random,
        admitted=np.zeros(len(entries), i8),
        shed=np.zeros(len(entries), i8),
        work_s=np.zeros(n, f8),
        batches=np.zeros(n, i8),
        rows_in=np.zeros(n, i8),
        rows_out=np.zeros(n, i8),
        delays_s=np.zeros(_DELAY_BUFFER_ROWS, f8),
        delay_class=np.zeros(_DELAY_BUFFER_ROWS, i8),
        output_sum_s=np.zeros(len(outputs), f8),
        output_count=np.zeros(len(outputs), i8),
        label_count=np.zeros(len(labels), i8),
        label_violations=np.zeros(len(labels), i8),
        label_violation_s=np.zeros(len(labels), f8),
        label_violation_max_s=np.zeros(len(labels), f8),
    )
