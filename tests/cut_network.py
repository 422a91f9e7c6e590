"""A TCP proxy whose connections a test can cut, and whose new connections it can prevent."""

import selectors
import socket
import threading
from contextlib import suppress


class CutNetwork:
    """Forwards connections to a port of this machine, between `__enter__` and `__exit__`."""

    def __init__(self, port):
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.is_cut = False
        self._pairs = []
        # held while a connection is made, which a cut then ends
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self.is_cut = True
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        self.cut()

    def cut(self):
        """End all connections, and every new one, until `mend`."""
        with self._lock:
            self.is_cut = True
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with suppress(OSError):  # it has ended
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self):
        """Forward new connections again."""
        self.is_cut = False

    def _accept(self):
        while True:
            try:
                ours = self._server.accept()[0]
            except OSError:
                return
            with self._lock:
                pair = None if self.is_cut else self._pair(ours)
            if pair is None:
                ours.close()
            else:
                threading.Thread(target=_forward, args=pair, daemon=True).start()

    def _pair(self, ours):
        """Connect to the port for a connection; None if nothing listens there."""
        try:
            theirs = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            return None
        self._pairs.append((ours, theirs))
        return ours, theirs


def _forward(*pair):
    with selectors.DefaultSelector() as selector, pair[0], pair[1]:
        for one, other in (pair, pair[::-1]):
            selector.register(one, selectors.EVENT_READ, other)
        while True:
            for key, _ in selector.select():
                try:
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return
