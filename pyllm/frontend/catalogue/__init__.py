"""Several models behind one address: which are loaded, who may use them, and the model of each request.

Owns the choice of models to load and to unload. Does not know processes, which the supervisor starts, nor any API.
"""
