//! Times in the local time zone, compared with the originals.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use floe_testkit::{
    Versions, check_rows,
    corpus::Corpus,
    peer,
    skip::{self, Need},
    workspace_root,
};

/// The folder of the zones that have names.
const ZONES: &str = "/usr/share/zoneinfo";

#[test]
fn times_are_those_of_the_originals_in_every_zone() {
    let needs =
        [Need::PeerOf("unsquashfs", Versions::Series("4.7")), Need::PeerOf("dump.erofs", Versions::Series("1.9"))];
    if !skip::ready(&needs) {
        return;
    }
    let corpus = Corpus::fixtures();
    let squashfs = corpus.materialise(&corpus.image("sqfs-cbase-gzip")).path;
    let erofs = workspace_root().join("fixtures/demo.erofs");
    let in_folder = format!("{ZONES}/Asia/Tokyo");
    // The value of TZ, and the file with the zone.
    let rows = [
        (None, None),
        (Some(""), None),
        (Some("UTC"), None),
        (Some("Europe/Berlin"), Some("Europe/Berlin")),
        (Some("EST5EDT"), Some("EST5EDT")),
        (Some(":America/Sao_Paulo"), Some("America/Sao_Paulo")),
        (Some(in_folder.as_str()), Some("Asia/Tokyo")),
        (Some("CET-1CEST"), None),
        (Some("CET-1CEST,M3.5.0,M10.5.0/3"), None),
        (Some("<+0330>-3:30"), None),
        (Some("Nowhere/Nothing"), None),
    ];
    check_rows(
        &rows,
        |(zone, _)| format!("TZ={zone:?}"),
        |(zone, file)| {
            if let Some(file) = file.map(|file| Path::new(ZONES).join(file)).filter(|file| !file.exists()) {
                skip::skipped(&format!("{} is missing", file.display()));
                return Vec::new();
            }
            let mut told = Vec::new();
            for (program, options, image) in [
                ("unsquashfs", &["-lln", "-full"][..], &squashfs),
                ("unsquashfs", &["-UTC", "-lln"], &squashfs),
                ("unsquashfs", &["-s"], &squashfs),
                ("unsquashfs", &["-UTC", "-s"], &squashfs),
                ("dump.erofs", &["-s"], &erofs),
                ("dump.erofs", &["--path=/README.txt"], &erofs),
            ] {
                let mut ours = Command::new(env!("CARGO_BIN_EXE_floe"));
                ours.arg0(program);
                let [ours, theirs] =
                    [ours, Command::new(peer(program).expect("it was asked for"))].map(|mut command| {
                        match zone {
                            Some(zone) => command.env("TZ", zone),
                            None => command.env_remove("TZ"),
                        };
                        command.args(options).arg(image).stdin(Stdio::null()).output().expect("it runs").stdout
                    });
                if ours != theirs || ours.is_empty() {
                    let [ours, theirs] = [ours, theirs].map(|output| String::from_utf8_lossy(&output).into_owned());
                    told.push(format!("{program} {options:?}: {ours}instead of\n{theirs}"));
                }
            }
            told
        },
    );
}
