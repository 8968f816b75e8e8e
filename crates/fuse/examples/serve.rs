//! Mounts an image and serves it until it is unmounted: `serve IMAGE MOUNT_POINT [option ...]`.
//!
//! Options: `classic`, `ring`, `open` (the kernel asks for opens), `acl`, `writeback`, `direct_io`, `log` (each request
//! to standard error); other words go to the kernel.

use myriad_engine::{Fs, MountOptions};
use myriad_fuse::{Options, TransportChoice};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, mount_point, words @ ..] = &args[..] else {
        return Err("usage: serve IMAGE MOUNT_POINT [option ...]".into());
    };
    let mut options = Options { source: image.clone(), allow_other: true, ..Options::default() };
    for word in words {
        match word.as_str() {
            "classic" => options.transport = TransportChoice::Classic,
            "ring" => options.transport = TransportChoice::Ring,
            "open" => options.no_open = false,
            "acl" => options.acl = true,
            "writeback" => options.writeback = true,
            "direct_io" => options.direct_io = true,
            "log" => options.request_log = Some(Box::new(std::io::stderr())),
            other => options.kernel_options.push(other.to_owned()),
        }
    }
    let fs = Fs::open(Path::new(image), MountOptions::default())?;
    let mount = myriad_fuse::mount(fs, Path::new(mount_point), options)?;
    println!("{}: mounted", mount.handle().mount_point().display());
    let handle = mount.handle();
    mount.serve()?;
    print!("{}", handle.stats().to_text());
    Ok(())
}
