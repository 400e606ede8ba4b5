//! The structures have the layout of the kernel's header, according to the C compiler of this machine.

use std::{fs, path::Path, process::Command};

use floe_fuse_wire::abi::LAYOUT;
use floe_testkit::skip::{Need, ready, skipped};

/// Fields added after version 7.38, the oldest header in use. They were spare before.
const NEWER: [(&str, &str); 4] =
    [("InitOut", "max_stack_depth"), ("InitOut", "request_timeout"), ("InitOut", "unused"), ("OpenOut", "backing_id")];

#[test]
fn structures_are_laid_out_as_in_the_kernels_header() {
    if !ready(&[Need::Peer("cc")]) {
        return;
    }
    if !Path::new("/usr/include/linux/fuse.h").exists() {
        return skipped("the headers of Linux are not installed");
    }
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/fuse.h>\nint main(void) {\n".to_owned();
    let mut expected = String::new();
    for (name, size, fields) in LAYOUT {
        let in_c = format!("struct fuse_{}", snake_case(name));
        program.push_str(&format!("printf(\"{name} %zu\\n\", sizeof({in_c}));\n"));
        expected.push_str(&format!("{name} {size}\n"));
        for (field, offset) in fields.iter().filter(|(field, _)| !NEWER.contains(&(name, field))) {
            let field = field.trim_start_matches("r#");
            program.push_str(&format!("printf(\"{name}.{field} %zu\\n\", offsetof({in_c}, {field}));\n"));
            expected.push_str(&format!("{name}.{field} {offset}\n"));
        }
    }
    program.push_str("return 0; }\n");
    let directory = tempfile::tempdir().expect("a directory");
    let (source, binary) = (directory.path().join("layout.c"), directory.path().join("layout"));
    fs::write(&source, program).expect("a file");
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output().expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), expected);
}

/// `BatchForgetIn` as `batch_forget_in`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
