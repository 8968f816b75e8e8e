//! The options of the engine's table that mkfs sets, as arguments of its command line.

use clap::builder::{PossibleValue, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};
use myriad_engine::MkfsOptions;
use myriad_engine::options::{Options, Row, TABLE, Value, Values};
use std::ffi::OsStr;

/// What they were set to, the profile first.
pub struct Made(pub MkfsOptions);

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| row.when.at_mkfs())
}

fn argument(row: &'static Row) -> Arg {
    let short = match row.name {
        "block-size" => Some('b'),
        "label" => Some('L'),
        _ => None,
    };
    let argument = Arg::new(row.name).long(row.name).short(short).help(help(row));
    if matches!(row.values, Values::Switch) {
        return argument.action(ArgAction::SetTrue);
    }
    let hint = if row.values.names().is_empty() { row.values.hint() } else { "CHOICE".into() };
    // Its values are listed below all options, with what they mean.
    argument.value_name(hint).value_parser(ValueParser::new(OfRow(row))).hide_possible_values(true)
}

/// A sentence as `--help` has them.
fn help(row: &Row) -> String {
    let mut text = row.about.to_owned();
    text[..1].make_ascii_uppercase();
    match row.default() {
        _ if matches!(row.values, Values::Switch) => text,
        default if default.is_empty() => text,
        default => format!("{text}; without it {default}"),
    }
}

/// Parser of a row's values, which completions list.
#[derive(Clone)]
struct OfRow(&'static Row);

impl TypedValueParser for OfRow {
    type Value = Value;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Value, Error> {
        let row = self.0;
        (move |text: &str| row.parse(text)).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = self.0.values.names();
        if names.is_empty() { None } else { Some(Box::new(names.into_iter().map(PossibleValue::new))) }
    }
}

impl clap::Args for Made {
    fn augment_args(command: Command) -> Command {
        command.args(rows().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Made {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut options = Options::default();
        // The table has the profile before what differs from it.
        for row in rows() {
            let value = match row.values {
                Values::Switch => matches.get_flag(row.name).then_some(Value::Switch(true)),
                _ => matches.get_one::<Value>(row.name).cloned(),
            };
            if let Some(value) = value {
                row.set(&mut options, value);
            }
        }
        Ok(Self(options.mkfs))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
