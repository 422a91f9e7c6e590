"""Exits: what a failed command says in one sentence, and the exit code it leaves behind."""

from typing import Final

import click

from rt.errors import (
    CorruptLog,
    FlushTimeout,
    FrameError,
    GapError,
    ManifestError,
    Misuse,
    PeerError,
    Refused,
    RtError,
    Stopped,
    spoken,
)

OK: Final = 0
FOUND_WRONG: Final = 1  # damage, a gap, two copies that differ, a level that was not reached
BAD_USE: Final = 2  # also bad input, and a file or directory that is not there
REFUSED: Final = 3  # by a peer, a certificate, a limit or a policy
DISK_FAILED: Final = 4  # or whatever else the operating system would not do
OUR_FAULT: Final = 70  # EX_SOFTWARE: an error nobody foresaw
INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell tells it
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE: whoever read our output stopped

CODES_HELP: Final = """\b
Exit codes:
  0    done
  1    something is wrong with the data: damage, a gap, a level not reached
  2    wrong use, bad input, no such file
  3    refused by a peer, a certificate, a limit or a policy
  4    the disk or the operating system failed
  70   internal error; --debug shows the traceback
  130  interrupted
  141  whoever read the output has closed it"""

# The first class an error is an instance of decides; FlushTimeout and DiskFailed are also OSErrors.
_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (click.UsageError, BAD_USE),
    (Misuse, BAD_USE),
    (FileNotFoundError, BAD_USE),
    (FileExistsError, BAD_USE),
    (NotADirectoryError, BAD_USE),
    (IsADirectoryError, BAD_USE),
    (Refused, REFUSED),
    (PeerError, REFUSED),
    (CorruptLog, FOUND_WRONG),
    (GapError, FOUND_WRONG),
    (FlushTimeout, FOUND_WRONG),
    (FrameError, FOUND_WRONG),
    (ManifestError, FOUND_WRONG),
    (Stopped, INTERRUPTED),
    (click.Abort, INTERRUPTED),
    (KeyboardInterrupt, INTERRUPTED),
    (BrokenPipeError, PIPE_CLOSED),
    (OSError, DISK_FAILED),
    (RtError, DISK_FAILED),  # what is left: our own writer failed
)


def exit_code(error: BaseException) -> int:
    """Return the code a program ends with because of `error`.

    A command that words an error itself raises a `click.ClickException` from it; the cause counts.

    >>> exit_code(FileNotFoundError()), exit_code(PermissionError()), exit_code(TypeError())
    (2, 4, 70)
    """
    if type(error) is click.ClickException:
        return FOUND_WRONG if error.__cause__ is None else exit_code(error.__cause__)
    return next((code for kind, code in _CODES if isinstance(error, kind)), OUR_FAULT)


def sentence(error: BaseException) -> str:
    """Return what to tell the user: one line, "" where nothing need be said.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "x.log"))
    'x.log: no such file or directory'
    """
    code = exit_code(error)
    if code == PIPE_CLOSED:
        return ""
    if code == OUR_FAULT:
        return (
            f"internal error: {type(error).__name__}: {_line(str(error))}; "
            "run it again with rt --debug and report what it prints"
        )
    if code == INTERRUPTED:
        return "interrupted"
    return _line(_words(error))


def _words(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    return spoken(error)


def _line(text: str) -> str:
    return " ".join(text.split())
