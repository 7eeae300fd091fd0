"""A file read by position: a range of bytes into an array, and nothing else kept in memory.

Positional reads rather than a memory map: the pages of a map count as this process's memory until
they are dropped, and a file that shrinks under a map kills the process with SIGBUS where a read
reports an error. Reads may run in several threads.
"""

import os
from pathlib import Path

import numpy as np

from runtime.checkpoint.contract import CheckpointError


class ByteFile:
    """An open file of known size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be opened ({error.strerror}); check the path and its permissions"
            ) from error
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """Bytes [offset, offset + nbytes) as a new uint8 array. CheckpointError when the file is
        shorter.
        """
        target = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes:  # one read returns 2 GiB at most on Linux
            try:
                got = os.preadv(self._descriptor, [target.data[done:]], offset + done)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path}: reading failed ({error.strerror}); check the disk"
                ) from error
            if got == 0:
                raise CheckpointError(
                    f"{self.path}: ends at byte {offset + done}, {nbytes - done} bytes too early; "
                    "download it again"
                )
            done += got
        return target

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
