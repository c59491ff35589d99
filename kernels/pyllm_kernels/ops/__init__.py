"""The ops, one module each: what it computes, its CPU version, its reference, and where its Triton version is."""
