"""The shapes that a generation's answer may have: whole, streamed, resumable, recorded for repeats.

Knows no API: each brings its own answer format.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
