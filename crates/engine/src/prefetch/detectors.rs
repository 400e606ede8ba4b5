//! What reads have in common, so that the next ones can be foreseen.

pub(crate) mod clustered;
pub(crate) mod directory;
pub(crate) mod fault_around;
pub(crate) mod sequential;
