"""AckSchedule: what wakes a connection, and what it then sends."""

import threading

from replicator.sink.ack_schedule import AckSchedule, ChannelBell
from replicator.wire.codec import ACK_BYTES
from rt.log.files.directory import LogDirectory
from tests.dialogue import SESSION_ID, Dialogue, Inbox, Log, NoWake

CHANNELS = 5


class Bells:
    """A schedule, and a bell for each of a few channels; `ring` rings them in another thread."""

    def __init__(self) -> None:
        self.schedule, self.tried = AckSchedule(NoWake()), list[int]()
        self.bells = [ChannelBell(each, self.schedule, self.leave) for each in range(CHANNELS)]

    def leave(self, channel: int) -> bool:
        """Leave a channel to the connection's thread."""
        self.tried.append(channel)
        return False

    def ring(self, *channels: int) -> None:
        """Say that these channels have news."""
        thread = threading.Thread(target=lambda: [self.bells[each].set() for each in channels])
        thread.start()
        thread.join()


def test_a_connection_is_woken_once_for_the_news_of_many_channels():
    """A thousand sessions are merged together; a system call for each would be half the work."""
    bells = Bells()
    bells.ring(*range(CHANNELS))
    assert bells.schedule.wake.sets == 1
    assert bells.tried == [0], "the thread that was woken acknowledges them all"
    assert bells.schedule.check()
    assert sorted(bells.schedule.due({})) == [*range(CHANNELS)]


def test_news_after_a_look_wakes_the_connection_again():
    """Also if the look found nothing: another thread had acknowledged what it was woken for."""
    bells = Bells()
    bells.ring(0)
    bells.schedule.due({})
    assert not bells.schedule.check()
    bells.ring(1)
    assert bells.schedule.wake.sets == 2
    assert bells.schedule.check()


def test_news_that_comes_while_the_peer_has_no_room_is_looked_at_again(tmp_path):
    """What was noted before the look, and not sent in it, needs no second wake."""
    dialogue = Dialogue(Log(tmp_path / "log").write(100).directory, tmp_path / "copy").talk()
    schedule, ring = dialogue.schedule, threading.Thread(target=dialogue.inbox.bell.set)
    dialogue.sink_pipe.has_left = True
    dialogue.inbox.merged = dialogue.outlet.position
    ring.start()
    ring.join()
    dialogue.take()
    assert not schedule.is_woken
    assert dialogue.sink.pause_s < 0.1
    dialogue.close()


class Many(Dialogue):
    """A dialogue about several sessions."""

    def claim(self, identity, bell):
        inbox = Inbox(self.sink_directory / identity.id, identity, bell)
        self.inboxes = [*getattr(self, "inboxes", []), inbox]
        return inbox


def test_what_is_due_of_many_channels_is_sent_at_once(tmp_path):
    """Each write is a TLS record and a system call, whatever its length."""
    dialogue = Many(Log(tmp_path / "log" / "0").write(100).directory, tmp_path / "copy").talk()
    for number in range(1, CHANNELS):
        identity = SESSION_ID._replace(id=str(number) * 32)
        log = LogDirectory(Log(tmp_path / "log" / str(number), identity).write(100).directory)
        log.refresh()
        dialogue.source.open(log)
    dialogue.talk()
    pipe, written = dialogue.sink_pipe, []
    pipe.post = lambda data: written.append(bytes(data))
    pipe.has_left = True  # so that nothing is sent as it is announced
    for inbox in dialogue.inboxes:
        inbox.merged = inbox.appender.end
        inbox.bell.set()
    pipe.has_left = False
    dialogue.sink.turn()
    assert [len(each) for each in written] == [CHANNELS * ACK_BYTES]
    dialogue.close()
