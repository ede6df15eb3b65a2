"""Short messages over a pipe, with as few system calls as there are messages."""

import os
import struct

HEADER = struct.Struct("!I")
MOST_BYTES = 1 << 16


class Channel:
    """One end of a two-way pipe. Messages are far shorter than the pipe's buffer, so that sending never blocks.

    >>> from multiprocessing import Pipe
    >>> ours, theirs = Pipe()
    >>> Channel(ours.fileno()).send(b"step"), Channel(theirs.fileno()).receive()
    (None, [b'step'])
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._rest = handle, b""

    def send(self, message: bytes) -> None:
        """Raises BrokenPipeError or ConnectionResetError if the other end is gone."""
        os.write(self._handle, HEADER.pack(len(message)) + message)

    def receive(self) -> list[bytes]:
        """What is there, in order, perhaps nothing whole yet; waits only if not a single byte is. Raises EOFError at the end."""
        data = os.read(self._handle, MOST_BYTES)
        if not data:
            raise EOFError
        data, messages, start = self._rest + data, [], 0
        while len(data) - start >= HEADER.size:
            end = start + HEADER.size + HEADER.unpack_from(data, start)[0]
            if end > len(data):
                break
            messages.append(data[start + HEADER.size : end])
            start = end
        self._rest = data[start:]
        return messages
