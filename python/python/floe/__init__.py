"""Reads EROFS and SquashFS images, without mounting them."""

from ._floe import DirEntry, File, FloeError, Image, Stat, __version__

__all__ = ["DirEntry", "File", "FloeError", "Image", "Stat", "__version__"]
