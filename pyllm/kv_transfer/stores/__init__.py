"""Stores that keep KV blocks beyond the engine's processes: on disk and in Redis, by key, with checksums.

Knows keys and bytes; no tensors, no requests, no steps.
"""
