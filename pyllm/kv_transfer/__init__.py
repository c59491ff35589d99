"""KV blocks that leave the device: the connectors between core, workers and outside, and the stores below them.

Knows bytes and hashes; no tensors, no scheduler, no worker.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
