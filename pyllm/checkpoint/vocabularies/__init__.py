"""Builds a `tokenizers` JSON from a vocabulary: the fields of a GGUF file, or a folder's tokenizer.model or vocab.json.

Knows no model, no template and no cache.
"""
