//! Tables on standard output: facts in two columns, and columns of numbers.

use crate::output::Output;
use comfy_table::{CellAlignment, Table, presets};
use std::io::{self, Write};

/// `name:  value` lines, the values in one column.
pub fn facts(out: &mut Output, facts: &[(impl AsRef<str>, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.as_ref().len() + 1).max().unwrap_or(0);
    for (name, value) in facts {
        writeln!(out, "{:width$}  {value}", format!("{}:", name.as_ref()))?;
    }
    Ok(())
}

/// Rows under a heading; columns that `is_text` holds text, which begins at the left, the others numbers.
pub fn columns(
    out: &mut Output,
    heading: &[&str],
    is_text: impl Fn(usize) -> bool,
    rows: Vec<Vec<String>>,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(heading.to_vec()).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        let start = if index == 0 { 0 } else { 1 };
        column.set_padding((start, 1));
        column.set_cell_alignment(if is_text(index) { CellAlignment::Left } else { CellAlignment::Right });
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
