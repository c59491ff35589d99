"""The model families, as data: tensor names, layers and refusals. One file a family.

Knows no file on disk, no torch and no process: `pyllm/checkpoint` reads the files, `pyllm/workers` builds the model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
