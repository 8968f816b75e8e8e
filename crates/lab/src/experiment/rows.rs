//! What a row of a table is about, and the order of rows.

use super::results::Line;
use super::suites::Suite;
use std::collections::BTreeMap;

/// A phase with a setting of the factors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    pub workload: String,
    /// 0: it is no point of a curve.
    pub size: u64,
    pub phase: String,
    pub setting: String,
}

impl RowKey {
    pub fn of(line: &Line) -> Self {
        let setting: Vec<String> = line.factors.iter().map(|(name, choice)| format!("{name}={choice}")).collect();
        Self {
            workload: line.workload.clone(),
            size: line.size.unwrap_or(0),
            phase: line.phase.clone(),
            setting: setting.join(" "),
        }
    }

    /// Of a table with these rows, below what `header` gives.
    pub fn cells(&self, rows: &[Self]) -> Vec<String> {
        let size = if self.size == 0 { String::new() } else { self.size.to_string() };
        let setting = has_settings(rows).then(|| self.setting.clone());
        [self.workload.clone(), size, self.phase.clone()].into_iter().chain(setting).collect()
    }
}

fn has_settings(rows: &[RowKey]) -> bool {
    rows.iter().any(|row| !row.setting.is_empty())
}

pub fn header(rows: &[RowKey]) -> Vec<&'static str> {
    ["workload", "size", "phase"].into_iter().chain(has_settings(rows).then_some("setting")).collect()
}

/// By suite and workload; phases of a workload stay in the order in which they ran.
pub fn in_order(lines: &[Line]) -> Vec<RowKey> {
    let mut rows: Vec<RowKey> = Vec::new();
    let mut suites = BTreeMap::new();
    for line in lines {
        let key = RowKey::of(line);
        suites.entry(key.workload.clone()).or_insert(&line.suite);
        if !rows.contains(&key) {
            rows.push(key);
        }
    }
    // Stable: within a workload and size nothing moves.
    rows.sort_by_key(|row| {
        let suite = suites.get(&row.workload);
        let suite = Suite::all().position(|one| Some(one.name) == suite.map(|name| name.as_str()));
        (suite, row.workload.clone(), row.size)
    });
    rows
}
