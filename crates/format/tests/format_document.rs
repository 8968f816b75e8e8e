//! Holds `docs/FORMAT.md` to the code: each structure has a section `### Name (N bytes)` whose table lists exactly the
//! fields of its layout.

use myriad_format::LAYOUTS;
use std::collections::BTreeMap;

/// Offset, size and name of a field.
type Row = (usize, usize, String);

/// Size and rows of every structure section of the document.
fn sections(document: &str) -> BTreeMap<String, (usize, Vec<Row>)> {
    let mut sections = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut in_table = false;
    for line in document.lines() {
        if line.starts_with('#') {
            in_table = false;
            current = line.strip_prefix("### ").and_then(|title| {
                let (name, rest) = title.split_once(" (")?;
                let size = rest.strip_suffix(" bytes)")?.parse().expect("a size in bytes");
                let twice = sections.insert(name.to_owned(), (size, Vec::new()));
                assert!(twice.is_none(), "{name} is described twice");
                Some(name.to_owned())
            });
            continue;
        }
        let Some(name) = &current else { continue };
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["offset", "size", "name", "meaning"] => in_table = true,
            [first, ..] if first.starts_with("---") => {}
            [offset, size, field, meaning] if in_table => {
                assert!(!meaning.is_empty(), "{name}.{field} has no meaning");
                let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{name}.{field}: {text}"));
                let rows = &mut sections.get_mut(name).expect("inserted at its title").1;
                rows.push((number(offset), number(size), (*field).to_owned()));
            }
            _ => in_table = false,
        }
    }
    sections
}

#[test]
fn the_document_is_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FORMAT.md");
    let mut sections = sections(&std::fs::read_to_string(path).expect("docs/FORMAT.md"));
    for layout in LAYOUTS {
        let (size, rows) =
            sections.remove(layout.name).unwrap_or_else(|| panic!("FORMAT.md does not describe {}", layout.name));
        assert_eq!(size, layout.size, "size of {}", layout.name);
        let fields: Vec<Row> =
            layout.fields.iter().map(|field| (field.offset, field.size, field.name.to_owned())).collect();
        assert_eq!(rows, fields, "fields of {}", layout.name);
        let end = layout.fields.last().map_or(0, |field| field.offset + field.size);
        assert_eq!(end, layout.size, "{} has a hole at its end", layout.name);
    }
    assert!(sections.is_empty(), "FORMAT.md describes structures that the code does not have: {:?}", sections.keys());
}

#[test]
fn a_wrong_table_is_seen() {
    let text = "### A (8 bytes)\n\nprose\n\n| offset | size | name | meaning |\n|---|---|---|---|\n| 0 | 4 | x | y |\n\n| a | b |\n|---|---|\n| 1 | 2 |\n";
    let sections = sections(text);
    assert_eq!(sections["A"], (8, vec![(0, 4, "x".to_owned())]));
}
