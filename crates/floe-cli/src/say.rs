//! Messages on standard error.

use std::{
    fmt,
    io::{self, Write},
};

use floe_image::harmless;

/// Prints a line on standard error, with the arguments of `format!`. Unlike `eprintln!`, it never panics.
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::say::line(format_args!($($argument)*))
    };
}

/// Prints a line on standard error. Names in it are quoted by `Shown`; text from servers, other programs and the command line
/// is made harmless here. Errors are ignored: there is nowhere left to report them, and the exit code still shows the result.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", harmless(&text.to_string()));
}

/// As [`line()`], without the end of the line.
pub(crate) fn part(text: fmt::Arguments<'_>) {
    let _ = write!(io::stderr().lock(), "{text}");
}
