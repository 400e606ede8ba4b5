//! Compiles and runs the C example with the library, also with the sanitizers of the C compiler.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use floe::{FileType, Image, OpenOptions};
use floe_testkit::{skip, workspace_root};

/// Compiles an example against the static library that was built for this test.
fn compiled(directory: &Path, options: &[&str]) -> Result<PathBuf, String> {
    let libraries = env::current_exe().expect("this test").parent().expect("its directory").to_owned();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("read");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-g", "-I"]);
    compiler.arg(manifest.join("include")).arg(manifest.join("examples/read.c"));
    compiler.arg(libraries.join("libfloe_capi.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    let output = compiler.args(options).output().expect("a C compiler");
    if output.status.success() { Ok(program) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_c_program_reads_an_image() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), &[]).expect("it compiles");
    let demo = workspace_root().join("fixtures/demo.erofs");
    let image = Image::open(&demo, &OpenOptions::default()).expect("the demo image");
    let listing = Command::new(&program).arg(&demo).output().expect("it runs");
    assert!(listing.status.success(), "{}", String::from_utf8_lossy(&listing.stderr));
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let names: Vec<String> = image
        .read_dir(image.root())
        .map(|entry| String::from_utf8(entry.expect("an entry").name).expect("text"))
        .collect();
    assert!(!names.is_empty());
    assert_eq!(listing.lines().count(), names.len(), "{listing}");
    assert!(names.iter().all(|name| listing.lines().any(|line| line.ends_with(name))), "{listing}");
    let mut file_count = 0;
    for entry in image.walk() {
        let entry = entry.expect("an entry");
        if entry.attr.file_type != FileType::Regular {
            continue;
        }
        file_count += 1;
        let path = String::from_utf8(entry.path).expect("text");
        let output = Command::new(&program).arg(&demo).arg(&path).output().expect("it runs");
        let mut expected = vec![0; usize::try_from(entry.attr.size).expect("a small file")];
        image.read_at(entry.attr.nid, 0, &mut expected).expect("its content");
        assert!(output.status.success() && output.stdout == expected, "{path}");
    }
    assert!(file_count > 3);
    let failed = Command::new(&program).arg(&demo).arg("/nowhere").output().expect("it runs");
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no such file or directory in the image"));
}

#[test]
fn a_c_program_uses_memory_rightly() {
    let directory = tempfile::tempdir().expect("a directory");
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let Ok(program) = compiled(directory.path(), &sanitizers) else {
        skip::skipped("the C compiler has no sanitizers");
        return;
    };
    let demo = workspace_root().join("fixtures/demo.erofs");
    for arguments in [&[][..], &["/README.txt"], &["/nowhere"]] {
        let output = Command::new(&program).arg(&demo).args(arguments).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("Sanitizer") && !errors.contains("runtime error"), "{arguments:?}: {errors}");
        assert_eq!(output.status.success(), arguments != ["/nowhere"], "{arguments:?}: {errors}");
    }
}
