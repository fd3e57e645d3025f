"""The one exception type that users see: a line that says what was expected, what came, where, what
to do.
"""


class VdlaError(ValueError):
    """Bad input of any kind: configuration, program, model, instruction or command line."""
