//! Messages on standard error.

use std::{
    fmt,
    io::{self, Write},
};

/// Prints a line on standard error, with the arguments of `format!`. Unlike `eprintln!`, it never panics.
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::say::line(format_args!($($argument)*))
    };
}

/// Prints a line on standard error. Errors are ignored: there is nowhere left to report them, and the exit code still
/// shows the result.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// As [`line()`], without the end of the line.
pub(crate) fn part(text: fmt::Arguments<'_>) {
    let _ = write!(io::stderr().lock(), "{text}");
}
