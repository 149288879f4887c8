"""A system-call filter for sandboxed commands, as a classic BPF program in the form seccomp takes.

It refuses what a candidate does not need and what would weaken the sandbox: new user namespaces (a large
attack surface of the kernel), kernel keyrings, BPF, io_uring and userfaultfd, and memory that belongs to no
process and no counted filesystem (memfd, System V shared memory), which the memory watchdog cannot see.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple


class _Machine(NamedTuple):
    audit_arch: int
    clone: int
    refused: tuple[int, ...]


CLONE3 = 435
CLONE_NEWUSER = 0x10000000
X32_BIT = 0x40000000

# io_uring_setup and memfd_secret have the same number everywhere.
_MACHINES = {
    "x86_64": _Machine(
        audit_arch=0xC000003E,
        clone=56,
        # unshare setns memfd_create shmget add_key request_key keyctl bpf userfaultfd
        refused=(272, 308, 319, 29, 248, 249, 250, 321, 323, 425, 447),
    ),
    "aarch64": _Machine(
        audit_arch=0xC00000B7,
        clone=220,
        refused=(97, 268, 279, 194, 217, 218, 219, 280, 282, 425, 447),
    ),
}

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _NUMBER_AT, _ARCH_AT, _FLAGS_AT = 0x7FFF0000, 0x00050000, 0, 4, 16


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def program() -> bytes | None:
    """The filter for this machine, or None where its system-call numbers are not known."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return None
    absent, refused = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM
    code = [
        _instruction(_LOAD, _ARCH_AT),
        _instruction(_JUMP_EQUAL, machine.audit_arch, if_true=1),
        _instruction(_RETURN, absent),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_JUMP_ABOVE, X32_BIT, if_false=1),
        _instruction(_RETURN, absent),
        # Its flags lie in memory, where a filter cannot look; the C library falls back to clone.
        _instruction(_JUMP_EQUAL, CLONE3, if_false=1),
        _instruction(_RETURN, absent),
    ]
    for number in machine.refused:
        code += [_instruction(_JUMP_EQUAL, number, if_false=1), _instruction(_RETURN, refused)]
    code += [
        _instruction(_JUMP_EQUAL, machine.clone, if_false=3),
        _instruction(_LOAD, _FLAGS_AT),
        _instruction(_JUMP_BITS, CLONE_NEWUSER, if_false=1),
        _instruction(_RETURN, refused),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(code)
