"""Structured outputs: grammars compiled within limits, and the tokens that they allow next.

Knows slots, but neither requests nor their text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
