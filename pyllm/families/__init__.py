"""The model families, as data: tensor names, layers and refusals. One file a family.

Knows no file on disk, no torch and no process: `pyllm/checkpoint` reads the files, `pyllm/workers` builds the model.
"""
