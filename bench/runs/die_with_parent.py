"""To import this in a process on Linux: from then on it is killed when its parent ends.

The server that workers are forked from imports it first. Else a command that ends early, of a typo or Ctrl-C, would
leave it behind for the seconds of its imports, with the command's output held open.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
    raise OSError(ctypes.get_errno(), "prctl")
