"""Values within the calls that a model writes: JSON, Python's and Gemma's literals, texts in tags; finders of markers.

Know characters only: no machine that reads a whole call or an answer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
