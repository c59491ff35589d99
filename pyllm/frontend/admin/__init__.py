"""The routes below `/admin`: what shows or changes more than its caller's own, for keys of the role admin.

Knows neither how keys are checked nor what the core does with a call.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
