"""The checks in front of the application: keys, request ids, sizes, time limits, origins.

Knows no route's body and no engine.
"""
