"""Stores that keep KV blocks beyond the engine's processes: on disk and in Redis, by key, with checksums.

Knows keys and bytes; no tensors, no requests, no steps.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
