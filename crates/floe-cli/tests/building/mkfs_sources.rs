//! What `floe mkfs` makes of its sources: of holes, of lists in archives, of files that change, of what is no source.

mod archives;
mod changing;
mod endings;
mod scene;
mod sparse;
