"""What is known of each model family, as data: its names in files, its layers, its refusals. One file a family.

Knows no file on disk, no torch and no process: `pyllm/checkpoint` reads the files, `pyllm/workers` builds the model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
