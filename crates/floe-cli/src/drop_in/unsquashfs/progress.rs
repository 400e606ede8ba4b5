//! Shows the progress of `unsquashfs` on standard output, in a form that installers parse.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use floe_sync::Mutex;
use rustix::{
    stdio::stdout,
    termios::{isatty, tcgetwinsize},
};

use crate::{
    output::{redraw, remark},
    say,
};

/// The time between two updates.
const INTERVAL: Duration = Duration::from_millis(250);

/// The width where standard output is no terminal, or does not know its width.
const COLUMNS: usize = 80;

/// The characters that alternate behind the bar.
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// The form in which progress is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::drop_in) enum Form {
    /// A bar with numbers, which stays on its line.
    Bar,
    /// A line for each new percentage.
    Percentage,
}

/// The work to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::drop_in) struct Amount {
    /// The number of names to create, without those of directories.
    pub(in crate::drop_in) inodes: u64,
    /// The number of data blocks to write.
    pub(in crate::drop_in) blocks: u64,
}

impl Amount {
    fn total(self) -> u64 {
        self.inodes.saturating_add(self.blocks)
    }
}

/// Shows how much of the work is done: as a bar, as percentages, or not at all.
pub(in crate::drop_in) struct Progress {
    form: Option<Form>,
    amount: Amount,
    block_bytes: u64,
    is_terminal: bool,
    made: AtomicU64,
    written: AtomicU64,
    shown: Mutex<Shown>,
}

/// The state that was shown last.
struct Shown {
    at: Instant,
    percent: Option<u64>,
    spins: usize,
    /// Whether the line of the bar has no end yet.
    is_open: bool,
}

impl Progress {
    /// Shows progress in this form, if in any.
    pub(in crate::drop_in) fn new(form: Option<Form>, amount: Amount, block_bytes: u32) -> Self {
        Self {
            form,
            amount,
            block_bytes: u64::from(block_bytes).max(1),
            is_terminal: isatty(stdout()),
            made: AtomicU64::default(),
            written: AtomicU64::default(),
            shown: Mutex::new(Shown { at: Instant::now(), percent: None, spins: 0, is_open: false }),
        }
    }

    /// A name was created.
    pub(super) fn made(&self) {
        self.made.fetch_add(1, Relaxed);
        self.update();
    }

    /// Data was written.
    pub(in crate::drop_in) fn written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
        self.update();
    }

    /// Prints a message on standard error, below the bar.
    pub(super) fn say(&self, message: fmt::Arguments<'_>) {
        let mut shown = self.shown.lock();
        if std::mem::take(&mut shown.is_open) {
            remark("\n");
        }
        say::line(message);
    }

    /// Shows the last state, and ends the line. `made` corrects the number of created names; `has_all_data` states that all
    /// blocks were written, although holes and the ends of files have fewer bytes.
    pub(in crate::drop_in) fn finish(self, made: Option<u64>, has_all_data: bool) {
        let Some(form) = self.form else { return };
        self.made.store(made.unwrap_or(self.made.load(Relaxed)), Relaxed);
        if has_all_data {
            self.written.store(u64::MAX, Relaxed);
        }
        let mut shown = self.shown.lock();
        self.show(form, self.done(), &mut shown);
        remark("\n");
    }

    fn done(&self) -> u64 {
        let written = self.written.load(Relaxed);
        let blocks = if written == u64::MAX { written } else { written / self.block_bytes };
        self.made.load(Relaxed).min(self.amount.inodes).saturating_add(blocks.min(self.amount.blocks))
    }

    /// Shows the present state, unless the last one was shown a moment ago.
    fn update(&self) {
        let Some(form) = self.form else { return };
        let Some(mut shown) = self.shown.try_lock() else { return };
        if shown.at.elapsed() >= INTERVAL {
            shown.at = Instant::now();
            shown.spins += 1;
            self.show(form, self.done(), &mut shown);
        }
    }

    fn show(&self, form: Form, done: u64, shown: &mut Shown) {
        let total = self.amount.total();
        let percent = if total == 0 { 100 } else { share(done, total, 100) };
        let is_new = shown.percent.replace(percent) != Some(percent);
        match form {
            Form::Percentage if is_new => remark(format_args!("{percent}\n")),
            // Into a file or a pipe, a bar that did not grow is not written again.
            Form::Bar if total > 0 && (is_new || self.is_terminal || done == total) => {
                let columns = tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_col));
                let spinner = SPINNER[shown.spins % SPINNER.len()];
                if let Some(bar) = bar(done, total, if columns == 0 { COLUMNS } else { columns }, spinner) {
                    redraw(bar);
                    shown.is_open = true;
                }
            }
            _ => {}
        }
    }
}

/// A bar that fills `columns`; `None` if there is no room for it.
fn bar(done: u64, total: u64, columns: usize, spinner: char) -> Option<String> {
    let digits = total.to_string().len();
    let width = columns.checked_sub(2 * digits + "[|] / 100%".len() + 1)?;
    let filled = share(done, total, width as u64) as usize;
    let (percent, rest) = (share(done, total, 100), width - filled);
    Some(format!("[{spinner:=>0$}{1:rest$}] {done:digits$}/{total} {percent:3}%", filled + 1, ""))
}

/// The part of `whole` that corresponds to `done` of `total`, which is not 0.
fn share(done: u64, total: u64, whole: u64) -> u64 {
    (u128::from(done.min(total)) * u128::from(whole) / u128::from(total)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_its_line() {
        for (done, total, columns, expected) in [
            (0, 8, 23, Some("[|          ] 0/8   0%")),
            (4, 8, 23, Some("[=====|     ] 4/8  50%")),
            (8, 8, 23, Some("[==========|] 8/8 100%")),
            (5, 1000, 30, Some("[|           ]    5/1000   0%")),
            (1000, 1000, 30, Some("[===========|] 1000/1000 100%")),
            (8, 8, 13, Some("[|] 8/8 100%")),
            (8, 8, 12, None),
        ] {
            assert_eq!(bar(done, total, columns, '|').as_deref(), expected, "{done} {total} {columns}");
        }
    }
}
