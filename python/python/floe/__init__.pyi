"""Reads EROFS and SquashFS images, without mounting them."""

import io
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Literal

from typing_extensions import Buffer

__version__: str

class FloeError(OSError):
    """The image is broken or uses unsupported features."""

class Stat:
    """The attributes of an inode, as ``stat`` returns them. The time is the modification time."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_blocks: int
    st_mtime: float
    st_mtime_ns: int
    st_rdev: int

class DirEntry:
    """A directory entry."""

    name: str
    inode: int
    def is_dir(self) -> bool: ...
    def is_file(self) -> bool: ...
    def is_symlink(self) -> bool: ...

class File(io.RawIOBase):
    """A file of an image, open for reading. Calls of ``pread`` may run in parallel."""

    name: str
    size: int
    def pread(self, length: int, offset: int) -> bytes: ...
    def pread_into(self, buffer: Buffer, offset: int) -> int: ...

class Image:
    """An EROFS or SquashFS image. Threads may use it in parallel, and share one cache."""

    def __init__(
        self,
        source: str | bytes | PathLike[str] | object,
        *,
        offset: int | Literal["auto"] = 0,
        cache_bytes: int | None = None,
    ) -> None:
        """Opens the image in a file, or in an object with ``seek`` and ``read`` (or ``pread``)."""
    format: str
    label: str
    block_size: int
    inode_count: int
    def stat(self, path: str | bytes, *, follow_symlinks: bool = True) -> Stat: ...
    def exists(self, path: str | bytes) -> bool: ...
    def listdir(self, path: str | bytes = "/") -> list[str]: ...
    def scandir(self, path: str | bytes = "/") -> list[DirEntry]: ...
    def walk(self, path: str | bytes = "/") -> Iterator[tuple[str, Stat]]: ...
    def readlink(self, path: str | bytes) -> str: ...
    def xattrs(self, path: str | bytes) -> dict[str, bytes]: ...
    def open(self, path: str | bytes) -> File: ...
    def read(self, path: str | bytes, offset: int = 0, length: int | None = None) -> bytes: ...
    def read_many(self, requests: Iterable[tuple[str | bytes, int, int]]) -> list[bytes]:
        """Reads each ``(path, offset, length)``, on all CPUs. A result is shorter than requested only at the end of its file."""
