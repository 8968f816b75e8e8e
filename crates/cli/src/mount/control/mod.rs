//! The daemon's control socket.
//!
//! A daemon listens on a socket of the host, in a directory that belongs to its user, under a name made from the image's
//! device and inode number and from where in the image the volume begins: whoever has the image's path finds the daemon,
//! by whichever path. Only root and the daemon's own user are answered (SO_PEERCRED), and only their daemons are asked.
//! A connection has one request and one reply, a line of JSON each; `watch`, `log` and `hold` go on after the reply.

mod client;
mod descriptor;
mod place;
mod protocol;
mod server;

pub use client::{Daemon, all, await_closing, await_reply, mount_of, of_image, or_mounted};
pub use protocol::{Request, Status};
pub use server::{Listener, Mounted};
