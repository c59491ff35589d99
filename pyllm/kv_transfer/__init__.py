"""KV blocks outside the device: the connectors of core and workers, and the stores below them.

Knows bytes and hashes; no tensors, no scheduler, no workers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
