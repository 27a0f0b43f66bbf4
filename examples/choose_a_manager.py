"""Which load manager? All six on the same bursts, half as much again as the machine can process."""

from penstock.policies.load import LOAD_MANAGERS
from penstock.sim.scenario import Scenario
from penstock.sim.simulate import simulate
from penstock.sim.workloads.specs import SelfSimilar

bursts = Scenario(workload=SelfSimilar(overload=1.5), duration_s=200, delay_target_s=2, seed=1)

print("manager    shed   mean    p99   late by, on average")
for name in LOAD_MANAGERS:
    result = simulate(bursts.with_manager(name))
    print(
        f"{name:<9}{result.loss_fraction:6.1%}{result.delay.mean_s:6.1f}s{result.delay.p99_s:6.1f}s"
        f"{1000 * result.violation.average_s:7.0f} ms"
    )
