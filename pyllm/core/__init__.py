"""The EngineCore: clients' messages in, plans to an executor, committed tokens out.

The scheduler's decisions are in Rust. Knows token ids only, and no tensor.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
