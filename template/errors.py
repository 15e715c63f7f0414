"""The one exception a person is meant to read, and the nearest known word for a mistyped one."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something a person can mend: the text says what was found, where, what was expected and what to type next.

    The command line prints it as one line without a traceback, unless ``--debug`` is given.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word nearest to ``word``, or else a full stop."""
    by_lower_case = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {by_lower_case[nearest[0]]!r}?" if nearest else "."
