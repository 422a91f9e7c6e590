"""What `rt doctor` finds in the answers of a cluster's nodes."""

import ssl
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rt.amounts import duration_text, size_text
from rt.cli.common.asking import NodeAnswer
from rt.cli.look.diagnosis import Diagnosis, fine, problem, warning
from rt.cli.look.node_versions import different_versions, node_version, strangers
from rt.cli.look.status_report import ClusterReport
from rt.client.readers.settings import ConnectionSettings
from rt.net.addresses import parse_address
from rt.node.observe.answer_fields import checked, get
from rt.node.observe.problems import Problem, disk_state
from rt.text import printable
from rt.version import __version__

CLOCK_WARNING_S: Final = 1.0
CLOCK_PROBLEM_S: Final = 30.0
_DAYS_WARNING: Final = 7.0


def cluster_findings(
    asked: Sequence[NodeAnswer], report: ClusterReport, settings: ConnectionSettings
) -> Iterator[Diagnosis]:
    """Yield the findings from nodes' answers.

    Args:
        asked: The result for each address that was asked.
        report: The same answers, checked.
        settings: The settings of this command, with the stream and the nodes that they name.
    """
    yield from _ports(asked, report)
    readable = {each.address for each in report.answering}
    answers = [each for each in asked if each.address in readable and _is_whole(each.answer)]
    if not answers:
        return
    yield from _configuration(answers, report, settings)
    yield from _versions(answers)
    yield from _clocks(answers)
    yield from _disks(answers)
    yield from _certificates(answers)
    yield from _durability(answers)
    yield from _health(report)


def _is_whole(answer: dict[str, Any]) -> bool:
    """Return whether an answer has the expected types in the fields that the checks use."""
    try:
        for name in ("node", "version"):
            get(answer, name, str)
        for name in ("disk_free", "disk_reserve", "now_ns"):
            get(answer, name, int)
        node_version(answer)
        for place in get(answer, "addresses", dict).values():
            parse_address(place or "unknown:0")
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def _ports(asked: Sequence[NodeAnswer], report: ClusterReport) -> Iterator[Diagnosis]:
    silent = {node.address: report.silence(node) for node in report.nodes if node.error}
    for each in asked:
        if each.error:
            silence = silent.get(each.address) or Problem(f"{each.address} does not answer")
            yield problem("ports", f"{silence.said}: {printable(each.error)}",
                          _dial_advice(each, silence.advice))  # fmt: skip
        else:
            name = printable(str(each.answer.get("node", "?")))
            yield fine("ports", f"{name} answers at {each.address} in {duration_text(each.took_s)}")


def _dial_advice(asked: NodeAnswer, advice: str) -> str:
    host = asked.address.rpartition(":")[0]
    if asked.is_refusal:
        return "see what it says; rt certs show describes a certificate"
    if "resolve" in asked.error or "known" in asked.error:
        return f"look up {host}; correct the setting nodes, or the name service"
    return advice


def _configuration(
    answers: Sequence[NodeAnswer], report: ClusterReport, settings: ConnectionSettings
) -> Iterator[Diagnosis]:
    """Yield contradictions between our settings and the nodes' answers."""
    about, stream = "configuration", settings.stream
    for each in report.answering:
        if each.stream != stream:
            yield problem(about, f"{each.name} serves stream {each.stream}, and {stream} is set",
                          "correct the setting stream")  # fmt: skip
    ids = {printable(str(each.answer.get("cluster", ""))) for each in answers}
    if len(ids) > 1:
        yield problem(about, "the listed nodes are of different clusters",
                      "list the nodes of one cluster only")  # fmt: skip
        return
    listed = set(settings.addresses())
    places: dict[str, str] = {}
    for node in answers:
        found = get(node.answer, "addresses", dict)
        places |= {printable(name): checked(found[name], str) for name in found if found[name]}
    members = {parse_address(place): name for name, place in sorted(places.items())}
    apart = listed.isdisjoint(members)  # they know each other by other addresses, as at a gateway
    missing = "" if apart and len(listed) >= len(members) else ", ".join(
        f"{name} at {places[name]}" for at, name in members.items() if at not in listed
    )  # fmt: skip
    extra = "" if apart else ", ".join(
        f"{host}:{port}" for host, port in sorted(listed - members.keys())
    )  # fmt: skip
    if missing:
        yield warning(about, f"nodes of the cluster that are not listed: {missing}",
                      "add them to the setting nodes, so that one of them is enough")  # fmt: skip
    if extra:
        yield warning(about, f"listed addresses that are no node's: {extra}",
                      "take them out of the setting nodes")  # fmt: skip
    if not missing and not extra:
        yield fine(about, f"all {len(report.members)} nodes of the cluster are listed")


def _versions(answers: Sequence[NodeAnswer]) -> Iterator[Diagnosis]:
    about = "versions"
    found = {get(each.answer, "node", str): node_version(each.answer) for each in answers}
    different, apart = different_versions(found), strangers(found)
    for one, other in apart:
        yield problem(about, f"{one} and {other} have no version of a protocol in common "
                      f"({different})", "go back to the version that the older of them can work "
                      "with; docs/OPERATIONS.md says how to update")  # fmt: skip
    if different and not apart:
        yield warning(about, f"the nodes run different versions ({different}), which work together",
                      "update the others, one after another")  # fmt: skip
    if different:
        return
    [version] = set(found.values())
    if version.software != __version__:
        yield warning(about, f"this is rt {__version__}, and the nodes run {version.text}",
                      "use the nodes' version")  # fmt: skip
        return
    level, reads = min(get(each.answer, "level", int) for each in answers), version.nodes[-1]
    if 0 < level < reads:
        yield warning(about, f"the nodes' update is not final: all read level {reads} of the "
                      f"cluster's formats, and only {level} is used",
                      "once it is not to be undone: rt cluster upgrade finalize")  # fmt: skip
    else:
        yield fine(about, f"rt {__version__} everywhere; {ssl.OPENSSL_VERSION} here")


def _clocks(answers: Sequence[NodeAnswer]) -> Iterator[Diagnosis]:
    """Compare each node's clock with this machine's.

    A node may have read its clock at any moment between question and reply. So a difference of up
    to half that time cannot be told from delay, and is not reported.
    """
    worst = 0.0
    for each in answers:
        now_ns = get(each.answer, "now_ns", int)
        offset_s = (now_ns - each.sent_ns) / 1e9 - each.took_s / 2
        sure_s = max(0.0, abs(offset_s) - each.took_s / 2)
        worst = max(worst, sure_s)
        if sure_s < CLOCK_WARNING_S:
            continue
        grade = problem if sure_s >= CLOCK_PROBLEM_S else warning
        way = "ahead of" if offset_s > 0 else "behind"
        name = get(each.answer, "node", str)
        yield grade("clocks", f"the clock of {name} is {duration_text(sure_s)} {way} ours",
                    "set both by NTP: retention and certificates go by the clock")  # fmt: skip
    if worst < CLOCK_WARNING_S:
        yield fine("clocks", f"the nodes' clocks agree with ours to {duration_text(worst + 0.01)}")


def _disks(answers: Sequence[NodeAnswer]) -> Iterator[Diagnosis]:
    advice = "free space, or lower the policy: rt archive policy, rt archive plan"
    for each in answers:
        name, free = get(each.answer, "node", str), get(each.answer, "disk_free", int)
        reserve = get(each.answer, "disk_reserve", int)
        state = disk_state(each.answer)
        if state == "full":
            continue  # a problem of the cluster, said below with what follows from it
        if state == "low":
            yield warning("disks", f"{name} has {size_text(free)} free, and refuses new data below "
                          f"{size_text(reserve)}", advice)  # fmt: skip
        else:
            yield fine("disks", f"{name} has {size_text(free)} free")


def _certificates(answers: Sequence[NodeAnswer]) -> Iterator[Diagnosis]:
    for each in answers:
        name, days = get(each.answer, "node", str), each.answer.get("certificate_days")
        if not isinstance(days, int | float):
            yield problem("certificates", f"{name} cannot read its certificate",
                          f"look at the log of {name}")  # fmt: skip
        elif days < _DAYS_WARNING or each.answer.get("certificate"):
            yield warning("certificates", f"the certificate of {name} expires in {days:g} days",
                          f"rt certs renew {name}, and copy the files to its machine")  # fmt: skip
        else:
            yield fine("certificates", f"the certificate of {name} lasts {days:g} days")


def _durability(answers: Sequence[NodeAnswer]) -> Iterator[Diagnosis]:
    for each in answers:
        if each.answer.get("loses_confirmed_on_power_cut") is True:
            name = get(each.answer, "node", str)
            said = (
                f"{name} acknowledges before it syncs: messages are lost if most nodes lose power"
            )
            yield warning("durability", said, "lose_confirmed_on_power_cut = false syncs first")


def _health(report: ClusterReport) -> Iterator[Diagnosis]:
    if not report.leader:
        yield problem("cluster", "no node leads, so nothing is merged",
                      "start the nodes that are down; a majority has to be up")  # fmt: skip
    silent = {report.silence(node) for node in report.nodes if node.error}
    found = [each for each in report.problems if each not in silent]  # they were reported as ports
    for each in found:
        yield problem("cluster", each.text, each.advice or "nothing, unless it lasts")
    yield from _sessions(report)
    if report.leader and not (found or report.stuck or report.poisoned or report.returned):
        yield fine("cluster", f"{report.leader} leads, and no node reports a problem")


def _sessions(report: ClusterReport) -> Iterator[Diagnosis]:
    """Yield a problem for each session that is stuck or refused, or has lost bytes somewhere."""
    for each in report.stuck:
        yield problem("cluster", each, "rt session show NAME says which nodes have what")
    for each in report.poisoned:
        yield problem(
            "cluster",
            each,
            "find the program that publishes it, and revoke its certificate: rt certs revoke",
        )
    for each in report.returned:
        yield problem("cluster", each, "compare what the publisher has with the nodes")
