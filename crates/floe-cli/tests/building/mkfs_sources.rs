//! `floe mkfs` and its sources: holes, archive members, changing files, and invalid sources.

mod archives;
mod changing;
mod endings;
mod scene;
mod sparse;
