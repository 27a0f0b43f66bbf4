"""The micro-batch plant: the real control plane and the real log, and a Spark in virtual time.

with TemporaryDirectory() as folder:
    make = Lab(Path(folder))
    cluster = make({"gold": {"target": "2s"}})
    query = cluster.add("q", "gold", make.stream(cluster, 80_000.0), Machine(noise=0.05))
    cluster.run(30.0)
    check_books(cluster)
"""

from penstock.sim.microbatch.cluster import VirtualCluster
from penstock.sim.microbatch.lab import BooksError, Lab, admitted_between, check_books, delay
from penstock.sim.microbatch.line import Line, Pause, Waits
from penstock.sim.microbatch.machine import Machine
from penstock.sim.microbatch.query import Batch, Point, QueryLostError, SimulatedQuery
from penstock.sim.microbatch.recording import Event, Recording
from penstock.sim.microbatch.source import GovernedSource, Planned, Source

__all__ = [
    "Batch",
    "BooksError",
    "Event",
    "GovernedSource",
    "Lab",
    "Line",
    "Machine",
    "Pause",
    "Planned",
    "Point",
    "QueryLostError",
    "Recording",
    "SimulatedQuery",
    "Source",
    "VirtualCluster",
    "Waits",
    "admitted_between",
    "check_books",
    "delay",
]
