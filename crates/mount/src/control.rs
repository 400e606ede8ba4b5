//! Control of a running mount, over a socket that only its user can access, in a directory that nobody else can take.
//!
//! A question is one line of JSON, and so is its answer. The socket is named after the mount's device number, so that a
//! client need not access the mount itself, which may hang.

mod client;
mod listeners;
mod message;
mod server;
mod serving_process;
mod socket_path;

pub use client::{AnswerLimits, Client};
pub(crate) use listeners::Listeners;
pub use message::{Answer, Question};
pub(crate) use message::{
    DESCRIPTORS_MAX, read_answer, read_answer_with_descriptors, read_question, write_line, write_line_with,
};
pub(crate) use server::{Server, Service, UnnamedSocket, remove_leftovers};
pub use serving_process::{Endpoint, ProcessEnd, ServingProcess};
