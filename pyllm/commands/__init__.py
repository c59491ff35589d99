"""The commands of the command line, one module each: `add_arguments(parser)` and `run(options)`; and their parser.

A command's module is imported when its command runs. Knows neither HTTP nor the engine: commands call those who do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
