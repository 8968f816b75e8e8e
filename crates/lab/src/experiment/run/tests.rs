//! A benchmark that silently does nothing is the worst bug: a target that says yes to everything is found out by every workload.

use super::*;
use crate::experiment::SUITES;
use crate::targets::{Counters, Usage, Worker};
use crate::workloads::plan::PathZ;

const OPTIONS: RunOptions = RunOptions { threads: 1, durability: Durability::End, seed: 5, slowdown: None };

/// Says that all went well, and has done nothing.
struct YesMan;

impl Target for YesMan {
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()> {
        work(&mut Self)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn drop_caches(&self) -> Result<()> {
        Ok(())
    }
    fn counters(&self) -> Result<Counters> {
        Ok(Counters::default())
    }
    fn usage(&self) -> Result<Usage> {
        Ok(Usage { used_bytes: 0, table_bytes_per_inode: 0 })
    }
    fn names(&self) -> Result<u64> {
        Ok(0)
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Methods that say yes.
macro_rules! yes {
    ($($method:ident($($argument:ty),*) -> $answer:ty = $value:expr;)*) => {
        impl Worker for YesMan {
            $(yes!(@ $method($($argument),*) -> $answer = $value);)*
        }
    };
    (@ $method:ident() -> $answer:ty = $value:expr) => {
        fn $method(&mut self) -> Result<$answer> { Ok($value) }
    };
    (@ $method:ident($a:ty) -> $answer:ty = $value:expr) => {
        fn $method(&mut self, _: $a) -> Result<$answer> { Ok($value) }
    };
    (@ $method:ident($a:ty, $b:ty) -> $answer:ty = $value:expr) => {
        fn $method(&mut self, _: $a, _: $b) -> Result<$answer> { Ok($value) }
    };
    (@ $method:ident($a:ty, $b:ty, $c:ty) -> $answer:ty = $value:expr) => {
        fn $method(&mut self, _: $a, _: $b, _: $c) -> Result<$answer> { Ok($value) }
    };
}

yes! {
    create(PathZ) -> () = ();
    mkdir(PathZ) -> () = ();
    unlink(PathZ) -> () = ();
    rmdir(PathZ) -> () = ();
    rename(PathZ, PathZ) -> () = ();
    stat(PathZ) -> u64 = 0;
    stat_missing(PathZ) -> () = ();
    list(PathZ) -> u64 = 0;
    list_stat(PathZ) -> u64 = 0;
    names(PathZ, &mut Vec<u8>) -> () = ();
    walk(PathZ) -> u64 = 0;
    find(PathZ) -> u64 = 0;
    remove_tree(PathZ) -> u64 = 0;
    write_file(PathZ, &[u8], bool) -> () = ();
    read_file(PathZ, &mut [u8]) -> usize = 0;
    open(PathZ, bool) -> () = ();
    read_at(&mut [u8], u64) -> () = ();
    write_at(&[u8], u64) -> () = ();
    link(PathZ, PathZ) -> () = ();
    utime(PathZ) -> () = ();
    append(PathZ, &[u8]) -> () = ();
    create_sized(PathZ, u64) -> () = ();
    settle() -> () = ();
    finish() -> () = ();
}

#[test]
fn every_workload_finds_out_a_target_that_does_nothing() {
    for suite in &SUITES {
        for item in suite.items(Scale(0.001), 5) {
            let Work::Ours(workload) = &item.work else { panic!("{} is a program", item.name) };
            let found = run_checked(&YesMan, &[workload.as_ref()], OPTIONS, true).map(|samples| samples.len());
            let error = found.expect_err(item.name).root_cause().to_string();
            assert!(error.contains("did not do what it was asked"), "{}: {error}", item.name);
        }
    }
}
