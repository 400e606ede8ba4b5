//! The server side, in the process that fetches.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::Arc,
    thread,
};

use floe_image::ImageSource;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::{
    Network, RemoteImage,
    process::message::{Failure, Order, Question, READ_BYTES_MAX, Reply, Report, Verb, receive, receive_with, send},
};

/// The stack size of a thread that serves a lane, in bytes. Requests to object stores run on it; without optimisation, they
/// take more than 256 KiB.
pub(super) const STACK_BYTES: usize = 1 << 20;

/// Serves an image to the process at the other end of `control` until that process ends. `notice` receives messages for
/// users.
///
/// # Errors
/// The other process violates the protocol, or no threads can be started. Errors of the image are sent to that process.
pub fn serve(control: OwnedFd, notice: fn(&str)) -> io::Result<()> {
    match serve_until_end(control, notice) {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        result => result,
    }
}

fn serve_until_end(control: OwnedFd, notice: fn(&str)) -> io::Result<()> {
    let lanes = receive_lanes(&control)?;
    let control = File::from(control);
    let Some(Order::Open { location, options }) = receive(&control)? else { return Ok(()) };
    let opened = Network::new(options.remote.clone()).and_then(|network| {
        close_at_end(&control, &network)?;
        RemoteImage::open_over(network, &location, &options, notice)
    });
    let image = match opened {
        Ok(image) => Arc::new(image),
        Err(error) => return send(&control, &Report::Failed(Failure::of(&error))),
    };
    for (index, lane) in lanes.into_iter().enumerate() {
        let image = Arc::clone(&image);
        let builder = thread::Builder::new().name(format!("floe-lane/{index}")).stack_size(STACK_BYTES);
        // The other process notices the end of a lane, so the thread is not joined.
        builder.spawn(move || serve_lane(&lane, image.as_ref()))?;
    }
    send(&control, &Report::Opened(image.about().clone()))?;
    while let Some(Order::Counts) = receive(&control)? {
        send(&control, &Report::Counts(image.counts()))?;
    }
    image.close();
    Ok(())
}

/// Starts a thread that closes the network when the other process ends, also while the image is being opened.
fn close_at_end(control: &File, network: &Network) -> io::Result<()> {
    let (control, network) = (control.try_clone()?, network.clone());
    let builder = thread::Builder::new().name("floe-end".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        let mut watched = [PollFd::new(&control, PollFlags::RDHUP)];
        while poll(&mut watched, None) == Err(Errno::INTR) {}
        network.close();
    })?;
    Ok(())
}

fn serve_lane(lane: &File, image: &RemoteImage) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(question) = Question::receive(lane)? {
        answer(question, lane, image, &mut buffer)?;
    }
    Ok(())
}

/// Answers a question over the lane that it came from.
///
/// # Errors
/// The question is wrong, or the other process does not take the answer.
pub(super) fn answer(
    Question { verb, offset, len }: Question,
    mut lane: &File,
    image: &RemoteImage,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let result = match verb {
        Verb::WillNeed => {
            image.will_need(offset, len);
            return Ok(());
        }
        Verb::DontNeed => {
            image.dont_need(offset, len);
            return Ok(());
        }
        Verb::Read | Verb::TryRead => {
            let len = usize::try_from(len).ok().filter(|len| *len <= READ_BYTES_MAX);
            buffer.resize(len.ok_or(io::ErrorKind::InvalidData)?, 0);
            if verb == Verb::Read {
                image.read_at(offset, buffer).map(|()| true)
            } else {
                image.try_read_at(offset, buffer)
            }
        }
    };
    match result {
        Ok(true) => {
            lane.write_all(&Reply::Bytes(buffer.len()).to_bytes())?;
            lane.write_all(buffer)
        }
        Ok(false) => lane.write_all(&Reply::WouldBlock.to_bytes()),
        Err(error) => {
            let text = serde_json::to_vec(&Failure::of(&error))?;
            lane.write_all(&Reply::Failed(text.len()).to_bytes())?;
            lane.write_all(&text)
        }
    }
}

fn receive_lanes(control: &OwnedFd) -> io::Result<Vec<File>> {
    let (_, lanes) = receive_with(control, 1)?;
    Ok(lanes.into_iter().map(File::from).collect())
}
