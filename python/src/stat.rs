//! The Python class `Stat`.

use floe::Attr;
use pyo3::prelude::*;

/// The attributes of an inode, as `stat` returns them. The time is the modification time.
#[pyclass(frozen, get_all, module = "floe")]
#[expect(clippy::struct_field_names, reason = "the names are those of Python's os.stat_result")]
pub(crate) struct Stat {
    st_mode: u32,
    st_ino: u64,
    st_nlink: u32,
    st_uid: u32,
    st_gid: u32,
    st_size: u64,
    st_blocks: u64,
    st_mtime: f64,
    st_mtime_ns: i128,
    st_rdev: u64,
}

impl From<Attr> for Stat {
    fn from(attr: Attr) -> Self {
        let nanoseconds = i128::from(attr.modified.seconds) * 1_000_000_000 + i128::from(attr.modified.nanoseconds);
        let (major, minor) = (u64::from(attr.device.major), u64::from(attr.device.minor));
        Self {
            st_mode: u32::from(attr.mode()),
            st_ino: attr.inode_number,
            st_nlink: attr.link_count,
            st_uid: attr.uid,
            st_gid: attr.gid,
            st_size: attr.size,
            st_blocks: attr.blocks_512,
            st_mtime: nanoseconds as f64 / 1e9,
            st_mtime_ns: nanoseconds,
            // Combined like makedev(3) of Linux.
            st_rdev: (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12) | ((major & !0xfff) << 32),
        }
    }
}

#[pymethods]
impl Stat {
    fn __repr__(&self) -> String {
        format!("floe.Stat(st_mode={:#o}, st_ino={}, st_size={})", self.st_mode, self.st_ino, self.st_size)
    }
}
