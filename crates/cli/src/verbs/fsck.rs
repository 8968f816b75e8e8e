//! `fsck`: check and repair, with the options and exit bits of fsck(8).

mod online;

use crate::ask::Asker;
use crate::context::Context;
use crate::failure::{At, Failure, Kind, SECTORS_NEXT, SUPERBLOCK_NEXT, TRUNCATED_NEXT, image_name};
use crate::interrupt::Interrupted;
use crate::mount::control::{self, Daemon};
use crate::output::Output;
use crate::show::name::{Shown, count, needs_quotes};
use crate::show::size;
use crate::show::time;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::verbs::mkfs::existing::is_zero;
use crate::volume::{device, recognise, signatures};
use anyhow::Result;
use myriad_check::{CheckError, LogLoss, Options, Report, Scrub, check, check_beside, find_superblock_copy};
use myriad_device::{Access, BlockDevice, FileDevice, InUse};
use myriad_format::choices::Order;
use myriad_format::superblock::Superblock;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub const NAME: &str = "fsck";

/// What to do about contents that are damaged.
const RESTORE: &str = "restore those files from a copy, or remove them";

/// Steps that progress is told in.
const STEPS: f64 = 1000.0;

/// Exit bits, as fsck(8) adds them up.
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;
const OPERATIONAL: u8 = 8;
const USAGE: u8 = 16;
const CANCELLED: u8 = 32;

#[derive(clap::Args)]
pub struct Fsck {
    /// Change nothing: say what is wrong
    #[arg(short = 'n', long = "no", group = "answer")]
    no: bool,
    /// Repair all that can be repaired without asking
    #[arg(short = 'y', long = "yes", group = "answer")]
    yes: bool,
    /// As -y, for the start of the machine: a volume that was closed cleanly is not looked at, unless with --scrub or --force,
    /// and one whose metadata the device cannot read, or whose log is damaged, is left alone
    #[arg(short = 'p', long, visible_short_alias = 'a', group = "answer")]
    preen: bool,
    /// Check a mounted volume, named by its directory or image, as it is now; it goes on being changed, though one commit
    /// may wait shortly
    #[arg(long, conflicts_with_all = ["yes", "preen", "force"])]
    online: bool,
    /// With --online: most that may be written over before the check begins anew; it takes so much of TMPDIR (/var/tmp)
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse, requires = "online")]
    room: u64,
    /// With -p: look at a volume that was closed cleanly too. With -y: repair a volume of which only copies of the superblock
    /// are left, though something else has been made in its place
    #[arg(short, long)]
    force: bool,
    /// Read all file data too, compare it with its checksums if the volume has them, and say which bytes of which files are
    /// damaged; of a mounted volume with --online, but for what is removed or written over before it was read
    #[arg(long)]
    scrub: bool,
    /// With -y and --scrub: take data that differs from its checksum as it is, and write the checksum anew
    #[arg(long, requires_all = ["yes", "scrub"], conflicts_with_all = ["no", "preen"])]
    accept_contents: bool,
    /// Report progress to this file descriptor, as e2fsck does; 0 or none: a bar on the terminal, which is shown in any case
    #[arg(short = 'C', value_name = "FD", num_args = 0..=1, require_equals = true, default_missing_value = "0", allow_hyphen_values = true)]
    progress: Option<i32>,
    /// Device that holds the log, for a volume made with one
    #[arg(long, value_name = "DEVICE")]
    log_device: Option<PathBuf>,
    /// With -y: begin a new log on the log device, though it holds none of this volume that can be read, or one of another state of it
    #[arg(long, requires_all = ["yes", "log_device"], conflicts_with_all = ["no", "preen"])]
    new_log: bool,
    /// Where the superblock is lost, and the header of group 0 confirms no copy of it: byte of the image at which the copy lies that is this
    /// volume's. Without it a check names the copies that it finds. A user may have written such a copy into a file
    #[arg(long, value_name = "BYTE")]
    superblock: Option<u64>,
    /// Threads to use; without it one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Findings to print; the others are counted
    #[arg(long, value_name = "N", default_value = "1000")]
    findings_max: usize,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
    // fsck(8) passes on what it does not know itself; these change nothing here.
    #[arg(short = 'T', hide = true)]
    no_title: bool,
    #[arg(short = 'V', hide = true)]
    verbose: bool,
    /// Volume to check; with --online also the directory it is mounted on
    image: PathBuf,
}

impl Command for Fsck {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Check a volume, and repair it";
    const DETAILS: &'static str = "Without -n, -y or -p it checks, and asks before it repairs if there is a terminal to ask on. Each \
        finding is printed with its place and number. Files that lost their names go to /lost+found, or to /lost+found.1 and so on if what \
        has that name is not a directory of root's that nobody else may search or write. Damaged contents, which \
        --scrub finds, are told of by path and bytes and never changed, unless --accept-contents asks for that: restore such files from a \
        copy. A volume that is in use is \
        refused, but for -n, which looks at its last commit and says so when the volume is too busy to be looked at, and for \
        --online: the daemon that has it mounted commits, and from then on keeps what it writes over, so that one \
        state of it can be checked for as long as that takes. With --scrub that goes for the contents too; it keeps none of \
        them, so what is removed or written over before it was read is counted and not compared. What nobody has mounted, --online checks as -n does. Nothing \
        but -y, -p and the answer to the question writes to a volume. -p leaves a volume alone whose metadata the device cannot \
        read, or whose log is needed and damaged: what a repair would drop for that reason, another cable may bring back; -y repairs it. \
        Called as fsck.myriad it does the same.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad fsck -n vol.img", "says what is wrong and changes nothing"),
        ("myriad fsck -n --scrub vol.img", "reads everything, and names the files with damaged contents"),
        ("myriad fsck -y --json vol.img > report.json", "repairs, and keeps the report"),
        ("myriad fsck --online /mnt", "says whether a mounted volume is sound, while it is used"),
        ("myriad fsck --online --scrub /mnt", "reads all contents of it as well"),
        ("fsck.myriad -p /dev/sdb1", "what the machine runs at its start"),
    ];
    const EXIT: &'static [(u8, &'static str)] = &[
        (0, "The volume is sound. The other codes are bits that may come together."),
        (REPAIRED, "Errors were found and repaired."),
        (
            ERRORS_LEFT,
            "Errors are left; with -p perhaps all, since the device could not read some metadata or the log is damaged. Or all \
             was repaired, but changes were lost with a damaged log, which no repair brings back.",
        ),
        (
            OPERATIONAL,
            "The check could not be made, or not to its end after a repair: the volume is in use (with -n or --online: too \
             busy), cannot be read, or is none.",
        ),
        (USAGE, "The command line was wrong."),
        (CANCELLED, "Interrupted; nothing was changed."),
    ];
    const EXIT_CODE: fn(Kind) -> u8 = |kind| match kind {
        Kind::Error | Kind::Pipe => OPERATIONAL,
        Kind::Usage => USAGE,
        Kind::Interrupted(_) => CANCELLED,
    };

    fn run(mut self, context: &Context) -> Result<Status> {
        if self.online {
            if let Some(daemon) = control::of_target(&self.image)? {
                return self.check_mounted(context, &daemon);
            }
            self.no = true;
        }
        let opened = self.open(context)?;
        self.check_may_go_on(context, &opened)?;
        let name = &opened.name;
        let may_have_leftovers = opened.superblock.is_some_and(|superblock| superblock.leftovers != 0);
        let must_look = self.force || self.scrub || may_have_leftovers;
        if self.preen && !must_look && opened.was_closed_cleanly() == Some(true) {
            context.note(&format!("{name}: closed cleanly"));
            return Ok(Status::OK);
        }
        let (report, is_told) = self.check_and_repair(context, &opened)?;
        let mut out = context.out();
        if self.json {
            writeln!(out, "{}", report.to_json())?;
        } else {
            if !is_told {
                self.print_findings(&mut out, &report)?;
            }
            for action in &report.actions {
                line(&mut out, action)?;
            }
            for finding in &report.remaining {
                line(&mut out, &format!("left: {finding}"))?;
            }
            out.finish()?;
            self.note_result(context, &opened, &report);
        }
        Ok(status(&report))
    }
}

/// A volume as it was opened, and what was seen of it before the check.
struct Opened {
    name: String,
    volume: Arc<FileDevice>,
    log: Option<Arc<FileDevice>>,
    /// Somebody is changing it.
    writer: Option<InUse>,
    superblock: Option<Superblock>,
    /// What else begins here, where a superblock should be.
    other: Option<&'static str>,
    /// There is a terminal to ask on whether to repair, and the volume may be written.
    may_ask: bool,
}

impl Opened {
    fn was_closed_cleanly(&self) -> Option<bool> {
        self.superblock.as_ref().map(device::was_closed_cleanly)
    }

    /// The order that it was changed in last, if that is one that keeps a volume usable without a log.
    fn order(&self) -> Option<Order> {
        let order = self.superblock.map(|found| found.order());
        order.filter(|order| order.goes_by_rounds())
    }
}

/// What to do with a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Look,
    /// Somebody is changing it.
    LookBeside,
    Repair,
}

impl Fsck {
    fn is_repair(&self) -> bool {
        self.yes || self.preen
    }

    fn open(&self, context: &Context) -> Result<Opened> {
        let name = image_name(&self.image);
        let may_write = rustix::fs::access(&self.image, rustix::fs::Access::WRITE_OK).is_ok();
        let has_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let may_ask = !self.no && !self.json && may_write && has_terminal;
        let access = if self.is_repair() || may_ask { Access::ReadWrite } else { Access::ReadOnly };
        let (volume, writer) = match self.no {
            true => device::open_beside(&self.image)?,
            false => (device::open(&self.image, access).map_err(|error| self.or_online(error))?, None),
        };
        let open_log = |log: &Path| if self.no { Ok(device::open_beside(log)?.0) } else { device::open(log, access) };
        let log = self.log_device.as_deref().map(open_log).transpose()?;
        if let Some(writer) = &writer {
            context.note(&format!("{writer}; looking at its last commit"));
        }
        let superblock = device::intact_superblock(&volume);
        if let Some(superblock) = &superblock {
            device::check_is_whole(&*volume, superblock, &name)?;
        }
        let other = if superblock.is_none() { signatures::mark(&*volume) } else { None };
        Ok(Opened { name, volume, log, writer, superblock, other, may_ask })
    }

    /// Refuses to write over what is not this volume, or its log.
    fn check_may_go_on(&self, context: &Context, opened: &Opened) -> Result<()> {
        if let Some(log) = opened.log.as_ref().filter(|_| self.new_log && !self.force) {
            self.check_new_log(context, log, opened.superblock.as_ref().map(Superblock::volume))?;
        }
        if let Some(what) = opened.other.filter(|_| self.is_repair() && !(self.yes && self.force)) {
            let next = match find_superblock_copy(&*opened.volume) {
                Some(_) => {
                    "-y --force restores the old volume from its superblock copies and destroys what is here now"
                }
                // Nothing to restore a volume by: forcing it would cost what is here, for nothing.
                None => "check the name: no copy of a superblock of ours is on it, so there is no volume to repair",
            };
            return Err(Failure::new(&*opened.name, format!("holds {what}"), next).into());
        }
        Ok(())
    }

    /// Checks, and asks before it repairs if it may ask; whether the findings were told with the question.
    fn check_and_repair(&self, context: &Context, opened: &Opened) -> Result<(Report, bool)> {
        let how = match (self.is_repair(), &opened.writer) {
            (true, _) => How::Repair,
            (false, None) => How::Look,
            (false, Some(_)) => How::LookBeside,
        };
        let mut report = self.check(context, opened, how)?;
        let is_asked = !self.is_repair() && opened.may_ask && report.finding_count > 0;
        if is_asked {
            self.print_findings(&mut context.out(), &report)?;
            context.out().finish()?;
            let holds = opened.other.map_or(String::new(), |what| format!("holds {what}, which repair writes over; "));
            let found = count(report.finding_count, "finding");
            if Asker::default().ask(context, &format!("{}: {holds}{found}. Repair [y/N]", opened.name))? {
                report = self.check(context, opened, How::Repair)?;
            }
        }
        Ok((report, is_asked))
    }

    /// Notes what a report comes to, but for its findings.
    fn note_result(&self, context: &Context, opened: &Opened, report: &Report) {
        let name = &opened.name;
        if let Some(next) = self.next_after_unclean(opened, report) {
            context.note(&format!("{name}: not closed cleanly: {next}"));
        }
        if let Some(scrub) = &report.scrub {
            let has_checksums = opened.superblock.is_some_and(|superblock| superblock.geometry().has_checksums);
            context.note(&format!("{name}: {}", scrubbed(scrub, has_checksums)));
        }
        if let Some(loss) = report.log_loss.filter(LogLoss::is_loss) {
            context.note(&format!("{name}: {}", lost_changes(&loss, report)));
        }
        context.note(&format!("{name}: {}", summary_of(opened, report)));
        if let Some(pace) = report.seconds_per_million() {
            context.note(&format!("{name}: checked in {:.1} s, {pace:.1} s per million files", report.seconds));
        }
    }

    /// What becomes of a volume that was not closed cleanly and is left so, if there is more to say than the report does.
    fn next_after_unclean(&self, opened: &Opened, report: &Report) -> Option<String> {
        if opened.was_closed_cleanly() != Some(false) || report.repaired || opened.writer.is_some() {
            return None;
        }
        let is_unchecked = opened.superblock.is_some_and(|found| found.needs_check(report.totals.log_blocks > 0));
        match (is_unchecked || report.was_asked_for, self.is_repair(), opened.order()) {
            (false, _, Some(_)) if !report.is_usable() => None,
            (false, _, Some(order)) => Some(format!(
                "with order={} it can be used as it is; the next mount gives back what it holds for nothing, or myriad fsck -p",
                order.name()
            )),
            (false, _, None) => Some("its log counts; the next opening for changes empties it".into()),
            (true, false, _) if report.was_asked_for => {
                Some("a background check found damage; myriad fsck -p lets it be changed again".into())
            }
            (true, false, _) => Some("it has no log that counts; myriad fsck -p lets it be changed again".into()),
            // The report says so.
            (true, true, _) => None,
        }
    }

    /// An error of opening the volume; if it is mounted, with how to check it all the same.
    fn or_online(&self, error: anyhow::Error) -> anyhow::Error {
        let Ok(Some(Daemon { status, .. })) = control::of_target(&self.image) else { return error };
        let place = image_name(&status.mount_point);
        let what = format!("mounted on {place} by process {}", status.pid);
        let next = format!(
            "myriad fsck --online {place} checks it as it is; to repair it, unmount it with myriad umount {place}"
        );
        Failure::new(image_name(&self.image), what, next).into()
    }

    fn check_mounted(&self, context: &Context, daemon: &Daemon) -> Result<Status> {
        let name = image_name(&self.image);
        let log =
            self.log_device.as_deref().map(|log| Ok::<_, anyhow::Error>(device::open_beside(log)?.0)).transpose()?;
        let log = log.map(|log| log as Arc<dyn BlockDevice>);
        let checked = self.with_options(context, false, |options| {
            online::check_mounted(context, daemon, log, self.room, options, |error| explain(error, &name))
        })??;
        let mut out = context.out();
        if self.json {
            let report = checked.report.to_json();
            let moment = checked.moment.map_or(String::new(), |moment| format!("\"moment\":{moment},"));
            writeln!(out, "{{{moment}{}", &report[1..])?;
        } else {
            self.print_findings(&mut out, &checked.report)?;
            out.finish()?;
            if let Some(scrub) = &checked.report.scrub {
                context.note(&format!("{name}: {}", scrubbed(scrub, checked.has_checksums)));
            }
            let next = if has_only_damaged_data(&checked.report) { "" } else { "; unmount it first" };
            context.note(&format!("{name}: {}{next}", summary(&checked.report)));
        }
        Ok(status(&checked.report))
    }

    /// Refuses to begin a log on what holds something else than the log of this volume, or of none.
    fn check_new_log(&self, context: &Context, log: &Arc<FileDevice>, volume: Option<[u8; 16]>) -> Result<()> {
        let place = image_name(log.path());
        let length = recognise::HEAD_SIZE.min(usize::try_from(log.size()).unwrap_or(recognise::HEAD_SIZE));
        let head = device::read_at(&**log, 0, length).at(&place)?;
        let what = match recognise::begins_as(&head) {
            Some(recognise::Ours::Log(owner)) if volume.is_none_or(|volume| owner == volume) => return Ok(()),
            Some(recognise::Ours::Log(_)) => "is the log of another Myriad volume".to_owned(),
            Some(recognise::Ours::Volume) => "is a Myriad volume".to_owned(),
            None if find_superblock_copy(&**log).is_some() => "is a Myriad volume, its superblock lost".to_owned(),
            None => match signatures::mark(&**log) {
                Some(what) => format!("holds {what}"),
                None if self.is_blank(context, log, &place)? => return Ok(()),
                None => format!("holds {} bytes of data that are not a log", log.size()),
            },
        };
        Err(Failure::new(place, what, "name another --log-device; with --force the new log is written over it").into())
    }

    /// Whether nothing is lost with what a log's device holds that has no known mark. Of a block device nobody could tell.
    fn is_blank(&self, context: &Context, log: &FileDevice, place: &str) -> Result<bool> {
        if log.is_block_device() {
            return Ok(true);
        }
        let file = File::open(log.path()).at(place)?;
        is_zero(context, &file, log.size(), place)
    }

    fn check(&self, context: &Context, opened: &Opened, how: How) -> Result<Report> {
        let name = &opened.name;
        let log = opened.log.as_ref().map(|log| Arc::clone(log) as Arc<dyn BlockDevice>);
        let device = Arc::clone(&opened.volume) as Arc<dyn BlockDevice>;
        if how != How::LookBeside {
            let checked = self.with_options(context, how == How::Repair, |options| check(device, log, options))?;
            return checked.map_err(|error| explain(error, name));
        }
        let report = self.with_options(context, false, |options| check_beside(&device, log.as_ref(), options))?;
        report.map_err(|error| explain(error, name))?.ok_or_else(|| {
            let what = "in use, and it changed during every look, or has no log that tells";
            Failure::new(&**name, what, "use --online if it is mounted, or wait until it is idle").into()
        })
    }

    /// Runs a check with what the command line says, and shows how far it is.
    fn with_options<T>(&self, context: &Context, repair: bool, run: impl FnOnce(&Options<'_>) -> T) -> Result<T> {
        let name = image_name(&self.image);
        let bar = context.progress("checking");
        let descriptor = self.progress_file()?.map(Mutex::new);
        let progress = |progress: myriad_check::Progress| {
            let step = (progress.fraction.clamp(0.0, 1.0) * STEPS) as u64;
            bar.stage(progress.phase.to_owned());
            bar.set_of(step, STEPS as u64);
            if let Some(file) = &descriptor {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                // Whoever watches may leave; the check goes on.
                let _ = writeln!(file, "1 {step} {STEPS} {name}");
            }
            Interrupted::received().is_none()
        };
        let mut options = Options {
            repair,
            scrub: self.scrub,
            accept_contents: self.accept_contents,
            leave_unreadable: self.preen,
            new_log: self.new_log,
            superblock: self.superblock,
            findings_max: self.findings_max,
            progress: Some(&progress),
            now: time::now(),
            ..Options::default()
        };
        if let Some(threads) = self.threads {
            options.threads = threads.into();
        }
        Ok(run(&options))
    }

    /// The file behind the descriptor of -C. A negative one, which fsck(8) uses for its own bars, means the same.
    fn progress_file(&self) -> Result<Option<File>> {
        match self.progress.map(i32::unsigned_abs) {
            None | Some(0) => Ok(None),
            Some(descriptor) => {
                let path = format!("/proc/self/fd/{descriptor}");
                Ok(Some(File::options().append(true).open(&path).at(format_args!("-C {descriptor}"))?))
            }
        }
    }

    fn print_findings(&self, out: &mut Output, report: &Report) -> io::Result<()> {
        for finding in &report.findings {
            line(out, &finding.to_string())?;
        }
        let untold = report.finding_count - report.findings.len() as u64;
        if untold > 0 {
            writeln!(out, "and {} more", count(untold, "finding"))?;
        }
        Ok(())
    }
}

/// A line with names from the volume in it, which may hold anything.
fn line(out: &mut Output, text: &str) -> io::Result<()> {
    if needs_quotes(text.as_bytes()) { writeln!(out, "{}", Shown(text.as_bytes())) } else { writeln!(out, "{text}") }
}

fn status(report: &Report) -> Status {
    let repaired = if report.repaired { REPAIRED } else { 0 };
    Status(if report.is_sound() && !report.has_lost_changes() { repaired } else { repaired | ERRORS_LEFT })
}

fn scrubbed(scrub: &Scrub, has_checksums: bool) -> String {
    let Scrub { data_blocks, compared_blocks, damaged_blocks, freed_blocks } = *scrub;
    let read = count(data_blocks, "block");
    let compared = match compared_blocks {
        _ if !has_checksums => "the volume has no checksums of them, contents could not be compared".to_owned(),
        all if all == data_blocks => "all compared with their checksums".to_owned(),
        some => format!("{some} of them compared with their checksums"),
    };
    let freed = match freed_blocks {
        0 => String::new(),
        some => format!(", {some} removed or written over meanwhile"),
    };
    format!("{read} of file data read, {compared}{freed}; {damaged_blocks} damaged")
}

/// What the volume holds.
fn files(report: &Report) -> String {
    let totals = &report.totals;
    format!(
        "{}, {}, {} of {} blocks free",
        count(totals.inodes.saturating_sub(totals.directories), "file"),
        count(totals.directories, "directory"),
        totals.free_blocks,
        totals.blocks
    )
}

fn summary(report: &Report) -> String {
    let files = files(report);
    match (report.finding_count, report.repaired) {
        (0, _) => format!("sound: {files}"),
        (found, false) if has_only_damaged_data(report) => {
            format!("{} of damaged contents; {RESTORE}", count(found, "finding"))
        }
        (found, false) => {
            // Not all findings may be at hand.
            let can_repair = report.data_count == 0 && report.unreadable_blocks == 0;
            let next = if can_repair {
                "run myriad fsck -y to repair"
            } else {
                "copy what can be read, then run myriad fsck -y"
            };
            format!("{}; {next}", count(found, "finding"))
        }
        (found, true) if report.remaining_count == 0 && report.has_lost_changes() => {
            format!("{}, the volume is sound again, but changes are lost: {files} are left", count(found, "finding"))
        }
        (found, true) if report.remaining_count == 0 => format!("{}, all repaired: {files}", count(found, "finding")),
        (found, true) if report.remaining_data_count == report.remaining_count => {
            let (found, left) = (count(found, "finding"), report.remaining_count);
            format!("{found}, all repaired but for {left} of damaged contents; {RESTORE}")
        }
        (found, true) => {
            let found = count(found, "finding");
            format!("{found}, {} left; copy what can be read to a new volume", report.remaining_count)
        }
    }
}

/// As [`summary`], with what is said of a volume that was looked at and left: something else may lie in its place, or its order leaves
/// some things to find.
fn summary_of(opened: &Opened, report: &Report) -> String {
    let found = count(report.finding_count, "finding");
    match opened.other.filter(|_| !report.repaired && report.finding_count > 0) {
        Some(what) => {
            let next = "myriad fsck -y --force restores the old volume from its superblock copies and destroys what is here now";
            format!("{found}, but it holds {what}; {next}")
        }
        None if opened.order().is_some() && !report.repaired && !report.is_sound() && report.is_usable() => {
            format!("{found}, all of them what a crash may leave: {}", files(report))
        }
        None => summary(report),
    }
}

/// What has to be said aloud about a log that was lost, in whole or in part.
fn lost_changes(loss: &LogLoss, report: &Report) -> String {
    let (what, since) = match loss.time.filter(|_| loss.checkpoints > 0) {
        None => ("CHANGES ARE LOST: no part of the log could be read".to_owned(), String::new()),
        Some(found) => (
            format!(
                "CHANGES ARE LOST: {} of the log could be read, {} or more could not",
                count(loss.checkpoints, "checkpoint"),
                loss.missing
            ),
            format!("; the last one that could is of {}", time::full(found)),
        ),
    };
    let next = if report.repaired {
        "files made, changed, renamed or removed shortly before the volume was last in use may be missing, old, or back, or in \
         /lost+found; compare with a copy"
    } else {
        "copy the image before anything else; then myriad fsck -y brings back what can be found"
    };
    format!("{what}{since}; {next}")
}

/// Whether nothing was found, or damaged contents and nothing else.
fn has_only_damaged_data(report: &Report) -> bool {
    report.data_count == report.finding_count
}

fn explain(error: CheckError, name: &str) -> anyhow::Error {
    let next = match &error {
        CheckError::Cancelled => return Interrupted::latest().into(),
        CheckError::Unverified => "run myriad fsck -n",
        CheckError::Foreign | CheckError::Superblock(_) => SUPERBLOCK_NEXT,
        CheckError::Unconfirmed(_) | CheckError::NoCopy(_) => {
            "a user may have written one into a file, and a volume of one group has none: compare with what you know of \
             the volume, and name the right one with --superblock BYTE"
        }
        CheckError::CutShort { .. } => TRUNCATED_NEXT,
        CheckError::Sectors { .. } => SECTORS_NEXT,
        CheckError::Incompatible(_) => "use a newer myriad",
        CheckError::Log(_) => "check that the image is whole, and --log-device if the log is on one",
        CheckError::NoLogDevice => "write --log-device DEVICE",
        CheckError::ForeignLog => {
            "name the right --log-device; if it is the right one, its log is lost, and --new-log begins a new one"
        }
        CheckError::OtherLog => {
            "name the right --log-device, or put it back as it was; --new-log goes on with what can be believed of this one"
        }
        CheckError::Io { .. } => "see the host's log, and copy the image while it can be read",
        CheckError::Repair(_) | CheckError::NoRoom => "copy what can be read to a new volume",
    };
    Failure::new(name, error.to_string(), next).into()
}

/// Writes `-C3`, as fsck(8) and systemd do, in the form that the parser tells from `-C IMAGE`.
pub fn as_standard_options(arguments: Vec<OsString>) -> Vec<OsString> {
    let standard = |argument: OsString| match argument.as_bytes().strip_prefix(b"-C") {
        Some(digits) if digits.first().is_some_and(|&byte| byte == b'-' || byte.is_ascii_digit()) => {
            format!("-C={}", String::from_utf8_lossy(digits)).into()
        }
        _ => argument,
    };
    arguments.into_iter().map(standard).collect()
}
