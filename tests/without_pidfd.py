"""Runs a command in which the kernel refuses pidfds: `python -m tests.without_pidfd COMMAND...`."""

import ctypes
import errno
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a filter, see seccomp(2)
_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # on every architecture


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse_pidfds() -> None:
    """From now on `pidfd_open` says ENOSYS in this thread and in all that it starts.

    Raises:
        OSError: the kernel takes no filter.
    """
    instructions = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_IF_EQUAL, 2, 0, PIDFD_OPEN),
        (_IF_EQUAL, 1, 0, PIDFD_SEND_SIGNAL),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    filter_ = _Filter(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


if __name__ == "__main__":
    refuse_pidfds()
    os.execvp(sys.argv[1], sys.argv[1:])
