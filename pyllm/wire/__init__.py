"""The messages between processes, and the ZeroMQ sockets that carry them.

Knows which process may send which message, not why: no scheduler, no text, no HTTP.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
