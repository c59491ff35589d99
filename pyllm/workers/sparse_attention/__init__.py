"""Sparse attention: built-in selectors of KV blocks, which use summaries of keys, and those of other packages.

Knows neither the computation of attention nor the steps.
"""
