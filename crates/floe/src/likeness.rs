//! Recognises files that are not images.

/// How many bytes of a file are examined: the magic number of btrfs is the farthest.
pub(crate) const HEAD_BYTES: usize = 0x1_0048;

/// The probable type of a file that is not an image, by its magic numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Likeness {
    name: &'static str,
    advice: Option<&'static str>,
}

struct Magic {
    offset: usize,
    bytes: &'static [u8],
    name: &'static str,
    advice: Option<&'static str>,
}

const fn magic(offset: usize, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic { offset, bytes, name, advice: None }
}

const fn advised(offset: usize, bytes: &'static [u8], name: &'static str, advice: &'static str) -> Magic {
    Magic { offset, bytes, name, advice: Some(advice) }
}

/// The more specific magic numbers come first: a disk has a boot sector, and behind it partitions.
const MAGICS: &[Magic] = &[
    // It begins with the line of a script.
    magic(32, b"SIF_MAGIC\0", "a SIF container without an EROFS or SquashFS image"),
    advised(512, b"EFI PART", "a disk with a GPT", "find its partition and give its offset"),
    magic(1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    magic(0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    magic(0, b"XFSB", "an XFS file system"),
    magic(1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    magic(0, b"\x45\x3d\xcd\x28", "a cramfs image"),
    magic(0, b"-rom1fs-", "a romfs image"),
    magic(0x8001, b"CD001", "an ISO 9660 image"),
    magic(82, b"FAT32   ", "a FAT file system"),
    magic(54, b"FAT16   ", "a FAT file system"),
    magic(3, b"NTFS    ", "an NTFS file system"),
    magic(3, b"EXFAT   ", "an exFAT file system"),
    magic(0, b"shsq", "a vendor's variant of a SquashFS image"),
    advised(0, b"LUKS\xba\xbe", "an encrypted LUKS volume", "open it with cryptsetup first"),
    magic(0, b"verity\0\0", "a dm-verity hash tree"),
    advised(0, b"QFI\xfb", "a qcow2 disk", "convert it with `qemu-img convert -O raw` first"),
    advised(0, b"\x3a\xff\x26\xed", "an Android sparse image", "unpack it with simg2img first"),
    advised(0, b"\x1f\x8b", "gzip data", "decompress it first"),
    advised(0, b"\x28\xb5\x2f\xfd", "Zstandard data", "decompress it first"),
    advised(0, b"\xfd7zXZ\0", "xz data", "decompress it first"),
    advised(0, b"BZh", "bzip2 data", "decompress it first"),
    advised(0, b"\x04\x22\x4d\x18", "LZ4 data", "decompress it first"),
    advised(257, b"ustar", "a tar archive", "build an image from it with `floe mkfs`"),
    magic(0, b"PK\x03\x04", "a zip archive"),
    magic(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    magic(0, b"\x7fELF", "an ELF program"),
    magic(0, b"MZ", "a Windows program"),
    magic(0, b"#!", "a script"),
    advised(510, b"\x55\xaa", "a disk with a boot sector", "find its partition and give its offset"),
];

impl Likeness {
    /// The type with its article: "an ext2, ext3 or ext4 file system".
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Advice on how to use the file, if there is any.
    pub fn advice(&self) -> Option<&'static str> {
        self.advice
    }

    /// Recognises a file by its first bytes.
    pub(crate) fn of(head: &[u8]) -> Option<Self> {
        if head.is_empty() {
            return Some(Self { name: "an empty file", advice: None });
        }
        let found =
            MAGICS.iter().find(|magic| head.get(magic.offset..).is_some_and(|bytes| bytes.starts_with(magic.bytes)));
        if let Some(Magic { name, advice, .. }) = found {
            return Some(Self { name, advice: *advice });
        }
        let zeros = head.iter().all(|byte| *byte == 0);
        zeros.then_some(Self { name: "nothing but zeros", advice: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIF: &[u8] = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\0";

    #[test]
    fn files_are_recognised_by_magic_numbers() {
        for (offset, bytes, expected) in [
            (0, &b"\x7fELF\x02"[..], Some("an ELF program")),
            (1080, b"\x53\xef", Some("an ext2, ext3 or ext4 file system")),
            (0x1_0040, b"_BHRfS_M", Some("a btrfs file system")),
            (510, b"\x55\xaaEFI PART", Some("a disk with a GPT")),
            (0, SIF, Some("a SIF container without an EROFS or SquashFS image")),
            (0, b"#!/usr/bin/env run-singularity", Some("a script")),
            (510, b"\x55\xaa", Some("a disk with a boot sector")),
            (0, b"", Some("nothing but zeros")),
            (7, b"hello", None),
        ] {
            let mut head = vec![0; HEAD_BYTES];
            head[offset..offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Likeness::of(&head).map(|likeness| likeness.name()), expected, "{bytes:?} at {offset}");
        }
        assert_eq!(Likeness::of(&[]).map(|likeness| likeness.name()), Some("an empty file"));
        let longest = MAGICS.iter().map(|magic| magic.offset + magic.bytes.len()).max();
        assert!(longest.is_some_and(|longest| longest <= HEAD_BYTES));
    }
}
