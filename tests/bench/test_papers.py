"""The runs behind the papers' tables."""

from __future__ import annotations

import numpy as np
from tests.benches import bench_module

from penstock.policies.load import manager_config
from penstock.sim.engine.machine import Machine
from penstock.sim.workloads import networks


def test_a_manager_that_gives_grants_gives_them_also_in_the_papers_runs() -> None:
    runs = bench_module("papers.runs")
    network = networks.qn_flat()
    arrivals_s = [np.arange(0.0, 20.0, 1.0 / 400.0)] * len(network.sources)
    machine = Machine(headroom=((0.0, networks.PHAM_HEADROOM),))
    outcome = runs.drive(network, arrivals_s, manager_config("deadline"), machine, 1, run_s=20.0)
    assert outcome.shed > 0.3 * (outcome.shed + outcome.admitted), "there is an overload"
    assert outcome.violation_avg_s < 0.1, "rows wait in the log, not in the plant's queues"
