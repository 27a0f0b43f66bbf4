"""The capacity policy that runs in the simulator's tests and in those of the control plane: one object."""

from penstock.policies.capacity import CapacityPolicy, capacity_policy

DILOS: CapacityPolicy = capacity_policy("dilos")
