"""The EngineCore: clients' messages in, plans to an executor, committed tokens out.

The scheduler's decisions are in Rust. Knows token ids only, and no tensor.
"""
