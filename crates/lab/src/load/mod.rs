//! Load beside what is measured; all of it ends with the measurement, whatever ends that.

mod burner;
mod kind;
#[expect(clippy::module_inception, reason = "the module is the noun and its parts")]
mod load;

pub use kind::{LoadKind, parse_size};
pub use load::Load;
pub(crate) use load::end;
