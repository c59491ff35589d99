"""The web page that the server shows at `/`: its files, and the routes that answer them.

Knows no engine and no request: the page gets its data from the other routes, with the reader's key.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
