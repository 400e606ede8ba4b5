//! Mount options. One table drives `-o`, `--help`, `floe tune`, `floe status` and docs/options.md.

mod row;
mod running;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use running::ShownOption;
pub(crate) use settings::{Settings, Strictness};
pub(crate) use text::{about, help, page};
