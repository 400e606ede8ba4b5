//! `floe extract --tar`: writes an image as a tar archive.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    sync::Arc,
};

use floe::{Image, Parts, TarError, TarOptions, TarSummary, XattrSelection, write_tar};
use floe_image::{Shown, ShownName};
use indicatif::{HumanBytes, HumanCount};

use super::{Arguments, PRINTED_MAX};
use crate::{
    cancellation,
    confinement::{self, Opened, OutputFile},
    fail::{Exit, Fail},
    fake,
    output::Output,
};

/// Writes the archive to the file `target`, or to standard output if it is `-`.
///
/// # Errors
/// The image cannot be opened or read, or the archive cannot be written.
pub(super) fn run(arguments: &Arguments, target: &Path) -> Result<u8, Fail> {
    fake::leave();
    let is_output = target.as_os_str() == "-";
    if is_output && io::stdout().is_terminal() {
        return Err(Fail::usage("--tar -: standard output is a terminal: redirect it, or name a file"));
    }
    let not_written = |error: io::Error| Fail::failed(format!("cannot write {}: {error}", target.shown()));
    let file = if is_output { None } else { Some(OutputFile::open(target).map_err(not_written)?) };
    let Opened { files, remote, .. } = arguments.image.open_confined(confinement::reading())??;
    let image = Image::of(files, &arguments.image.open_options())?;
    let cancel = cancellation::on_signals()?;
    if let Some(remote) = remote {
        cancellation::end_fetching_after(Arc::clone(&cancel), remote)?;
    }
    let write = |output: &mut (dyn Write + Send)| written(&image, arguments, output, &cancel);
    let Some(mut file) = file else {
        // The archive is the output: a summary would be a part of it.
        let mut outcome = Ok(Exit::Done.code());
        let ended = Output::run(|output| match write(output) {
            Err(TarError::Output(error)) => Err(error),
            Err(error) => {
                outcome = Err(fail(&error));
                Ok(Exit::Failed.code())
            }
            Ok(summary) => Ok(exit(arguments, &summary)),
        });
        return ended.and_then(|code| outcome.map(|_| code));
    };
    let mut begun = file.begin().map_err(not_written)?;
    let summary = write(&mut begun).map_err(|error| fail(&error))?;
    file.finish();
    if !arguments.quiet {
        let TarSummary { files, directories, symlinks, hard_links, special_files, bytes, .. } = summary;
        Output::print(format_args!(
            "{} files, {} directories, {} links, {} special files, {}\n",
            HumanCount(files),
            HumanCount(directories),
            HumanCount(symlinks + hard_links),
            HumanCount(special_files),
            HumanBytes(bytes)
        ))?;
    }
    Ok(exit(arguments, &summary))
}

fn written(
    image: &Image,
    arguments: &Arguments,
    output: &mut (dyn Write + Send),
    cancel: &std::sync::atomic::AtomicBool,
) -> Result<TarSummary, TarError> {
    let mut options = TarOptions::default();
    options.jobs = arguments.jobs.map_or(options.jobs, usize::from);
    if arguments.no_xattrs {
        options.xattrs = XattrSelection::None;
    }
    let paths: Vec<Vec<u8>> = arguments.paths.iter().map(|path| path.as_encoded_bytes().to_vec()).collect();
    let parts = if paths.is_empty() { Parts::All } else { Parts::Below(&paths) };
    let told = std::cell::Cell::new(0u64);
    let tell = |path: &[u8], omission: &floe::TarOmission| {
        if told.replace(told.get() + 1) < PRINTED_MAX {
            say!("floe: {}: {omission}; it was left out", Shown(path));
        }
    };
    let written = write_tar(image, parts, output, &options, &tell, cancel);
    let unprinted = told.get().saturating_sub(PRINTED_MAX);
    if unprinted > 0 {
        say!("floe: and {unprinted} more");
    }
    written
}

/// The exit code: sockets are missing in every archive.
fn exit(arguments: &Arguments, summary: &TarSummary) -> u8 {
    let is_incomplete = summary.failures > 0 || arguments.strict && summary.unfit > 0;
    if is_incomplete { Exit::Failed.code() } else { Exit::Done.code() }
}

fn fail(error: &TarError) -> Fail {
    let fail = Fail::failed(error.to_string());
    if matches!(error, TarError::Cancelled) { fail.with_exit(Exit::Interrupted) } else { fail }
}
