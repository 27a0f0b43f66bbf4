"""A stateful fuzz of the engine, the desk, the planner, the journal, the registry, the log and the lanes.

One seed is one `Case`: random classes, streams, queries and features. A `World` runs it on the micro-batch
plant, where the sources are the real ones of `penstock.spark.source`, without a JVM. After every step
`checks` holds what must always be true. A case that fails is made smaller by `shrink`.
"""
