//! The example that embeds the library.

#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/embed.rs"]
mod example;

use floe_testkit::{corpus::Corpus, manifest::sha256_hex};

#[test]
fn the_example_lists_an_image_and_prints_a_file() {
    let corpus = Corpus::fixtures();
    let mut printed_count = 0;
    for record in corpus.images() {
        let manifest = corpus.manifest(&record);
        let Some((path, sha256)) = manifest.entries().find_map(|(path, entry)| Some((path, entry.sha256.clone()?)))
        else {
            continue;
        };
        let files = corpus.materialise(&record);
        if files.offset > 0 || !files.devices.is_empty() {
            continue;
        }
        let path_text = std::str::from_utf8(path).expect("a plain path");
        let mut output = Vec::new();
        example::list_and_print(files.path.as_os_str(), path_text.as_ref(), &mut output).expect(&record.name);
        let listed_count = manifest.entries().count();
        let mut lines = output.splitn(listed_count + 1, |byte| *byte == b'\n');
        let listed: Vec<_> = lines.by_ref().take(listed_count).collect();
        let suffix = format!(" {}", path.escape_ascii());
        assert!(listed.iter().any(|line| line.ends_with(suffix.as_bytes())), "{}: {path_text}", record.name);
        assert_eq!(sha256_hex(lines.next().unwrap_or_default()), sha256, "{}: {path_text}", record.name);
        printed_count += 1;
    }
    assert!(printed_count > 3, "{printed_count} images");
}
