import warnings
import numpy as np


def scale(x):
    return x / np.float32(0)


def old():
    warnings.warn("sampler v1 is deprecated, use v2", DeprecationWarning, stacklevel=2)


for i in range(3):
    old()
scale(np.float32(1.0))
np.log(np.float32(-1))
warnings.warn("CUDA graphs are disabled: falling back to eager mode", RuntimeWarning)
open("/dev/null")
