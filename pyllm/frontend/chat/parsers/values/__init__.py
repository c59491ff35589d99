"""Values within the calls that a model writes: JSON, Python's and Gemma's literals, texts in tags; finders of markers.

Know characters only: no machine that reads a whole call or an answer.
"""
