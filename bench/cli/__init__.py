"""The command line. Its commands are imported inside `main`, so that Ctrl-C ends it in one line from the beginning."""

import os
import signal
import sys
import threading

from bench.runs.interrupts import end_at_once, interrupt_again


def _check_start() -> None:
    """Refuse to begin in a folder that was deleted, or with an empty argument, which would be taken for this folder.

    Raises:
        UserError: the one or the other.
    """
    from bench.errors import UserError

    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError(
            "the working folder was deleted: go to one that is there (cd) and give the command again"
        ) from None
    if "" in sys.argv:
        before = sys.argv[sys.argv.index("") - 1]
        raise UserError(f"the argument after {before} is empty: is a variable of the shell not set?")


def main() -> None:
    """The command `bench`: an error that the user can fix gives one message, no traceback, and exit status 2.

    Ctrl-C ends the process here until a command is invoked, which then has Python's own handler.
    """
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    handled = threading.current_thread() is threading.main_thread() and callable(handler)
    if handled:  # not where the shell lets it be ignored, as in the background
        signal.signal(signal.SIGINT, end_at_once)
        sys.unraisablehook = interrupt_again
    try:
        _call()
    finally:
        if handled:
            signal.signal(signal.SIGINT, handler)
            sys.unraisablehook = hook


def _call() -> None:
    from bench.cli.app import app
    from bench.errors import UserError, let_output_degrade, shortage
    from bench.places import refused

    let_output_degrade()
    try:
        _check_start()
        app()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        full = shortage(error)
        if not (text := full or refused(error)):
            raise
        print(f"bench: {text}", file=sys.stderr)
        sys.exit(1 if full else 2)
