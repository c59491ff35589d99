"""A core's handling of workers that die, hang or fail: recovery, quarantine, crash reports.

Knows no sockets and no text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
