//! The golden images in `fixtures/`.

mod block_sizes;
mod demo;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use floe_testkit::{corpus::Corpus, manifest::sha256_hex};
use serde_json::Value;

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
        copy(&Corpus::at(root), &Corpus::fixtures())?;
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

/// At least one image for each layout, codec and feature, small ones, and the bases of all corrupt images.
const IMAGES: [&str; 47] = [
    "erofs-plain-empty",
    "erofs-plain-tiny",
    "erofs-plain-label-uuid",
    "erofs-plain-meta",
    "erofs-plain-b512",
    "erofs-tar-aufs",
    "erofs-chunk-blobdev-4k",
    "erofs-rebuild-devices",
    "erofs-rebuild-full-zstd",
    "erofs-incremental-lz4",
    "erofs-two-algorithms",
    "erofs-xattr-prefix",
    "erofs-lz4hc-64k-ztail",
    "erofs-lzma-64k-allfrag",
    "erofs-metabox-shared-xattrs",
    "erofs-metabox-48bit-dot",
    "erofs-zD-lz4-frag",
    "erofs-lzma-b512",
    "erofs-cbase-plain",
    "erofs-cbase-lz4",
    "erofs-cbase-lz4-16k",
    "erofs-cbase-lz4-full",
    "erofs-cbase-frag",
    "erofs-cbase-zstd",
    "erofs-cbase-lzma",
    "erofs-cbase-deflate",
    "erofs-cbase-48bit",
    "erofs-cbase-chunk",
    "erofs-cbase-metabox",
    "sqfs-empty",
    "sqfs-tiny",
    "sqfs-root-attrs",
    "sqfs-meta",
    "sqfs-nopad",
    "sqfs-offset",
    "sqfs-appended",
    "sqfs-chunk-4k-nofrag",
    "sqfs-noX-noId-lz4",
    "sqfs-cbase-noI",
    "sqfs-cbase-gzip",
    "sqfs-cbase-zstd-noI",
    "sqfs-lzma-1m",
    "sqfs-xz-1m",
    "sqfs-xz-bcj-x86",
    "sqfs-lzo-128k",
    "sqfs-lz4-hc",
    "sqfs-zstd-1m",
];

/// Fields that the copied descriptions omit, because they concern only the corpus.
const FIELDS_LEFT_OUT: [&str; 3] = ["second_reader", "differs_from_source", "read_errors"];

/// Copies the selected images and all corrupt ones. Other images in the fixtures stay.
fn copy(corpus: &Corpus, fixtures: &Corpus) -> Outcome {
    let (from, to) = (corpus.root(), fixtures.root());
    let lines = read_lines(&from.join("images.jsonl"))?;
    let mut chosen = if to.join("images.jsonl").exists() { read_lines(&to.join("images.jsonl"))? } else { Vec::new() };
    chosen.retain(|line| !IMAGES.contains(&name(line)));
    for wanted in IMAGES {
        let found = lines.iter().find(|line| name(line) == wanted);
        let mut line = found.ok_or(TaskError::new(format!("{} has no {wanted}", from.display())))?.clone();
        if let Some(fields) = line.as_object_mut() {
            fields.retain(|field, _| !FIELDS_LEFT_OUT.contains(&field.as_str()));
        }
        chosen.push(line);
        let record = corpus.image(wanted);
        let files = record.devices.iter().chain([&record.image]).map(|file| file.file.as_str());
        for file in files.chain([record.manifest.as_str()]) {
            let target = to.join(file);
            fs::create_dir_all(target.parent().unwrap_or(to))?;
            fs::write(&target, fs::read(from.join(file)).during(file)?).during(target.display())?;
        }
    }
    write_lines(&to.join("images.jsonl"), &chosen)?;
    let mut corrupt = BTreeMap::new();
    for entry in fs::read_dir(from.join("corrupt"))? {
        let text = fs::read_to_string(entry?.path())?;
        let line: Value = serde_json::from_str(&text).during("corrupt")?;
        corrupt.insert(name(&line).to_owned(), line);
    }
    write_lines(&to.join("corrupt.jsonl"), &corrupt.into_values().collect::<Vec<_>>())
}

/// Adds the description of an image to `images.jsonl`, replacing one with the same name.
fn describe(fixtures: &Corpus, line: Value) -> Outcome {
    let path = fixtures.root().join("images.jsonl");
    let mut lines = if path.exists() { read_lines(&path)? } else { Vec::new() };
    lines.retain(|other| name(other) != name(&line));
    lines.push(line);
    write_lines(&path, &lines)
}

fn name(line: &Value) -> &str {
    line["name"].as_str().unwrap_or_default()
}

fn read_lines(path: &Path) -> Outcome<Vec<Value>> {
    let text = fs::read_to_string(path).during(path.display())?;
    text.lines().map(|line| serde_json::from_str(line).during(path.display())).collect()
}

fn write_lines(path: &Path, lines: &[Value]) -> Outcome {
    let mut lines: Vec<&Value> = lines.iter().collect();
    lines.sort_by_key(|line| name(line));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, text).during(path.display())
}
