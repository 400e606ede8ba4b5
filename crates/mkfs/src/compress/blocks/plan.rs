//! Splits files into work for threads: runs of blocks, holes, and fragment blocks.

use std::{collections::VecDeque, iter::Peekable, ops::Range, vec};

use crate::{
    content::BlockFile,
    options::{PackedTails, SquashfsOptions},
};

/// The maximum length in bytes of contiguous blocks that one thread processes.
const DATA_LEN_MAX: usize = 1 << 20;
/// The length in bytes of the runs in which ends of files are sorted by similarity group.
const RUN_LEN: usize = 4 << 20;

/// What one thread processes at a time.
pub(super) enum Work<'a> {
    /// Contiguous blocks of a file.
    Data { file: BlockFile<'a>, offset: u64, len: usize },
    /// Blocks of a file that are holes.
    Hole { file: BlockFile<'a>, offset: u64, len: u64 },
    /// A fragment block of these ends of files.
    Fragment(Vec<Tail<'a>>),
}

/// The end of a file in a fragment block.
#[derive(Clone, Copy)]
pub(super) struct Tail<'a> {
    pub(super) file: BlockFile<'a>,
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// The work for these files, in the order of the image. The blocks of a file are contiguous.
pub(super) struct BlockPlan<'a, 'f> {
    files: std::slice::Iter<'f, BlockFile<'a>>,
    block_len: usize,
    tails: PackedTails,
    finds_holes: bool,
    /// Fragment blocks that are complete.
    fragments: VecDeque<Work<'a>>,
    /// The file whose blocks are next.
    current: Option<FilePlan<'a>>,
    /// Ends of files that are not in a fragment block yet, in tree order, and their length.
    run: Vec<Tail<'a>>,
    run_len: usize,
    /// The fragment block that is filled, and its length.
    open: Vec<Tail<'a>>,
    open_len: usize,
}

/// The blocks of a file that are left.
struct FilePlan<'a> {
    file: BlockFile<'a>,
    at: u64,
    end: u64,
    data: Peekable<vec::IntoIter<Range<u64>>>,
}

impl Work<'_> {
    /// How many bytes are read.
    pub(super) fn read_len(&self) -> usize {
        match self {
            Self::Data { len, .. } => *len,
            Self::Hole { .. } => 0,
            Self::Fragment(tails) => tails.iter().map(|tail| tail.len).sum(),
        }
    }

    /// How many parts of files are read.
    pub(super) fn part_count(&self) -> usize {
        match self {
            Self::Data { .. } | Self::Hole { .. } => 1,
            Self::Fragment(tails) => tails.len(),
        }
    }
}

impl<'a, 'f> BlockPlan<'a, 'f> {
    pub(super) fn new(files: &'f [BlockFile<'a>], squashfs: &SquashfsOptions) -> Self {
        Self {
            files: files.iter(),
            block_len: squashfs.block_len(),
            tails: squashfs.tails,
            finds_holes: squashfs.finds_holes,
            fragments: VecDeque::new(),
            current: None,
            run: Vec::new(),
            run_len: 0,
            open: Vec::new(),
            open_len: 0,
        }
    }

    /// Begins a file.
    fn begin(&mut self, file: BlockFile<'a>) {
        let (size, block_len) = (file.content.size(), self.block_len as u64);
        let tail_len = size % block_len;
        let is_packed = match self.tails {
            PackedTails::None => false,
            PackedTails::SmallFiles => size < block_len,
            PackedTails::All => true,
        };
        let end = if is_packed { size - tail_len } else { size };
        if end < size {
            let len = usize::try_from(tail_len).unwrap_or(usize::MAX);
            self.run.push(Tail { file, offset: end, len });
            self.run_len += len;
            if self.run_len >= RUN_LEN {
                self.end_run();
            }
        }
        // Errors of the file are reported when it is read.
        let found = if self.finds_holes && end > 0 { file.content.data_ranges(block_len).ok() } else { None };
        let whole = || std::iter::once(0..size).collect();
        let data = found.unwrap_or_else(whole).into_iter().peekable();
        self.current = Some(FilePlan { file, at: 0, end, data });
    }

    /// Puts the ends of files into fragment blocks, similar ones side by side.
    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        run.sort_by_key(|tail| tail.file.group);
        for tail in run {
            if self.open_len + tail.len > self.block_len {
                self.end_fragment();
            }
            self.open_len += tail.len;
            self.open.push(tail);
        }
        self.run_len = 0;
    }

    fn end_fragment(&mut self) {
        if !self.open.is_empty() {
            self.fragments.push_back(Work::Fragment(std::mem::take(&mut self.open)));
            self.open_len = 0;
        }
    }
}

impl<'a> Iterator for BlockPlan<'a, '_> {
    type Item = Work<'a>;

    fn next(&mut self) -> Option<Work<'a>> {
        loop {
            if let Some(work) = self.fragments.pop_front() {
                return Some(work);
            }
            if let Some(work) = self.current.as_mut().and_then(|current| current.next(self.block_len)) {
                return Some(work);
            }
            self.current = None;
            match self.files.next() {
                Some(file) => self.begin(*file),
                None if self.run.is_empty() && self.open.is_empty() => return None,
                None => {
                    self.end_run();
                    self.end_fragment();
                }
            }
        }
    }
}

impl<'a> FilePlan<'a> {
    /// The next blocks.
    fn next(&mut self, block_len: usize) -> Option<Work<'a>> {
        let (file, offset) = (self.file, self.at);
        if offset >= self.end {
            return None;
        }
        while self.data.next_if(|range| range.end <= offset).is_some() {}
        let next = self.data.peek().cloned().unwrap_or(self.end..self.end);
        if next.start > offset {
            self.at = next.start.min(self.end);
            return Some(Work::Hole { file, offset, len: self.at - offset });
        }
        let len_max = (DATA_LEN_MAX / block_len).max(1) * block_len;
        self.at = next.end.min(self.end).min(offset + len_max as u64);
        Some(Work::Data { file, offset, len: usize::try_from(self.at - offset).unwrap_or(usize::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, sync::Arc};

    use super::*;
    use crate::tree::{
        content::{Content, OpenFile},
        run::Run,
    };

    fn plan(contents: &[Content], tails: PackedTails) -> Vec<String> {
        let squashfs = SquashfsOptions { block_size_log2: 12, tails, ..SquashfsOptions::default() };
        let file = |(place, content)| BlockFile { place, content, group: (place % 2) as u32 };
        let files: Vec<_> = contents.iter().enumerate().map(file).collect();
        let described = BlockPlan::new(&files, &squashfs).map(|work| match work {
            Work::Data { file, offset, len } => format!("{} data {offset}+{len}", file.place),
            Work::Hole { file, offset, len } => format!("{} hole {offset}+{len}", file.place),
            Work::Fragment(tails) => {
                let tails = tails.iter().map(|tail| format!("{}:{}+{}", tail.file.place, tail.offset, tail.len));
                format!("fragment {}", tails.collect::<Vec<_>>().join(" "))
            }
        });
        described.collect()
    }

    #[test]
    fn files_become_blocks_holes_and_fragments() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = File::create_new(folder.path().join("file")).expect("there is room");
        file.write_all_at(&[1], 20_000_000).expect("there is room");
        let file = Arc::new(OpenFile { file: Arc::new(file), path: "file".into(), identity: None });
        let region = |size| Content::Region { file: file.clone(), offset: 0, size };
        let sparse = |runs: &[(u64, u64)], size| {
            let runs = runs.iter().map(|(offset, len)| Run { offset: *offset, len: *len, position: 0 }).collect();
            Content::Sparse { file: file.clone(), runs, size }
        };
        let contents = [
            region(0),
            region(1000),
            region(4096),
            region(3000),
            region(4097),
            sparse(&[(5000, 10), (1 << 30, 4096)], (1 << 30) + 5000),
            region(2000),
            region((2 << 20) + 1),
        ];
        let sparse_blocks = |last: u64| {
            [
                "5 hole 0+4096".to_owned(),
                "5 data 4096+4096".to_owned(),
                format!("5 hole 8192+{}", (1 << 30) - 8192),
                format!("5 data {}+4096", 1 << 30),
            ]
            .into_iter()
            .chain((last > 0).then(|| format!("5 hole {}+{last}", (1 << 30) + 4096)))
        };
        let split = |found: Vec<String>| -> (Vec<String>, Vec<String>) {
            found.into_iter().partition(|work| !work.starts_with("fragment"))
        };
        let (blocks, fragments) = split(plan(&contents, PackedTails::All));
        let first = ["2 data 0+4096", "4 data 0+4096"].map(str::to_owned);
        let last = ["7 data 0+1048576", "7 data 1048576+1048576"].map(str::to_owned);
        assert_eq!(blocks, first.into_iter().chain(sparse_blocks(0)).chain(last).collect::<Vec<_>>());
        assert_eq!(
            fragments,
            ["fragment 4:4096+1 6:0+2000 1:0+1000", "fragment 3:0+3000 5:1073745920+904 7:2097152+1"]
        );

        let (blocks, fragments) = split(plan(&contents, PackedTails::SmallFiles));
        let first = ["2 data 0+4096", "4 data 0+4097"].map(str::to_owned);
        let last = ["7 data 0+1048576", "7 data 1048576+1048576", "7 data 2097152+1"].map(str::to_owned);
        assert_eq!(blocks, first.into_iter().chain(sparse_blocks(904)).chain(last.clone()).collect::<Vec<_>>());
        assert_eq!(fragments, ["fragment 6:0+2000 1:0+1000", "fragment 3:0+3000"]);

        let (blocks, fragments) = split(plan(&contents, PackedTails::None));
        assert!(fragments.is_empty());
        assert_eq!(blocks[blocks.len() - 3..], last);
    }
}
