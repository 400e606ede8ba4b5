//! The lines of JSON that questions and answers are.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
};

use serde::Serialize;

use super::{Answer, Question};

/// The maximum length of a question, in bytes.
pub(super) const QUESTION_BYTES_MAX: u64 = 64 << 10;

/// The maximum length of an answer, in bytes.
pub(crate) const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Writes a question or an answer.
///
/// # Errors
/// The other end is closed, or does not read in time.
pub(crate) fn write_line(connection: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    (&mut &*connection).write_all(&line)
}

/// Reads a line. The other end writes nothing more before it gets an answer.
///
/// # Errors
/// The other end does not write in time.
pub(super) fn read_line(connection: &UnixStream, len_max: u64) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(connection.take(len_max)).read_line(&mut line)?;
    Ok(line)
}

/// Reads a question.
///
/// # Errors
/// The other end is closed, does not write in time, or is another version of Floe.
pub(crate) fn read_question(connection: &UnixStream) -> io::Result<Question> {
    Ok(serde_json::from_str(&read_line(connection, QUESTION_BYTES_MAX)?)?)
}

/// Reads an answer.
///
/// # Errors
/// As for [`read_question`].
pub(crate) fn read_answer(connection: &UnixStream) -> io::Result<Answer> {
    let answer = serde_json::from_str(&read_line(connection, ANSWER_BYTES_MAX)?);
    answer.map_err(|_| io::Error::other("the answer is from another version of Floe"))
}
