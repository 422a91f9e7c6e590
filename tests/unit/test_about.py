"""About: a line names its stream once, and one with a wrong format ends no thread."""

import logging

import pytest

from rt.about import speaking

_log = logging.getLogger("rt.node")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("%d of %d", (1,)),
        ("100 %", (1,)),
        ("%(a)s", ({"b": 1},)),
        ("no place", (1,)),
        ("%d", ("x",)),
    ],
)
def test_a_line_that_cannot_be_formatted_does_not_end_the_thread_that_logs_it(
    words, arguments, capsys
):
    """Logging prints what is wrong with it, and the sequencer's thread goes on."""
    log = logging.getLogger("rt.alone")
    handler = logging.StreamHandler()
    log.addHandler(handler)
    log.propagate = False
    with speaking("stream ships: "):
        log.warning(words, *arguments)
    log.removeHandler(handler)
    log.propagate = True
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "arguments"),
    [("%d lost", (2,)), ("%s%d lost", ("stream ships: ", 2)), ("stream ships: %d lost", (2,)),
     ("%s", ("stream ships: 2 lost",)), ("2 lost", ())],
)  # fmt: skip
def test_a_line_names_its_stream_once(words, arguments, caplog):
    """Some lines name it themselves, wherever they are logged."""
    with speaking("stream ships: "):
        _log.warning(words, *arguments)
    assert caplog.messages == ["stream ships: 2 lost"]
