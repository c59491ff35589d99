"""What a machine has and what of it this process may use, what a model would need there, and what is wrong.

Reads files of Linux below an injected root, and loads neither torch nor weights. Starts nothing and changes nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
