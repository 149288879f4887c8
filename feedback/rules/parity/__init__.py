"""Rules on being right: errors against an oracle or the baseline, by case and tensor."""

from feedback.rules.parity.breakdown import breakdown
from feedback.rules.parity.growth import numeric_growth
from feedback.rules.parity.patterns import boundary, scale, stale_buffer
from feedback.rules.parity.relative import fingerprint, relative_error
from feedback.rules.parity.splits import split_mismatch
from feedback.rules.parity.tolerance import numeric_error

__all__ = [
    "boundary",
    "breakdown",
    "fingerprint",
    "numeric_error",
    "numeric_growth",
    "relative_error",
    "scale",
    "split_mismatch",
    "stale_buffer",
]
