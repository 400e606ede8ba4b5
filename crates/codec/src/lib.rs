//! Decompression and compression behind one interface, over well-kept libraries.
