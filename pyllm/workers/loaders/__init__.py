"""Readers of weights, one for each file format, and the cache of packed matrices on disk.

They know no layer and no model.
"""
