"""The one error of this package that is not a built-in one."""


class StateBackendError(Exception):
    """The store cannot keep its promises, or cannot be opened.

    Operator action: the message says what to change (another folder or mount, another URL, an
    option to remove). Trying again without a change does not help.
    """
