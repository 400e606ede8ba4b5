"""fsspec file systems ``erofs://`` and ``squashfs://``, for local images and for images at any other fsspec URL.

``erofs://path/in/image::https://host/app.erofs``, or ``fsspec.filesystem("erofs", fo="app.erofs")``.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import fsspec
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.local import LocalFileSystem

from . import Image, Stat

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class _ImageFileSystem(AbstractArchiveFileSystem):
    """A read-only file system in an image."""

    root_marker = ""
    cachable = True
    format: str

    def __init__(
        self,
        fo: Any = "",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        offset: int | str = 0,
        cache_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        """``fo`` is a path, a URL or an open file; ``target_options`` are those of its file system."""
        super().__init__(self, **kwargs)
        self._file = None
        source = fo
        if isinstance(fo, (str, os.PathLike)):
            target, path = fsspec.core.url_to_fs(os.fspath(fo), protocol=target_protocol, **(target_options or {}))
            if isinstance(target, LocalFileSystem):
                source = path
            else:
                # Decoded blocks are cached, so the bytes of the image need only readahead.
                source = self._file = target.open(path, "rb", cache_type="readahead", block_size=1 << 20)
        self.image = Image(source, offset=offset, cache_bytes=cache_bytes)
        if self.image.format != self.format:
            raise ValueError(f"the image is {self.image.format}, not {self.format}")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path).strip("/")

    def _entry(self, path: str, status: Stat) -> dict[str, Any]:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "file" if stat.S_ISREG(status.st_mode) else "other")
        return {
            "name": path,
            "size": status.st_size if kind == "file" else 0,
            "type": kind,
            "mode": status.st_mode,
            "uid": status.st_uid,
            "gid": status.st_gid,
            "mtime": status.st_mtime,
            "ino": status.st_ino,
            "nlink": status.st_nlink,
        }

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._entry(path, self.image.stat("/" + path))

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.image.exists("/" + self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        status = self.image.stat("/" + path)
        if not stat.S_ISDIR(status.st_mode):
            return [self._entry(path, status)] if detail else [path]
        names = sorted(f"{path}/{name}".lstrip("/") for name in self.image.listdir("/" + path))
        if not detail:
            return names
        return [self._entry(name, self.image.stat("/" + name, follow_symlinks=False)) for name in names]

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            raise OSError(30, "images are read-only", path)
        return self.image.open("/" + self._strip_protocol(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = "/" + self._strip_protocol(path)
        size = self.image.stat(path).st_size
        first, last, _ = slice(start, end).indices(size)
        return self.image.read(path, first, max(last - first, 0))

    def cat_ranges(
        self, paths: list[str], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """Reads many ranges on all CPUs."""
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        requests = []
        for path, start, end in zip(paths, starts, ends, strict=True):
            path = "/" + self._strip_protocol(path)
            if start is None or end is None or start < 0 or end < 0:
                start, end, _ = slice(start, end).indices(self.image.stat(path).st_size)
            requests.append((path, start, max(end - start, 0)))
        try:
            return self.image.read_many(requests)
        except OSError:
            if on_error == "raise":
                raise
        # At least one range failed. Reading them one by one shows which.
        return super().cat_ranges(paths, starts, ends, max_gap=max_gap, on_error=on_error, **kwargs)


class ErofsFileSystem(_ImageFileSystem):
    """``erofs://``"""

    protocol = "erofs"
    format = "erofs"


class SquashfsFileSystem(_ImageFileSystem):
    """``squashfs://``"""

    protocol = "squashfs"
    format = "squashfs"
