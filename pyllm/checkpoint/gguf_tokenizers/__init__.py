"""Builds a `tokenizers` JSON from a GGUF file's fields, so that a text gets the same ids as with llama.cpp.

Opens no file and knows no model.
"""
