//! The golden images in `fixtures/`.

mod block_sizes;
mod demo;
mod selection;

use std::{collections::BTreeSet, fs, path::PathBuf};

use floe_testkit::{corpus::Corpus, manifest::sha256_hex};

use crate::task_error::{During, Outcome, TaskError};

/// The size limit of the whole directory in bytes.
const FOLDER_BYTES_MAX: u64 = 2 << 20;

/// Without options, checks that each file matches `images.jsonl`
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Copy the selected images from a reference corpus again
    #[arg(long, value_name = "CORPUS")]
    from: Option<PathBuf>,
    /// Rebuild the demonstration image. Needs mkfs.erofs, and root for its manifest
    #[arg(long)]
    demo: bool,
    /// Rebuild the images with large blocks. Needs a mkfs.erofs built for blocks of 64 KiB
    #[arg(long)]
    block_sizes: bool,
}

/// Rebuilds the requested images, and checks.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(root) = &arguments.from {
        selection::copy(&Corpus::at(root), &Corpus::fixtures())?;
    }
    if arguments.demo {
        demo::build(&Corpus::fixtures())?;
    }
    if arguments.block_sizes {
        block_sizes::build(&Corpus::fixtures())?;
    }
    check()
}

/// Checks that each file matches `images.jsonl`, that there are no other files, and that the directory is small.
pub(crate) fn check() -> Outcome {
    let corpus = Corpus::fixtures();
    let mut known = BTreeSet::from(["images.jsonl".to_owned(), "corrupt.jsonl".to_owned(), "README.md".to_owned()]);
    let mut lines = Vec::new();
    let images = corpus.images();
    for image in &images {
        known.insert(image.manifest.clone());
        for file in image.devices.iter().chain([&image.image]) {
            known.insert(file.file.clone());
            match corpus.plain_bytes(&file.file) {
                Ok(bytes) if sha256_hex(&bytes) == file.sha256 => {}
                Ok(_) => lines.push(format!("{} does not match images.jsonl", file.file)),
                Err(error) => lines.push(error),
            }
        }
        if corpus.plain_bytes(&image.manifest).is_err() {
            lines.push(format!("{}: its manifest {} is missing", image.name, image.manifest));
        }
    }
    let mut folder_bytes = 0;
    for folder in ["", "images", "manifest"] {
        let path = corpus.root().join(folder);
        for entry in fs::read_dir(&path).during(path.display())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_file() {
                folder_bytes += entry.metadata()?.len();
                if !known.contains(&name) {
                    lines.push(format!("{name}: not listed in images.jsonl"));
                }
            }
        }
    }
    if folder_bytes > FOLDER_BYTES_MAX {
        lines.push(format!("the directory has {folder_bytes} bytes; the limit is {FOLDER_BYTES_MAX}"));
    }
    let corrupt = corpus.corrupt_images();
    eprintln!("{} images, {} corrupt ones, {} KiB", images.len(), corrupt.len(), folder_bytes >> 10);
    TaskError::from_lines("fixtures", &lines)
}
