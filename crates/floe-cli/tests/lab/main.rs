//! `floe lab` as a program.

mod lacking;
mod runs;
