//! The library, as programs use it.

mod combinations;
mod corpus;
mod embed;
mod shared_engine;
