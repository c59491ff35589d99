"""The settings of an engine and a server, each a field with its flag and help; what each process is configured with.

Starts no process and reads no checkpoint; `launch` fills in what is left open.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
