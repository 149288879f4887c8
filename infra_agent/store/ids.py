"""Ids that say what they name and sort in the order of their making."""

from __future__ import annotations

import secrets
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o or u; sorts as its values do."""
_LENGTH = 16
_RANDOM_BITS = 32

_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """A fresh id such as `cmp_06dqw1v5s0g3k2zt`: 48 bits of milliseconds since 1970, then 32 random bits.

    Within a process every id sorts after those made before it, also inside one millisecond or when the clock
    is set back; between processes the clock decides.
    """
    global _last
    with _lock:
        stamp = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        _last = value = max(stamp, _last + 1)
    digits = (_ALPHABET[value >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
    return f"{prefix}_{''.join(digits)}"
