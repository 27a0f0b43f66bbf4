"""The engine: computes changes of an answer from changes of its inputs, step by step.

It has no Spark and no clock. A step takes changes that are complete up to an instant, so an answer does not
depend on where one step ends and the next begins.
"""
