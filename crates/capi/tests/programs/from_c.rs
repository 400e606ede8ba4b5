//! Compiles and runs the C example with the library, also with the sanitizers of the C compiler.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use floe::{FileType, Image, OpenOptions};
use floe_testkit::{run_bounded, skip, workspace_root};

/// How long a program may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

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
fn a_c_program_has_no_memory_errors() {
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

/// Serves an object at every path, whole or in ranges, until the test ends.
fn serve(object: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let object = Arc::new(object);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let object = Arc::clone(&object);
            thread::spawn(move || answer(&stream, &object));
        }
    });
    format!("http://{address}")
}

/// Answers the requests of one connection; `None` at its end.
fn answer(stream: &TcpStream, object: &[u8]) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let mut range = None;
        for line in lines.by_ref() {
            let line = line.ok()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some((first, last)) = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
                range = Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?));
            }
        }
        let (first, last) = range?;
        let end = object.len().min(last + 1);
        let body = object.get(first..end)?;
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"one\"\r\nContent-Length: {}\r\n\
             Content-Range: bytes {first}-{}/{}\r\n\r\n",
            body.len(),
            end - 1,
            object.len()
        );
        let mut stream = stream;
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()?;
    }
}

#[test]
fn a_c_program_reads_an_image_at_a_url() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), &[]).expect("it compiles");
    let demo = fs::read(workspace_root().join("fixtures/demo.erofs")).expect("the demo image");
    let image = Image::open(workspace_root().join("fixtures/demo.erofs"), &OpenOptions::default()).expect("an image");
    let readme = image.resolve("/README.txt").expect("a file");
    let mut expected = vec![0; usize::try_from(image.attr(readme).expect("a file").size).expect("a small file")];
    image.read_at(readme, 0, &mut expected).expect("its content");
    let url = format!("{}/demo.erofs", serve(demo));
    let read = |url: &str, path: &str| {
        let mut command = Command::new(&program);
        command.args([url, path]).env("XDG_CACHE_HOME", directory.path()).env_remove("http_proxy");
        run_bounded(&mut command, PATIENCE).expect("it runs")
    };
    let output = read(&url, "/README.txt");
    assert!(output.status.success() && output.stdout == expected, "{}", output.stderr);
    // The scheme is checked before anything is fetched.
    let wrong = read("ftp://localhost/demo.erofs", "/README.txt");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.stderr.contains("unknown scheme 'ftp'"), "{}", wrong.stderr);
}
