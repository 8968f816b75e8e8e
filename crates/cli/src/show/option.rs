//! An option of a volume, as the engine's table has it, in words.

use myriad_engine::options::Row;

/// What an option says, and its values.
pub fn about(row: &Row) -> String {
    match row.values.explained() {
        values if values.is_empty() => row.about.to_owned(),
        values => format!("{}: {values}", row.about),
    }
}
