"""`rt check`: the exit codes and the line that monitoring systems read."""

import re

import pytest

from rt.cli.common import exits
from rt.cli.common.asking import NodeAnswer, no_answer
from rt.cli.look.check import judged, thresholds_of
from rt.errors import PeerError, Refused
from tests.commands import run
from tests.node_answers import answer, busy, held

FIGURE = re.compile(r"[a-z_]+=-?[0-9.e+]+(s|B)?(;[0-9.]*:?){0,2}(;[0-9]*){0,2}")


def ask(*answers, may_stop="", **levels):
    """Return the code, level and line for these answers of a, b and c; an error is none."""
    asked = [
        no_answer(f"{name}:7420", each) if isinstance(each, Exception)
        else NodeAnswer(f"{name}:7420", each)
        for name, each in zip("abc", answers, strict=False)
    ]  # fmt: skip
    level, line = judged(asked, thresholds_of(**levels), may_stop)
    assert line.isprintable()
    return level.value, level.name, line


def healthy(**changed):
    """Return three healthy answers, the second one changed."""
    return (
        busy("n1", sessions=[], certificate_days=29.9),
        busy("n2", **{"sessions": [], "clients": [], "certificate_days": 30.0} | changed),
        busy("n3", sessions=[], certificate_days=30.0),
    )


def test_a_healthy_stream_is_ok_with_figures_that_monitoring_systems_parse():
    """The part after the bar has a grammar, and a system drops what does not fit it."""
    code, level, line = ask(*healthy())
    assert (code, level) == (0, "OK")
    words, _, figures = line.partition(" | ")
    assert words == "stream flights, 3 of 3 nodes answer, n1 leads"
    assert "certificate=29.9;7:;2:;0 nodes=3;3:;2:;0;3" in figures
    assert all(FIGURE.fullmatch(each) for each in figures.split()), figures


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"unreachable": {"n3": "down"}}, 1, "n2 cannot reach n3"),
        ({"certificate_days": 6.0}, 1, "certificate is 6 d"),
        ({"certificate_days": 1.5}, 2, "certificate is 1.5 d"),
        ({"sessions": [held("jfk", waiting_s=31.0)]}, 1, "lag is 31 s"),
        ({"sessions": [held("jfk", waiting_s=301)]}, 2, "lag is 5 min 1 s"),
        (
            {"clients": [{"kind": "pull", "peer": "spark", "waiting_s": 61.0}]},
            1,
            "pull lag is 1 min 1 s",
        ),
        ({"clients": [{"kind": "push", "peer": "jfk", "waiting_s": 61.0}]}, 0, "n1 leads"),
        ({"forked": {"position": "0.0.8", "reason": "x", "since_ns": 1}}, 2, "n2 is FORKED"),
        ({"takes_data": False}, 1, "n2 refuses new data"),
    ],
)
def test_each_trouble_has_its_level_and_is_named(changed, code, words):
    """At first the line is all that can be seen of the trouble."""
    found, _, line = ask(*healthy(**changed))
    assert found == code, line
    assert words in line


def test_levels_are_those_that_are_given():
    """What is slow differs from stream to stream."""
    slow = {"sessions": [held("jfk", waiting_s=5.0)]}
    assert ask(*healthy(**slow))[0] == 0
    assert ask(*healthy(**slow), lag_warning=1, lag_critical=4)[0] == 2
    assert ask(*healthy(**slow), lag_warning=5, lag_critical=9)[0] == 1


def test_no_leader_is_critical_and_so_is_silence():
    """A check that says UNKNOWN when all nodes are down wakes no one."""
    lost = [answer(name, role="candidate", leader="") for name in ("n1", "n2")]
    code, _, line = ask(*lost, OSError("no answer"))
    assert (code, "no node leads" in line) == (2, True)
    code, _, line = ask(*[ConnectionRefusedError(111, "Connection refused")] * 3)
    assert (code, "no node answers" in line) == (2, True)


@pytest.mark.parametrize("error", [Refused("certificate", "it expired"), PeerError("not TLS")])
def test_what_says_nothing_of_the_stream_is_unknown(error):
    """The certificate of the monitoring system expired, and the stream is well."""
    assert ask(error, error, error)[0] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"], ["--lag-warning", "x"], ["--config", "/nowhere.toml"], ["--identity", "../x"],
        ["--lag-warning", "50", "--lag-critical", "3"], ["--days-warning", "1"],
        ["--certs", "/nowhere"],
    ],
)  # fmt: skip
def test_wrong_use_is_unknown_in_one_line_and_never_critical(arguments):
    """Our own code for it, 2, means CRITICAL to a monitoring system."""
    done = run("check", *arguments)
    assert done.exit_code == 3
    assert re.fullmatch(r"RT UNKNOWN: [^\n]+\n", done.stdout), done.output


def test_text_of_a_peer_cannot_forge_a_second_line_or_a_figure():
    """A bar begins the figures, and a new line begins another plugin's output."""
    _, _, line = ask(*healthy(refusal="x\nOK | lag=0s"))
    assert line.count("|") == 1
    assert "\\x0aOK / lag" in line


def test_a_node_may_be_stopped_while_a_majority_is_left_that_can_merge():
    """A rollout that asks first does not stop the second of three."""
    assert ask(*healthy(), may_stop="n2")[0] == 0
    one, two, three = healthy()
    code, _, line = ask(one | {"copying_to": "0.0.9"}, two, three, may_stop="n2")
    assert (code, "n2 must not be stopped" in line) == (2, True)
    assert ask(OSError("down"), two, three, may_stop="n2")[0] == 2
    assert ask(*healthy(), may_stop="n9")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["check"], {"RT_STRAEM": "x"}),
        (["-v", "check"], {"RT_STRAEM": "x"}),
        (["--log-format", "yaml", "check"], {}),
        (["check", "--lag-warning", "soon"], {}),
        (["check", "--config", "nowhere.toml"], {}),
    ],
)
def test_what_stops_rt_before_it_asks_is_unknown_and_not_critical(arguments, environment):
    """2 is CRITICAL to a monitoring system: a mistyped variable woke someone at night."""
    done = run(*arguments, env=environment)
    assert done.exit_code == 3, done.output
    assert done.stdout.startswith("RT UNKNOWN: ")
    assert done.stdout.count("\n") == 1


def test_a_mistyped_variable_is_wrong_use_for_any_other_command():
    """Only monitoring plugins have codes of their own."""
    assert run("status", env={"RT_STRAEM": "x"}).exit_code == 2


@pytest.mark.parametrize("words", [("index", "check", "nothing"), ("verify", "check")])
def test_only_the_command_check_has_the_codes_of_plugins(words):
    """A script that repairs indexes takes 3 for the refusal of a peer."""
    done = run(*words)
    assert done.exit_code == exits.BAD_USE
    assert (done.stdout, "holds no log" in done.stderr) == ("", True)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"apart": "the node has it up to 0.0.96, and this log ends at 0.0.64"},
            "rt session reset jfk",
        ),
        ({"put_back": ["0.0.0", "0.0.96"]}, "n1 has put back session jfk from 0.0.0 to 0.0.96"),
        ({"put_back": ["0.0.0", "0.0.96"]}, "rt session show jfk"),
        ({"poisoned": "a frame cannot be decoded"}, "n1 refuses session jfk"),
        ({"stuck": "session jfk waits for its group"}, "session jfk waits for its group"),
    ],
)
def test_a_session_that_is_held_up_is_a_warning_with_its_cause(facts, words):
    """It was OK, while a publisher that was put back from a backup shipped nothing."""
    first, *others = healthy()
    first["sessions"] = [{**held("jfk"), **facts}]
    code, level, line = ask(first, *others)
    assert (code, level) == (1, "WARNING")
    assert words in line
