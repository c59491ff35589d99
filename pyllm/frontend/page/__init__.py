"""The web page that the server shows at `/`: its files, and the routes that answer them.

Knows no engine and no request: the page gets its data from the other routes, with the reader's key.
"""
