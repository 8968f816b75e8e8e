//! Bugs planted on purpose, to show that the tests would find them. `scripts/reliability --planted` plants each in turn.
//!
//! Without the feature `planted-bugs`, which only that command asks for, `planted` is constantly false and nothing of
//! this is left in the program. With it, one bug at a time can be in force in the whole process.
//!
//! A patch for each bug would mean a build for each, and patches that no longer apply. A switch in every build would cost a
//! branch in hot paths, and the bugs would be shipped. So one feature compiles all of them in, each as one line `planted(Bug::X)`
//! in the code that it breaks.

#[cfg(all(feature = "planted-bugs", not(debug_assertions)))]
compile_error!("planted-bugs is for tests: it cannot be built into a release");

macro_rules! bugs {
    ($($bug:ident $name:literal $sentence:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(any(feature = "planted-bugs", test)), allow(dead_code))]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $sentence] $bug,)*
        }

        #[cfg(any(feature = "planted-bugs", test))]
        impl Bug {
            pub const ALL: &[Self] = &[$(Self::$bug),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$bug => $name),* }
            }

            pub fn sentence(self) -> &'static str {
                match self { $(Self::$bug => $sentence),* }
            }
        }
    };
}

bugs! {
    SkipFlush "skip-flush" "The log's tail moves past blocks whose home writes were not flushed.";
    HomeBeforeCommit "home-before-commit" "Blocks go home with the changes of an epoch that is not committed yet.";
    NoBarrier "no-barrier" "Nothing is flushed between file data with fresh blocks and the commit that refers to them.";
    IndexForgotten "index-forgotten" "A new directory entry is not put into the directory's index.";
    WrongLinkCount "wrong-link-count" "A further name does not raise the link count.";
    StaleBytes "stale-bytes" "A file grows over bytes that a truncation left behind its end.";
    TornSuperblock "torn-superblock" "The superblock's checksum is not looked at.";
    AheadReclaimed "ahead-reclaimed" "The last close of a file frees what a flush in several parts has mapped past its size.";
    OrphanLeaked "orphan-leaked" "An open file that loses its last name is not put into the list of orphans.";
    DoubleAllocation "double-allocation" "Allocated blocks stay in the free-space trees.";
    OverwriteInPlace "overwrite-in-place" "Data with checksums is overwritten where it is, which the last commit still refers to.";
    DiscardBeforeCommit "discard-before-commit" "Freed blocks go back to the host before the epoch that freed them is durable.";
    RenameLost "rename-lost" "A rename to a new name is answered and not done.";
    FlushNotAwaited "flush-not-awaited" "An fsync takes a file for flushed that another thread is flushing.";
    BusyUnlisted "busy-unlisted" "A file that is being written while others are flushed leaves the list of dirty files.";
    CommitEpochOff "commit-epoch-off" "A sync waits for the epoch before its own.";
    ChangedAgainForgotten "changed-again-forgotten" "Data that changes while it is written counts as written.";
    SoftEntryEarly "soft-entry-early" "Soft updates: a name shows before the inode that it names.";
    SoftBitLate "soft-bit-late" "Soft updates: a pointer or an inode shows before its bit says that it is taken.";
    SoftDataLate "soft-data-late" "Soft updates: a pointer shows before the data that it leads to.";
    SoftAttributesLate "soft-attributes-late" "Soft updates: attributes show before bits say that their blocks are taken, which rounds of what is due leave out.";
    SoftBlockLate "soft-block-late" "Soft updates: a pointer shows before the directory's block, or that of pointers, that it leads to.";
    SoftLinksLow "soft-links-low" "Soft updates: links are taken away before the names.";
    SoftLastName "soft-last-name" "Soft updates: the old name of a rename goes before the new one is there.";
    SoftCutEarly "soft-cut-early" "Soft updates: a file that has no name any more gives up what it has while a name of it lasts.";
    SoftReuse "soft-reuse" "Soft updates: what is freed can be taken at once, though something still points to it.";
    SoftIdentity "soft-identity" "Soft updates: a directory says that it has a name which is not there yet.";
    SoftSize "soft-size" "Soft updates: a directory's size covers a block that is not mapped yet.";
    SoftMark "soft-mark" "Soft updates: blocks of an inode table are called initialised before they are.";
    SoftFillUnmarked "soft-fill-unmarked" "Soft updates: a name shows while its inode is in a block of the table that does not last as initialised.";
    SoftWhole "soft-whole" "Soft updates: a file shows in another one's place before its content.";
    SoftCut "soft-cut" "Soft updates: a file shows cut before the rest of its last block is zero.";
    SoftExchange "soft-exchange" "Soft updates: two names exchange what they name without a note of it.";
    SoftTaken "soft-taken" "Soft updates: a name that a directory takes or leaves shows without a note.";
    SoftSecondNames "soft-second-names" "Soft updates: nobody looks for second names of directories that power loss has left.";
    SoftNoFlush "soft-no-flush" "Soft updates: rounds are not flushed.";
    SoftFsyncUnreached "soft-fsync-unreached" "Soft updates: an fsync ends once the file lasts, whatever becomes of its name.";
    SoftFsyncData "soft-fsync-data" "Soft updates: an fsync leaves the file's data to the next commit.";
    SoftDueData "soft-due-data" "Soft updates: a round of what is due takes data that it leaves out for written.";
    SoftDueLeftOut "soft-due-left-out" "Soft updates: a round of what is due takes blocks that it leaves out for written.";
    SyncEpochOff "sync-epoch-off" "Order sync: an operation waits for the epoch before its own.";
    SyncRenameForgotten "sync-rename-forgotten" "Order sync: a rename returns before it is durable.";
    SyncAttributesForgotten "sync-attributes-forgotten" "Order sync: a change of attributes returns before it is durable.";
    SyncXattrsForgotten "sync-xattrs-forgotten" "Order sync: a change of extended attributes returns before it is durable.";
    SyncDataForgotten "sync-data-forgotten" "Order sync with syncmode=all: a write returns before its data has blocks.";
    SyncRemovalForgotten "sync-removal-forgotten" "Order sync: the removal of a name returns before it is durable.";
    SyncOneRound "sync-one-round" "Order sync: an operation makes one round, whatever is still undone.";
    SyncNoFlush "sync-no-flush" "Order sync: an operation's rounds are not flushed.";
    AbsentStays "absent-stays" "A name that was looked up before it was made stays absent for the name cache.";
    SyncedNameForgotten "synced-name-forgotten" "A file opened with O_SYNC is not synced by the write of its first byte.";
}

#[cfg(feature = "planted-bugs")]
static IN_FORCE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Puts a bug in force, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    IN_FORCE.store(bug.map_or(u8::MAX, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether this bug is in force.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: Bug) -> bool {
    IN_FORCE.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether this bug is in force: never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page says of each bug what is wrong, and who finds it.
    #[test]
    fn each_is_in_the_documentation() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/testing.md")).unwrap();
        let section = page.split("### Planted bugs").nth(1).and_then(|rest| rest.split("\n### ").next()).unwrap();
        let rows: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        for bug in Bug::ALL {
            let row = rows.iter().find(|row| row.starts_with(&format!("{}` |", bug.name())));
            let row = row.unwrap_or_else(|| panic!("docs/testing.md says nothing of {}", bug.name()));
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert!(bug.sentence().contains(cells[1]), "{}: {} is not what is planted", bug.name(), cells[1]);
            assert!(cells[2].len() > 3 && cells[3].len() > 3, "{}: who finds it, and as what", bug.name());
        }
        assert_eq!(rows.len(), Bug::ALL.len(), "a bug that there is no more");
    }
}
