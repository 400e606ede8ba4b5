//! Readahead of directories along the tree.

use floe_image::ByteRange;

use crate::{
    geometry::{BLOCK_BYTES, META_START},
    metadata_readahead::{Step, Window},
    view::View,
};

/// The maximum number of directories that a walk passes until the next request of the kernel.
const STEPS_MAX: u64 = 4096;

/// The blocks of the next directories of a walk along the tree.
pub(crate) struct Descent {
    view: View,
    /// The last directory of the walk so far.
    number: u64,
    window: Window,
    /// The number of directories of the window that are left.
    left: u64,
    /// The number of further directories. Without a limit, a cycle of directories would never end.
    steps_left: u64,
}

impl Descent {
    /// The walk of a window.
    pub(crate) fn new(view: View, window: Window) -> Self {
        Self { view, number: window.behind, window, left: window.len, steps_left: STEPS_MAX }
    }
}

impl Iterator for Descent {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        let shared = &self.view.shared;
        loop {
            if self.left == 0 {
                self.window = shared.readahead.note_read(self.window.walk, self.number)?;
                self.left = self.window.len;
            }
            self.view.learn_children(self.number);
            let number = shared.readahead.next_directory(self.number)?;
            (self.number, self.left) = (number, self.left - 1);
            self.steps_left = self.steps_left.checked_sub(1)?;
            match shared.readahead.step(self.window.walk, number) {
                Step::ReadAhead => {
                    let offset = META_START + shared.geometry.offset(shared.geometry.directory_slot(number));
                    return Some(ByteRange::new(offset, BLOCK_BYTES));
                }
                Step::Leave => {}
                Step::End => return None,
            }
        }
    }
}
