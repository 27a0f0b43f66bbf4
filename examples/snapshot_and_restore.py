"""A manager's state as JSON: stop in the middle, go on in a new process, decide the same."""

import json

from penstock.policies.load import manager_config
from penstock.sim.scenario import Scenario
from penstock.sim.workloads.specs import Step

plant, manager = Scenario(workload=Step(), duration_s=60, manager="seamless").build()
observations, decisions, snapshot = [], [], ""
while (observation := plant.observe()) is not None:
    if len(observations) == 60:
        snapshot = json.dumps(manager.snapshot())
    decision = manager.decide(observation)
    plant.apply(decision)
    observations.append(observation)
    decisions.append(decision)

state = json.loads(snapshot)["state"]
print(f"after 60 of {len(observations)} decisions:", ", ".join(f"{key} {state[key]:.2f}" for key in state))

restored = manager_config("seamless").build()
restored.restore(json.loads(snapshot))
again = [restored.decide(observation) for observation in observations[60:]]
print("the later decisions are identical:", again == decisions[60:])
