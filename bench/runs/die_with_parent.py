"""A process that imports this module is killed when its parent ends (Linux only).

The server from which workers are forked imports it first. Otherwise a command that ends early, because of a typo or
Ctrl-C, would leave the server running for the seconds of its imports, with the command's output kept open.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
    raise OSError(ctypes.get_errno(), "prctl")
