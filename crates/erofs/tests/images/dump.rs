//! Statistics and extents equal those that dump.erofs prints.

use std::{collections::HashMap, ops::ControlFlow, path::Path, process::Command, sync::Arc};

use floe_erofs::{
    Erofs,
    dump::{self, ExtentPlace, Statistics},
};
use floe_image::{BlockReader, FileSystem, FileType, Nid};
use floe_testkit::{
    DirectReader, Versions, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    peer,
    skip::{self, Need},
};

/// The output of dump.erofs.
fn printed(image: &Path, options: &[&str]) -> String {
    let output = Command::new(peer("dump.erofs").expect("it is there")).args(options).arg(image).output();
    String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned()
}

/// Images that dump.erofs reads correctly: it does not find extra devices by itself, and misreads the metabox.
fn images(corpus: &Corpus, is_wanted: impl Fn(&ImageRecord) -> bool) -> Vec<ImageRecord> {
    let is_readable = |image: &ImageRecord| {
        image.format == Format::Erofs
            && image.devices.is_empty()
            && image.offset == 0
            && !image.name.contains("metabox")
    };
    corpus.sample().into_iter().filter(|image| is_readable(image) && is_wanted(image)).collect()
}

fn open(corpus: &Corpus, image: &ImageRecord) -> Erofs {
    let reader = Arc::new(DirectReader::of(corpus.bytes(&image.image)));
    Erofs::open(reader as Arc<dyn BlockReader>).expect("it is opened")
}

fn statistics(erofs: &Erofs) -> Statistics {
    let mut statistics = Statistics::default();
    dump::entries(erofs, &mut |entry| {
        statistics.add(&entry.expect("it is read").report);
        ControlFlow::Continue(())
    });
    statistics
}

#[test]
fn statistics_are_those_of_dump_erofs() {
    if !skip::ready(&[Need::Corpus, Need::PeerOf("dump.erofs", Versions::Series("1.9"))]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    check_rows(
        &images(&corpus, |_| true),
        |image| image.name.clone(),
        |image| {
            let text = printed(&corpus.materialise(image).path, &["-S"]);
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            let said: HashMap<&str, &str> = pairs.map(|(key, value)| (key.trim(), value.trim())).collect();
            let erofs = open(&corpus, image);
            let mut found = statistics(&erofs);
            if let Some(packed) = dump::superblock(&erofs).expect("it is read").packed {
                found.add_special(&dump::inode(&erofs, packed).expect("it is read"));
            }
            let rows = [
                ("Filesystem total file count", found.path_count()),
                ("Filesystem regular file count", found.regular_files),
                ("Filesystem directory count", found.directories),
                ("Filesystem char dev count", found.character_devices),
                ("Filesystem block dev count", found.block_devices),
                ("Filesystem FIFO file count", found.fifos),
                ("Filesystem SOCK file count", found.sockets),
                ("Filesystem symlink file count", found.symlinks),
                ("Filesystem compressed files", found.compressed),
                ("Filesystem uncompressed files", found.uncompressed),
                ("Filesystem total original file size", found.original_bytes),
                ("Filesystem total file size", found.stored_bytes),
            ];
            let wrong = rows.into_iter().filter_map(|(key, found)| {
                let said = said.get(key).copied().unwrap_or("absent").trim_end_matches(" Bytes");
                (said != found.to_string()).then(|| format!("{key} is {found}, not {said}"))
            });
            wrong.collect()
        },
    );
}

/// Beginning and end of an extent, and its first stored byte and stored length if they apply.
type Row = (u64, u64, Option<(u64, u64)>);

/// The extents of an inode.
fn extents_of(erofs: &Erofs, nid: Nid) -> Vec<Row> {
    let mut found = Vec::new();
    dump::extents(erofs, nid, &mut |extent| {
        let place = match extent.place {
            ExtentPlace::Stored { offset, len, .. } => Some((offset, len)),
            ExtentPlace::Fragment { .. } | ExtentPlace::Hole => None,
        };
        found.push((extent.range.offset(), extent.range.end(), place));
        ControlFlow::Continue(())
    })
    .expect("they are read");
    found
}

#[test]
fn extents_are_those_of_dump_erofs() {
    if !skip::ready(&[Need::Corpus, Need::PeerOf("dump.erofs", Versions::Series("1.9"))]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let chosen = ["erofs-cbase-", "erofs-48bit-lz4-", "erofs-lz4-16k-", "erofs-lz4-b512", "erofs-head2", "erofs-old"];
    check_rows(
        &images(&corpus, |image| {
            chosen.iter().any(|start| image.name.starts_with(start)) && !image.name.contains("chunk")
        }),
        |image| image.name.clone(),
        |image| {
            let path = corpus.materialise(image).path;
            let erofs = open(&corpus, image);
            let mut files = Vec::new();
            dump::entries(&erofs, &mut |entry| {
                let report = entry.expect("it is read").report;
                if report.attr.file_type == FileType::Regular && report.attr.size > 4096 {
                    files.push(report.attr.nid);
                }
                ControlFlow::Continue(())
            });
            let mut told = Vec::new();
            for nid in files.into_iter().take(12) {
                let text = printed(&path, &["-e", &format!("--nid={}", nid.0)]);
                let lines = text.lines().skip_while(|line| !line.starts_with(" Ext:")).skip(1);
                let numbers = lines.filter(|line| line.contains("..")).map(|line| {
                    let words = line.split(|char: char| !char.is_ascii_digit()).filter(|word| !word.is_empty());
                    words.map(|word| word.parse::<u64>().expect("a number")).collect::<Vec<u64>>()
                });
                let said: Vec<_> = numbers.map(|row| (row[1], row[2], (row[4], row[6]))).collect();
                let found = extents_of(&erofs, nid);
                let is_same = said.len() == found.len()
                    && said.iter().zip(&found).all(|(said, found)| {
                        (said.0, said.1) == (found.0, found.1) && found.2.is_none_or(|place| place == said.2)
                    });
                if !is_same {
                    told.push(format!("inode {nid}: {found:?}, not {said:?}"));
                }
            }
            told
        },
    );
}

#[test]
fn superblocks_and_paths_are_reported() {
    if !skip::ready(&[Need::Corpus]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let erofs = open(&corpus, &corpus.image("erofs-cbase-lzma"));
    let report = dump::superblock(&erofs).expect("it is read");
    assert_eq!((report.algorithms, report.block_size, report.len), (vec!["lzma"], 4096, 128));
    let nid = erofs.lookup(erofs.root(), b"c-text").expect("it is read").expect("it is there");
    assert_eq!(dump::path_of(&erofs, nid).as_deref(), Some(&b"/c-text"[..]));
    assert_eq!(dump::path_of(&erofs, Nid(0)), None);
}
