//! Launches a command from an image over variants: `launch IMAGE VARIANT,… LAUNCHES BLOCKS LOAD COMMAND…`.

use std::path::Path;

use floe_lab::Interrupt;
use floe_lab::launch::{LaunchOptions, Variant, run};
use floe_lab::report::{launch_page, launch_text};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, variants, launches, blocks, load, command @ ..] = words.as_slice() else {
        return Err("usage: launch IMAGE VARIANT;… LAUNCHES BLOCKS LOAD COMMAND…".into());
    };
    let variants = variants.split(';').map(|text| Variant::parse(text, Path::new(image))).collect::<Result<_, _>>()?;
    let mut options = LaunchOptions::new(command.to_vec(), variants);
    options.launch_count = launches.parse()?;
    options.control_count = options.launch_count / 5;
    options.block_count = blocks.parse()?;
    options.stage.load = load.split(';').filter(|load| !load.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    options.trace_directory = std::env::var_os("TRACES").map(Into::into);
    for peer in std::env::var("PEERS").unwrap_or_default().split(';').filter(|peer| !peer.is_empty()) {
        options.programs.set(peer)?;
    }
    let report = run(&options, &Interrupt::listen(), &mut |progress| {
        eprint!("\r{}/{} {} {} µs      ", progress.done, progress.total, progress.variant, progress.wall_ns / 1000);
    })?;
    println!("{}", launch_text(&report));
    if let Some(path) = std::env::var_os("HTML") {
        std::fs::write(path, launch_page(&report))?;
    }
    if let Some(path) = std::env::var_os("JSON") {
        serde_json::to_writer(std::fs::File::create(path)?, &report)?;
    }
    Ok(())
}
