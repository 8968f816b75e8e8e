//! The daemon's control socket.
//!
//! A daemon listens on a socket of the host, in a directory that belongs to its user, under a name made from the image's
//! device and inode number and from where in the image the volume begins: whoever has the image's path finds the daemon,
//! by whichever path. Only root and the daemon's own user are answered (SO_PEERCRED), and only their daemons are asked.
//! A connection has one request and one reply, a line of JSON each; `watch`, `log` and `hold` go on after the reply.
//!
//! Why a file of the host: a hidden directory in the mount would reach the daemon through the mount that is being taken away. An
//! abstract socket named by the volume's UUID could be taken first by anybody, and a copied image has the same UUID. Root's
//! commands do what a daemon tells them, so a forged answer could lead root's `rm` astray.
//!
//! A socket says that a daemon lives, not that its volume is still mounted: after an unmount the daemon goes on until the volume
//! is closed. So its status has the device number of the mount, and a command that wants to work on the mount looks for that
//! number in mountinfo. umount(2) of a mount of type `fuse` returns before the image is closed; `watch` gets its second reply
//! when it is and the lock is given up, or with what went wrong, and `mount` waits for a daemon that is closing. `log` drops
//! lines rather than wait.

mod client;
mod descriptor;
mod place;
mod protocol;
mod server;

pub use client::{
    Daemon, all, await_closing, await_reply, dead, inside_mount, mount_of, of_image, of_mount, of_target, or_elsewhere,
    or_mounted,
};
pub use protocol::{Request, Status};
pub use server::{Listener, Mounted};
