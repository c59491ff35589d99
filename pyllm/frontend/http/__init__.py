"""The parts of every HTTP answer: streams, event ids, errors, fields that have no effect, the OpenAPI document.

Knows no route by name and no engine.
"""
