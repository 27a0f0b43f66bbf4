"""Relations that change over time, computed step by step: what came in until an instant gives what changed.

Pure: no Spark, no clock. A step takes changes that are complete until an instant, so an answer does not
depend on where one step ends and the next begins.
"""
