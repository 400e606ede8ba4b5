//! A line in the kernel's trace for each decode.

use std::{fs::File, io::Write, sync::OnceLock, time::Duration};

/// The file to which each decode writes a line; none by default.
///
/// Meant for the `trace_marker` of tracefs, which adds the time and the thread.
#[derive(Default)]
pub(crate) struct DecodeMarks(OnceLock<File>);

impl DecodeMarks {
    /// Begins to write to `file`. Returns false if a file was set before.
    pub(crate) fn begin(&self, file: File) -> bool {
        self.0.set(file).is_ok()
    }

    /// Writes the mark of a decode: its duration, and the number of its decoded bytes.
    pub(crate) fn mark(&self, latency: Duration, decoded_bytes: usize) {
        if let Some(mut file) = self.0.get() {
            // One write for each line. A failed write loses only a line of the trace, so it is ignored.
            let _ = file.write(format!("floe_decode {} {decoded_bytes}\n", latency.as_nanos()).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::OwnedFd, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn marks_are_lines_once_a_file_is_set() {
        let marks = DecodeMarks::default();
        marks.mark(Duration::from_nanos(1), 2);
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = File::from(OwnedFd::from(near));
        assert!(marks.begin(near.try_clone().unwrap()));
        assert!(!marks.begin(near));
        marks.mark(Duration::from_micros(3), 4096);
        drop(marks);
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        assert_eq!(text, "floe_decode 3000 4096\n");
    }
}
