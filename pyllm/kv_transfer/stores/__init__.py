"""Where KV blocks are kept beyond the engine's processes: on disk and in Redis, by key, checksummed.

Knows keys and bytes; not what a block holds, which request wants it, or on which step it is needed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
