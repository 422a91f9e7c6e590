"""Commands for tests: `rt` inside this process, and as a process of its own."""

import os
import subprocess
import sys

from click.testing import CliRunner

from rt.cli.program import rt
from rt.publisher import Publisher

PATIENCE_S = 60  # a test that waits longer has failed


def run(*arguments, env=None, program=rt):
    """Run `rt` in this process; return its output and exit code."""
    return CliRunner(env=env).invoke(program, [str(each) for each in arguments])


def start(*arguments, prefix=(), env=None, **options):
    """Start `rt` as a process of its own, with pipes by default."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    command = [*prefix, sys.executable, "-m", "rt", *(str(each) for each in arguments)]
    return Process(command, env=env or clean_environment(), **options)


def start_limited(file_bytes, *arguments, **options):
    """Start `rt` as a process that may write files up to this size only, as on a full disk."""
    limited = ["sh", "-c", f'ulimit -f {file_bytes // 512}; exec "$@"', "sh"]
    return start(*arguments, prefix=limited, **options)


class Process(subprocess.Popen):
    """A process that is killed if the test fails, where `with` would wait for it."""

    def __exit__(self, kind, value, traceback):
        """Wait for the process to end; kill it first if the test has failed."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def clean_environment():
    """Return this process's environment without variables of `rt`, and with unbuffered output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RT_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


def finish(process, data=None):
    """Wait for a process; return its exit code, stdout and stderr."""
    out, err = process.communicate(data, timeout=PATIENCE_S)
    return process.returncode, out, err.decode() if err is not None else ""


def publish(root, payloads, session="jfk", **options):
    """Publish payloads to a session of stream `stream`; return its directory."""
    with Publisher(str(root), stream="stream", session=session, **options) as publisher:
        publisher.publish_many(payloads)
    return os.path.join(root, "stream", session)
