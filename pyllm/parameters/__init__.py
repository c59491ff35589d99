"""The parameters of a request in Python, checked: sampling, scheduling, structured outputs.

Knows neither the wire nor a model's limits. Programs import these names from `pyllm`.
"""
