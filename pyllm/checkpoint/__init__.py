"""Finds, downloads and describes models: spec, tokenizer, template, defaults and tensors of a folder or GGUF file.

Does not load weights (`workers/loaders` does) and knows no process.
"""
