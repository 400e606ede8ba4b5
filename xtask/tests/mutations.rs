//! Runs some hundred mutated images with the tests; `cargo xtask mutate` makes any number.

use std::{process::Command, time::Duration};

use floe_testkit::run_bounded;

/// A generous time limit for a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

#[test]
fn mutated_images_end_in_errors_or_data() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["mutate", "--fixtures", "--images", "384", "--seed", "20", "--jobs", "2", "--no-minimise"]);
    command.args(["--stages", "open,walk,read,check,extract"]);
    let run = run_bounded(&mut command, PATIENCE).expect("it runs");
    let table = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}: {}\n{table}", run.status, run.stderr);
    // At least a tenth of the images must reach each stage, or the test is meaningless.
    let last = table.lines().find(|line| line.starts_with("384 images, ")).expect("a summary");
    let counts: Vec<u64> = last.split(", ").filter_map(|words| words.split(' ').next()?.parse().ok()).collect();
    assert!(counts.len() >= 4 && counts[1..4].iter().all(|count| *count > 38), "{last}");
}

/// The recipes of the fixtures' first 32 images, which have two seeds, with further options.
fn recipes(options: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["mutate", "--fixtures", "--seed", "20", "--from", "0", "--to", "32"]).args(options);
    let run = run_bounded(&mut command, PATIENCE).expect("it runs");
    assert!(run.status.success(), "{}: {}", run.status, run.stderr);
    let lines = String::from_utf8_lossy(&run.stdout);
    lines.lines().filter(|line| line.starts_with("begins ")).map(str::to_owned).collect()
}

#[test]
fn a_limit_of_cpu_time_skips_images_but_no_seed() {
    let all = recipes(&["--stages", "open"]);
    let some = recipes(&["--stages", "open,walk,read,check", "--block-cpu-ms-max", "0"]);
    assert_eq!(all.len(), 32);
    assert!(some.len() < all.len(), "{} images", some.len());
    assert!(some.iter().all(|recipe| all.contains(recipe)), "a number still gives the same image");
    assert!([&all[0], &all[16]].iter().all(|first| some.contains(first)), "the first image of each seed remains");
}

#[test]
fn a_number_gives_the_same_image_again() {
    let told = |only: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["mutate", "--fixtures", "--seed", "20", "--from", only, "--to"]);
        command.arg((only.parse::<u64>().expect("a number") + 1).to_string()).args(["--stages", "open"]);
        let run = run_bounded(&mut command, PATIENCE).expect("it runs");
        assert!(run.status.success(), "{}: {}", run.status, run.stderr);
        String::from_utf8_lossy(&run.stdout).lines().next().map(str::to_owned).expect("a recipe")
    };
    assert_eq!(told("77"), told("77"));
    assert_ne!(told("77"), told("78"));
}
