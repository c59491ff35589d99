"""Descriptions of LoRA adapters on disk: folders of peft, and GGUF files of llama.cpp. No weights are read."""
