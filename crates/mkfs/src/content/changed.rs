//! Handles files that change during a build.
//!
//! Content is read more than once, and later steps rely on the first read. If a file is found to have changed, it is
//! copied in its current state, and all data is stored again with the copy in place of the file.

use std::{collections::HashSet, fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

use floe_image::ShownName;
use rustix::{fs::OFlags, io::Errno};

use crate::{
    error::{Error, Result},
    files::output_file::scratch_file,
    progress::{Phase, Progress, report},
    tree::{
        Body, NodeId, OrderedNode, Tree,
        content::{Content, Identity, OpenFile, data_ranges},
        run::Run,
        source_root::is_gone,
    },
};

/// The copy size in bytes.
const COPY_LEN: usize = 1 << 20;

/// Copies of changed files, in a temporary file next to the image.
pub(crate) struct ChangedFiles<'a> {
    output: &'a Path,
    copies: Option<Arc<File>>,
    copied_len: u64,
    warnings: Vec<String>,
}

/// The result of copying a changed file.
enum Copied {
    /// The copied content.
    Content(Content),
    /// The file no longer exists.
    Gone,
}

impl<'a> ChangedFiles<'a> {
    /// Creates an empty set for the image at `output`.
    pub(crate) fn new(output: &'a Path) -> Self {
        Self { output, copies: None, copied_len: 0, warnings: Vec::new() }
    }

    /// The warnings for the user, one line per file.
    pub(crate) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Replaces the content of files that changed since they were listed, and of the file at `found` in any case;
    /// removes files that no longer exist from the tree. Fails with [`Error::Changed`] if nothing was replaced or
    /// removed.
    pub(crate) fn replace(
        &mut self,
        tree: &mut Tree,
        order: &[OrderedNode],
        found: &Path,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let mut gone = HashSet::new();
        let before = self.warnings.len();
        for (number, ordered) in order.iter().enumerate() {
            report(progress, Phase::Scan, number as u64, 0)?;
            let Body::File(content @ Content::Listed { .. }) = &tree.node(ordered.node).body else { continue };
            let is_found = content.path() == found;
            if !is_found && !matches!(content.open(), Err(Error::Changed { .. })) {
                continue;
            }
            match self.copy(content, progress)? {
                Copied::Content(copy) => tree.node_mut(ordered.node).body = Body::File(copy),
                Copied::Gone => self.leave_out(content, ordered.node, &mut gone),
            }
        }
        tree.remove(&gone);
        if self.warnings.len() == before { Err(Error::Changed { path: found.into() }) } else { Ok(()) }
    }

    fn leave_out(&mut self, content: &Content, node: NodeId, gone: &mut HashSet<NodeId>) {
        gone.insert(node);
        self.warnings.push(format!(
            "{} vanished or became unreadable before it was read; it was omitted",
            content.path().shown()
        ));
    }

    /// Copies a file up to its listed length, as far as the data still exists.
    fn copy(&mut self, content: &Content, progress: &mut dyn Progress) -> Result<Copied> {
        let Content::Listed { directory, name, identity, .. } = content else { return Ok(Copied::Gone) };
        let path = content.path();
        let file = match directory.root.open_below(&directory.inner(*name), OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => File::from(file),
            Err(error) if is_gone(error) || matches!(error, Errno::ACCESS | Errno::PERM) => return Ok(Copied::Gone),
            Err(error) => return Err(Error::source(path, "open")(error.into())),
        };
        let status = file.metadata().map_err(Error::source(&path, "look at"))?;
        if !status.is_file() {
            return Ok(Copied::Gone);
        }
        let now = Identity::of_file(&file).map_err(Error::source(&path, "look at"))?;
        let size_max = identity.size.min(now.size);
        let ranges = data_ranges(&file, size_max, 1).map_err(|error| Error::source(&path, "read")(error.into()))?;
        let copies = match &self.copies {
            Some(copies) => Arc::clone(copies),
            None => Arc::clone(self.copies.insert(Arc::new(scratch_file(self.output)?))),
        };
        let mut runs = Vec::new();
        let mut size = size_max;
        let mut buffer = vec![0; COPY_LEN];
        for range in ranges {
            let mut run = Run { offset: range.start, len: 0, position: self.copied_len };
            let len = range.end - range.start;
            while run.len < len {
                report(progress, Phase::Scan, run.offset + run.len, size_max)?;
                let wanted = usize::try_from(len - run.len).unwrap_or(usize::MAX).min(COPY_LEN);
                let read = match file.read_at(&mut buffer[..wanted], run.offset + run.len) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read.map_err(Error::source(&path, "read"))?,
                };
                if read == 0 {
                    break;
                }
                let written = copies.write_all_at(&buffer[..read], self.copied_len);
                let action = "copy a changing file next to";
                written.map_err(|error| Error::Output { path: self.output.to_path_buf(), action, error })?;
                self.copied_len += read as u64;
                run.len += read as u64;
            }
            runs.push(run);
            if run.len < len {
                size = run.offset + run.len;
                break;
            }
        }
        let what = if size < identity.size {
            format!("the image has {size} of its {} bytes", identity.size)
        } else {
            format!("the image has its later content, up to the listed length of {size} bytes")
        };
        self.warnings.push(format!("{} changed while it was read: {what}", path.shown()));
        let file = Arc::new(OpenFile { file: copies, path, identity: None });
        Ok(Copied::Content(Content::Sparse { file, runs: runs.into(), size }))
    }
}
