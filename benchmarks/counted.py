"""`python -m benchmarks.counted FILE COMMAND ... -m rt ARGUMENTS`: run rt, and count its calls.

While `FILE.on` exists, each call of one of our own functions is counted, in every thread; once it
is removed, the counts are written to FILE, as JSON.
"""

import json
import os
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

_OWN = ("rt", "sequencer", "replicator", "archiver")
_ROOT = Path(__file__).parents[1]
_LOOK_S = 0.01


class Calls:
    """Counts calls, while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._each = Counter[CodeType]()

    def take(self, frame: FrameType, event: str, _arg: object) -> None:
        """Count a call; for `threading.setprofile`."""
        if self._is_on and event == "call":
            self._each[frame.f_code] += 1

    def watch(self, path: str) -> None:
        """Count whenever `path` with ".on" exists, and write what was counted in that time."""
        while True:
            _await(path, there=True)
            self._each.clear()
            self._is_on = True
            _await(path, there=False)
            self._is_on = False
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(self._named(), file)
            os.replace(f"{path}.new", path)

    def _named(self) -> Counter[str]:
        named = Counter[str]()
        for code, count in list(self._each.items()):
            path = Path(code.co_filename)
            if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _OWN:
                line = f"{path.relative_to(_ROOT)}:{code.co_firstlineno} {code.co_qualname}"
                named[line] += count
        return named


def _await(path: str, *, there: bool) -> None:
    while os.path.exists(f"{path}.on") != there:
        time.sleep(_LOOK_S)


def main() -> None:
    """Count the calls of the command that follows the file."""
    path, arguments = sys.argv[1], sys.argv[2:]
    calls = Calls()
    threading.Thread(target=calls.watch, args=(path,), daemon=True).start()
    threading.setprofile(calls.take)
    sys.setprofile(calls.take)
    sys.argv = arguments[arguments.index("rt") :]
    runpy.run_module("rt", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
