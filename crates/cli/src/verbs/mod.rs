//! The verbs, one file each, and the table of them all.

use crate::transfer;
use crate::verb::Verb;

mod bench;
pub mod cat;
mod chgrp;
pub mod chmod;
mod chown;
pub mod completions;
pub mod debug;
pub mod df;
pub mod du;
pub mod find;
pub mod fsck;
pub mod info;
mod lab;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod readlink;
pub mod rm;
pub mod stat;
pub mod stats;
mod sync;
mod tee;
mod touch;
pub mod tree;
pub mod trim;
mod truncate;
pub mod tune;
pub mod umount;

/// Every verb, in the order in which help shows them. A verb that is written elsewhere (as in `transfer`) is a type that
/// implements `verb::Command`, and one more line here.
pub const VERBS: &[Verb] = &[
    Verb::of::<mkfs::Mkfs>(),
    Verb::of::<mount::Mount>(),
    Verb::of::<umount::Umount>(),
    Verb::of::<info::Info>(),
    Verb::of::<tune::Tune>(),
    Verb::of::<ls::Ls>(),
    Verb::of::<tree::Tree>(),
    Verb::of::<cat::Cat>(),
    Verb::of::<transfer::Cp>(),
    Verb::of::<mv::Mv>(),
    Verb::of::<rm::Rm>(),
    Verb::of::<mkdir::Mkdir>(),
    Verb::of::<ln::Ln>(),
    Verb::of::<touch::Touch>(),
    Verb::of::<chmod::Chmod>(),
    Verb::of::<chown::Chown>(),
    Verb::of::<chgrp::Chgrp>(),
    Verb::of::<truncate::Truncate>(),
    Verb::of::<tee::Tee>(),
    Verb::of::<sync::Sync>(),
    Verb::of::<transfer::Import>(),
    Verb::of::<transfer::Export>(),
    Verb::of::<transfer::Verify>(),
    Verb::of::<find::Find>(),
    Verb::of::<du::Du>(),
    Verb::of::<df::Df>(),
    Verb::of::<stat::Stat>(),
    Verb::of::<readlink::Readlink>(),
    Verb::of::<stats::Stats>(),
    Verb::of::<trim::Trim>(),
    Verb::of::<fsck::Fsck>(),
    Verb::of::<debug::Debug>(),
    Verb::of::<myriad_lab::cli::Bench>(),
    Verb::of::<myriad_lab::experiment::cli::Lab>(),
    Verb::of::<completions::Completions>(),
    Verb::of::<man::Man>(),
];
