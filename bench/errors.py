"""Errors that are meant for the user: one clear message, exit status 2, no traceback."""


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what, where and what to do."""
