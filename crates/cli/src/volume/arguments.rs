//! Options that every verb has which opens a volume, and places as arguments.

use super::{Place, wait};
use crate::failure::Failure;
use crate::show::size;
use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser, ValueParser};
use clap::{Arg, Command, Error};
use myriad_engine::{Discard, MountOptions, Order};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Options of verbs that read a volume.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Opening the volume")]
pub struct OpenArgs {
    /// Memory for cached blocks; without it a quarter of the machine's or of what the process may have, at most 4G
    #[arg(long = "cachesize", value_name = "SIZE", value_parser = size::parse)]
    pub cache_size: Option<u64>,
    /// Device that holds the log, for a volume made with one
    #[arg(long, value_name = "DEVICE")]
    pub log_device: Option<PathBuf>,
    /// Wait while somebody else has the volume in use, for so many seconds or as long as it takes
    // What the whole run goes by: see `wait`.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf", value_parser = wait::parse)]
    pub wait: Option<wait::Patience>,
}

/// Options of verbs that change a volume.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ChangeArgs {
    #[command(flatten)]
    pub open: OpenArgs,
    /// Order of writes; without it the one the volume was last opened with
    #[arg(long, value_parser = OrderParser, value_name = "ORDER", help_heading = "Opening the volume")]
    pub order: Option<Order>,
    /// Leave what becomes free in the image instead of giving it back to the host
    #[arg(long, help_heading = "Opening the volume")]
    pub no_discard: bool,
}

/// Parser of an order's name; the table of the format has the names, and the help of each.
#[derive(Clone)]
struct OrderParser;

impl TypedValueParser for OrderParser {
    type Value = Order;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Order, Error> {
        Order::parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let built = Order::SEAM.choices.iter().filter(|choice| choice.is_built);
        Some(Box::new(built.map(|choice| PossibleValue::new(choice.name).help(choice.about))))
    }
}

impl OpenArgs {
    pub fn mount_options(&self) -> MountOptions {
        let mut options = MountOptions { log_device: self.log_device.clone(), ..MountOptions::default() };
        if let Some(size) = self.cache_size {
            options.cache_size = size;
        }
        options
    }
}

impl ChangeArgs {
    pub fn mount_options(&self) -> MountOptions {
        let discard = if self.no_discard { Discard::Never } else { Discard::Auto };
        MountOptions { order: self.order, discard, ..self.open.mount_options() }
    }
}

/// Parser of an argument `IMAGE:/path`.
pub fn place() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(|argument| Place::parse(&argument)))
}

/// Operands `IMAGE:/path` that follow one of another kind, and so were not parsed with the command line.
pub fn places(operands: &[OsString]) -> anyhow::Result<Vec<Place>> {
    let place =
        |operand: &OsString| Ok(Place::parse(operand).map_err(|error| Failure::usage("", error.to_string(), ""))?);
    operands.iter().map(place).collect()
}

/// Parser of an argument `IMAGE[:/path]`.
pub fn place_or_root() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(|argument| Place::parse_or_root(&argument)))
}
