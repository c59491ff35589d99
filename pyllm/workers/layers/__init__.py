"""The layers of models, each as one rank's share.

They know no model and no file.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
