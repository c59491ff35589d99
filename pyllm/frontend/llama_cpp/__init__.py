"""llama.cpp's own routes: `/infill`, which editors use to fill in code.

Its route uses the engine through `requests` and `answers`; `text` has the tokens of each model family.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
