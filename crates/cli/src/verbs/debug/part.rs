//! Structures as lists of named values, read through the layouts that `format` declares.

use crate::output::Output;
use crate::show::name::{Shown, hex};
use crate::show::time;
use myriad_format::{BlockKind, LAYOUTS, Layout};
use serde_json::{Map, Value};
use std::io::{self, Write};

/// A structure at a place in a block.
pub struct Part {
    pub title: String,
    /// Bytes from the start of the block.
    pub offset: usize,
    fields: Vec<Field>,
}

struct Field {
    /// Bytes from the start of the block; `None` for what was worked out from the bytes.
    offset: Option<usize>,
    name: String,
    value: Value,
    /// Where the value alone does not tell.
    meaning: String,
}

impl Part {
    /// Reads the structure of `layout` at `offset`; `None` if the block ends before it does.
    pub fn read(layout: &Layout, block: &[u8], offset: usize, title: impl Into<String>) -> Option<Self> {
        let bytes = block.get(offset..)?.get(..layout.size)?;
        let mut part = Self { title: title.into(), offset, fields: Vec::new() };
        part.add(layout, bytes, offset, "");
        Some(part)
    }

    /// A part without bytes of its own.
    pub fn note(title: impl Into<String>, offset: usize) -> Self {
        Self { title: title.into(), offset, fields: Vec::new() }
    }

    /// The same at another offset: that of the structure on its device, where it lies in no block.
    pub fn at(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    /// Adds a value that was worked out.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.push(Field { offset: None, name: name.into(), value: value.into(), meaning: String::new() });
        self
    }

    fn add(&mut self, layout: &Layout, bytes: &[u8], base: usize, prefix: &str) {
        for field in layout.fields {
            let value_bytes = &bytes[field.offset..field.offset + field.size];
            let name = format!("{prefix}{}", field.name);
            if let Some(inner) = layout_named(field.type_name) {
                self.add(inner, value_bytes, base + field.offset, &format!("{name}."));
                continue;
            }
            let (value, meaning) = decode(field.name, field.type_name, value_bytes);
            self.fields.push(Field { offset: Some(base + field.offset), name, value, meaning });
        }
    }

    pub fn json(&self) -> Value {
        let fields: Map<String, Value> =
            self.fields.iter().map(|field| (field.name.clone(), field.value.clone())).collect();
        let mut object = Map::new();
        object.insert("title".into(), self.title.clone().into());
        object.insert("offset".into(), self.offset.into());
        object.insert("fields".into(), fields.into());
        object.into()
    }
}

/// The layout of a field that is itself a structure.
fn layout_named(type_name: &str) -> Option<&'static Layout> {
    let name = type_name.rsplit("::").next().unwrap_or(type_name).trim();
    LAYOUTS.iter().find(|layout| layout.name == name)
}

/// A field's value, and what it means if its name says more than its type.
fn decode(name: &str, type_name: &str, bytes: &[u8]) -> (Value, String) {
    let number = || {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    match type_name {
        "I64" => {
            let value = number() as i64;
            (value.into(), if value == 0 { String::new() } else { time::full(value) })
        }
        "u8" | "U16" | "U32" | "U64" => (number().into(), meaning(name, number(), bytes)),
        // Numbers of 48 bits, as the count of blocks in an inode.
        "[u8; 6]" => (number().into(), String::new()),
        _ if name == "label" => {
            (String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned().into(), String::new())
        }
        _ if type_name.starts_with("[U32") => {
            let numbers: Vec<u32> =
                bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
            (numbers.into(), String::new())
        }
        _ if bytes.iter().all(|&byte| byte == 0) => ("zero".into(), String::new()),
        _ => (hex(bytes).into(), String::new()),
    }
}

fn meaning(name: &str, number: u64, bytes: &[u8]) -> String {
    match name {
        "magic" => {
            let kind = BlockKind::from_magic(number as u32).map_or(String::new(), |kind| format!(": {}", kind.name()));
            format!("{}{kind}", Shown(bytes))
        }
        "mode" => format!("{number:07o}"),
        "crc" | "body_crc" | "previous_crc" | "tag" | "flags" | "name_hash" | "mask" | "free_mask" | "used_mask"
        | "word0" | "word1" => {
            format!("{number:#x}")
        }
        _ => String::new(),
    }
}

/// Prints parts for people: offset, name, value.
pub fn print(out: &mut Output, parts: &[Part]) -> io::Result<()> {
    for part in parts {
        writeln!(out, "{} at byte {}", part.title, part.offset)?;
        let width = part.fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
        for field in &part.fields {
            match field.offset {
                Some(offset) => write!(out, "{offset:8}  ")?,
                None => write!(out, "{:8}  ", "")?,
            }
            let value = match &field.value {
                Value::String(text) => Shown(text.as_bytes()).to_string(),
                Value::Array(items) => items.iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
                value => value.to_string(),
            };
            write!(out, "{:width$}  {value}", field.name)?;
            if !field.meaning.is_empty() {
                write!(out, "  ({})", field.meaning)?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// Sixteen bytes a line, lines that repeat left out, as hexdump(1) shows them.
pub fn hexdump(out: &mut Output, bytes: &[u8]) -> io::Result<()> {
    let mut previous: Option<&[u8]> = None;
    let mut is_repeated = false;
    for (line, offset) in bytes.chunks(16).zip((0..).step_by(16)) {
        if previous == Some(line) {
            if !is_repeated {
                writeln!(out, "*")?;
            }
            is_repeated = true;
            continue;
        }
        (previous, is_repeated) = (Some(line), false);
        let text: String =
            line.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '.' }).collect();
        let hex: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
        writeln!(out, "{offset:8}  {hex:48} {text}")?;
    }
    Ok(())
}

/// The header of a metadata block.
#[cfg(test)]
mod tests {
    use super::*;
    use myriad_format::BlockHeader;

    #[test]
    fn every_type_of_every_layout_is_known() {
        let known = ["u8", "U16", "U32", "U64", "I64"];
        for field in LAYOUTS.iter().flat_map(|layout| layout.fields) {
            let is_array = field.type_name.starts_with("[u8") || field.type_name.starts_with("[U32");
            let is_known = known.contains(&field.type_name) || is_array || layout_named(field.type_name).is_some();
            assert!(is_known, "{} is of type {}", field.name, field.type_name);
        }
    }

    #[test]
    fn structures_past_the_end_are_none() {
        let bytes = [0; 100];
        assert!(Part::read(&BlockHeader::LAYOUT, &bytes, 52, "header").is_some());
        assert!(Part::read(&BlockHeader::LAYOUT, &bytes, 53, "header").is_none());
        assert!(Part::read(&BlockHeader::LAYOUT, &bytes, usize::MAX, "header").is_none());
    }
}
