"""What a source sends in a turn of its connection."""

from dialogue import Dialogue, Log
from replicator_host import log_bytes

from rt.log.files.directory import LogDirectory


def test_a_turn_sends_the_little_of_several_logs_and_no_more_than_a_turn_may(tmp_path):
    """A turn for each update of a thousand sessions costs more than the updates."""
    dialogue = Dialogue(tmp_path / "s0", tmp_path / "t0")
    logs = [Log(tmp_path / f"s{number}").write(100) for number in range(40)]
    channels = []
    for number in range(len(logs)):
        dialogue.sink_directory = tmp_path / f"t{number}"
        log = LogDirectory(str(tmp_path / f"s{number}"))
        log.refresh()
        channels.append(dialogue.source.open(log))
        dialogue.take()

    def turns():
        for channel in channels:
            dialogue.source.mark(channel)
        sent = [each.position for each in channels]
        while dialogue.source.busy:
            dialogue.source.turn()
            sent, before = [each.position for each in channels], sent
            yield sum(now != was for now, was in zip(sent, before, strict=True))

    assert [count for count in turns() if count] == [16, 16, 8]
    for log in logs[:3]:
        log.write(100)
    for log in logs[3:7]:
        log.write(200_000)
    assert [count for count in turns() if count] == [5, 2]
    dialogue.take()
    dialogue.close()
    for number in range(len(logs)):
        assert log_bytes(tmp_path / f"t{number}") == log_bytes(tmp_path / f"s{number}")
