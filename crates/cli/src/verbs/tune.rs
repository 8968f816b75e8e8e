//! `tune`: the options of a volume, shown and changed.

use crate::context::Context;
use crate::failure::{At, Failure, and_closed, image_name};
use crate::mount::control::{self, Daemon, Request};
use crate::mount::options::is_of_the_mount;
use crate::show::name::put;
use crate::show::option::about;
use crate::show::table;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{Access, OpenArgs, Volume, device};
use anyhow::Result;
use myriad_device::Access as DeviceAccess;
use myriad_engine::options::{self, Row, TABLE, Value, When};
use myriad_engine::{Discard, Fs, MountOptions};
use serde_json::{Map, Value as Json, json};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Tune {
    /// Volume, or a directory that one is mounted on
    #[arg(value_name = "IMAGE|DIRECTORY")]
    target: PathBuf,
    /// What to change; without any, all options are shown
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Tune {
    const NAME: &'static str = "tune";
    const ABOUT: &'static str = "Show the options of a volume, and change those that can change";
    const DETAILS: &'static str = "Without settings, shows each option: its value, its default, and who sets it. An option \
        that each mount sets for itself has a value while the volume is mounted.\n\n\
        With settings, changes all of them or none. What tune sets on a mounted volume holds until it is unmounted; the label is \
        kept in the volume, and changes whether it is mounted or not. The kernel is not told of atime= and diratime=: \
        /proc/mounts shows what they were.";
    const MORE: fn() -> String = help;
    const EXAMPLES: &'static [Example] = &[
        ("myriad tune vol.img", "shows all options of a volume"),
        ("myriad tune /mnt commit=1 placement=rotor", "changes two on a mounted volume"),
        ("myriad tune vol.img label=mail", "gives a volume a name"),
        (
            "myriad tune --json /mnt | jq -r 'select(.name == \"commit\").value'",
            "prints how long a change of a mounted volume stays in memory at most",
        ),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let name = image_name(&self.target);
        let refused = |what: String| Failure::usage(&name, what, "");
        for setting in &self.settings {
            let word = setting.split_once('=').map_or(&**setting, |(word, _)| word);
            if options::read(setting).is_none() && is_of_the_mount(word) {
                let what = format!("option `{word}`: each mount says it for itself");
                return Err(Failure::usage(&name, what, format!("unmount, and give it to mount: -o {word}")).into());
            }
        }
        let settings = self.settings.iter().map(String::as_str);
        let changes = options::read_for_tune(settings).map_err(refused)?;
        let daemon = control::of_target(&self.target)?;
        let before = self.values(daemon.as_ref())?;
        if changes.is_empty() {
            self.show(context, TABLE.iter().filter(|row| row.when != When::Once).map(|row| (row, before(row), None)))?;
            return Ok(Status::OK);
        }
        match &daemon {
            // A label is durable when the answer comes.
            Some(daemon) => {
                daemon.ask_for_long(Request::Tune { settings: self.settings.clone() }, || context.check())?;
            }
            None => self.change_closed(&changes)?,
        }
        let after = self.values(daemon.as_ref())?;
        let rows = TABLE.iter().filter(|row| changes.iter().any(|(changed, _)| changed.name == row.name));
        self.show(context, rows.map(|row| (row, after(row), Some(before(row)))))?;
        Ok(Status::OK)
    }
}

/// What an option has as its value: `None` if only a mount gives it one.
type Shown = Option<String>;

impl Tune {
    /// How the options are now.
    fn values(&self, daemon: Option<&Daemon>) -> Result<impl Fn(&Row) -> Shown + use<>> {
        let values = match daemon {
            Some(daemon) => daemon.ask(Request::Tune { settings: Vec::new() })?,
            None => self.values_closed()?,
        };
        Ok(move |row: &Row| values[row.name].as_str().map(str::to_owned))
    }

    /// Of a volume that is not mounted: what it keeps.
    fn values_closed(&self) -> Result<Json> {
        let name = image_name(&self.target);
        let device = device::open(&self.target, DeviceAccess::ReadOnly)?;
        let log = self.open.log_device.as_deref().map(|log| device::open(log, DeviceAccess::ReadOnly)).transpose()?;
        let options = MountOptions { read_only: true, background: false, ..self.open.mount_options() };
        let fs = Fs::open_device(device, log.map(|log| log as Arc<_>), options).at(&name)?;
        let mut values = values(&fs);
        fs.close().at(&name)?;
        let Json::Object(object) = &mut values else { unreachable!("values are an object") };
        object.retain(|name, _| options::row(name).is_some_and(|row| row.when.at_mkfs()));
        Ok(values)
    }

    /// Changes a volume that is not mounted.
    fn change_closed(&self, changes: &[(&'static Row, Value)]) -> Result<()> {
        let name = image_name(&self.target);
        if let Some((row, value)) = changes.iter().find(|(row, _)| row.when != When::Kept) {
            let what = format!("option `{}`: it holds for a mount, and the volume is not mounted", row.name);
            return Err(Failure::usage(name, what, format!("give it to mount: -o {}={value}", row.name)).into());
        }
        let options = MountOptions { discard: Discard::Never, ..self.open.mount_options() };
        let volume = Volume::open(&self.target, Access::Change, &options)?;
        let changed = volume.fs().tune(changes).at(volume.name());
        // Closed whatever came of it.
        let closed = volume.close();
        and_closed(changed, closed)
    }

    fn show<'a>(&self, context: &Context, rows: impl Iterator<Item = (&'a Row, Shown, Option<Shown>)>) -> Result<()> {
        let mut out = context.out();
        let mut lines = Vec::new();
        for (row, value, before) in rows {
            if self.json {
                out.json(&self.object(row, value, before))?;
                continue;
            }
            let text = |value: Shown| match value {
                Some(text) if text.is_empty() => "none".to_owned(),
                Some(text) => text,
                None => "-".into(),
            };
            let default = Some(row.default());
            let third = before.unwrap_or(default);
            lines.push(vec![row.name.to_owned(), text(value), text(third), row.when.name().to_owned()]);
        }
        if !self.json && (self.settings.is_empty() || !context.is_quiet()) {
            let third = if self.settings.is_empty() { "Default" } else { "Before" };
            table::columns(&mut out, &["Option", "Value", third, "Set by"], |column| column < 4, lines)?;
        }
        Ok(())
    }

    fn object(&self, row: &Row, value: Shown, before: Option<Shown>) -> Json {
        let mut object = Map::new();
        put(&mut object, "target", self.target.as_os_str().as_bytes());
        object.insert("name".into(), row.name.into());
        object.insert("value".into(), value.into());
        if let Some(before) = before {
            object.insert("before".into(), before.into());
        }
        let facts = json!({
            "default": row.default(), "set_by": row.when.name(), "values": row.values.range(), "about": row.about,
            "source": row.source,
        });
        let Json::Object(facts) = facts else { unreachable!("written as an object above") };
        object.extend(facts);
        object.into()
    }
}

/// Changes options of an open volume; what the daemon answers with.
pub fn tune_volume(fs: &Fs, settings: &[String]) -> Result<(), String> {
    let changes = options::read_for_tune(settings.iter().map(String::as_str))?;
    fs.tune(&changes).map_err(|error| error.to_string())
}

/// The options of an open volume by name; where a value is left to the engine, what the engine does.
pub fn values(fs: &Fs) -> Json {
    let now = fs.options();
    let shown = |row: &Row| match row.get(&now) {
        Value::Unset => row.unset.to_owned(),
        value => value.to_string(),
    };
    TABLE
        .iter()
        .filter(|row| row.when != When::Once)
        .map(|row| (row.name.to_owned(), Json::from(shown(row))))
        .collect::<Map<_, _>>()
        .into()
}

/// The table, as help and manual page show it.
fn help() -> String {
    let mut text = String::from("What tune changes:\n");
    for row in TABLE.iter().filter(|row| row.when.by_tune()) {
        let name = format!("{}={}", row.name, row.values.hint());
        text += &format!("  {name:<26} {}\n", about(row));
    }
    text + "What mkfs or each mount sets is listed by myriad mkfs --help and myriad mount --help."
}
