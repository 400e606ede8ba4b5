//! Mounts an image until it is unmounted: `cargo run -p floe-mount --example mount -- IMAGE DIR`.

use std::sync::Arc;

use floe_mount::{Failure, Request, options::Settings};

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(image), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err(Failure::Usage("usage: mount IMAGE DIR".to_owned()));
    };
    let mut request = Request::new(image, directory, Settings::default());
    request.remarks = Arc::new(|message| eprintln!("{message}"));
    let mut mounted = request.prepare()?.confine()?.mount()?;
    mounted.announce(|message| {
        println!("{message}");
        Ok(())
    })?;
    mounted.wait().map(drop)
}
