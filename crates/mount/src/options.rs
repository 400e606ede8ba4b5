//! Mount options. One table drives `-o`, `--help`, `floe tune`, `floe status` and docs/options.md.

mod list;
mod row;
mod running;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use list::Strictness;
pub use running::ShownOption;
pub use settings::Settings;
pub use text::{about, help, page};
