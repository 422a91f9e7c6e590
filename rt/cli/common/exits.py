"""Exits: the error message and the exit code of a failed command."""

from typing import Final

import click

from rt import errors

FOUND_WRONG: Final = 1  # damage, a gap, copies that differ, a level not reached, a degraded cluster
BAD_USE: Final = 2  # also bad input, and a missing file or directory
# by a peer, a certificate, a limit or a policy; also a cluster without quorum, and a removed node
REFUSED: Final = 3
DISK_FAILED: Final = 4  # and other errors of the operating system
UNKNOWN: Final = "unknown-"  # prefix of the refusal codes for names that the nodes do not know
OUR_FAULT: Final = 70  # EX_SOFTWARE: an unforeseen error
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE: the program that read our output has ended

CODES_HELP: Final = """\b
Exit codes:
  0    done
  1    found wrong: damage, a gap, a level not reached;
       status: degraded; doctor: something is wrong;
       trace: the message waits
  2    wrong use, bad input; no such file, log,
       session, cursor, group or stream
  3    refused by a peer, a certificate, a limit or a policy;
       status: no quorum
  4    the disk or the operating system failed
  70   internal error; --debug shows the traceback
  130  interrupted
  141  the reader of the output closed it

rt check has the codes of monitoring plugins instead: 0, 1 warning, 2 critical, 3 unknown"""

# The first class that matches an error decides; FlushTimeout and DiskFailed are also OSErrors.
_CODES: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], int], ...]] = (
    ((click.UsageError, errors.Misuse), BAD_USE),
    ((FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError), BAD_USE),
    ((errors.Refused, errors.PeerError, errors.RemovedFromCluster), REFUSED),
    ((errors.CorruptLog, errors.GapError, errors.FlushTimeout), FOUND_WRONG),
    ((errors.FrameError, errors.ManifestError), FOUND_WRONG),
    ((errors.Stopped, click.Abort, KeyboardInterrupt), INTERRUPTED),
    (BrokenPipeError, PIPE_CLOSED),
    ((OSError, errors.RtError), DISK_FAILED),  # any other RtError: our own writer failed
)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ends the program.

    A `click.ClickException` that was raised from another error has the other error's code.

    >>> exit_code(FileNotFoundError()), exit_code(PermissionError()), exit_code(TypeError())
    (2, 4, 70)
    """
    if type(error) is click.ClickException:
        return FOUND_WRONG if error.__cause__ is None else exit_code(error.__cause__)
    if isinstance(error, errors.Refused) and error.code.startswith(UNKNOWN):
        return BAD_USE
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), OUR_FAULT)


def sentence(error: BaseException) -> str:
    """Return the message for an error that ends the program, in one line; "" for no message.

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
    return _line(_text(error))


def _text(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    return errors.spoken(error)


def _line(text: str) -> str:
    return " ".join(text.split())
