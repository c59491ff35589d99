"""`pyllm bench`: load tests of servers and engines, measured from outside, and comparisons of their results.

Knows no server by name and no internals of the engine: servers are addresses, engines are `AsyncEngine`.
"""
