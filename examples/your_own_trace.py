"""Your own arrivals: a file of `second,count`, scaled to one and a half times what the machine can do."""

import tempfile
from pathlib import Path

from penstock.sim.scenario import load_scenario
from penstock.sim.simulate import simulate

# A minute of traffic with a rush every 20 seconds; use a log of yours instead.
lines = ["second,count"] + [f"{second},{40 if second % 20 < 15 else 160}" for second in range(60)]

with tempfile.TemporaryDirectory() as folder:
    trace = Path(folder) / "arrivals.csv"
    trace.write_text("\n".join(lines))
    # The same as: penstock simulate --trace arrivals.csv --overload 1.5 --delay-target 1s
    scenario = load_scenario(
        overrides={
            "workload": {"kind": "trace", "path": str(trace), "overload": 1.5},
            "delay_target": "1s",
        }
    )
    result = simulate(scenario)

print(f"offered {result.offered} rows, shed {result.loss_fraction:.0%}")
print(
    f"99 of 100 rows were out within {result.delay.p99_s:.1f} s, the target was {result.delay_target_s:g} s"
)
print("every row is accounted for:", result.offered == result.admitted + result.shed + result.waiting)
