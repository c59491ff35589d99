"""The settings of an engine and a server, each a field with its flag and help; the configuration of each process.

Also what commands share that ask a server: its address, its key, its certificates.

Starts no process and reads no checkpoint; `launch` fills in defaults that depend on the model or the machine.
"""
