"""Descriptions of LoRA adapters on disk: folders of peft, and GGUF files of llama.cpp.

Knows neither torch nor peft, and reads no weights but to digest them.
"""
