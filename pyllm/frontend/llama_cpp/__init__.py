"""llama.cpp's own routes: `/infill`, which editors use to fill in code.

The engine's side is `requests` and `answers`; the tokens of a model's family are `text`'s.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
