//! Background load, which ends with the measurement, even if that fails or is killed.

mod burner;
mod kind;
#[expect(clippy::module_inception, reason = "the module is the noun and its parts")]
mod load;

pub use kind::{LoadKind, parse_size};
pub use load::Load;
pub(crate) use load::end;
