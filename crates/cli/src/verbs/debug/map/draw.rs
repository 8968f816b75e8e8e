//! The picture: a row of cells for each part of the volume, and beside it how many directories and inodes it has.
//!
//! The colours are of Okabe and Ito's set, which people with any of the usual forms of colour blindness tell apart; they differ in
//! brightness as well. A cell that holds several kinds is divided into bands.

use super::canvas::{Align, Canvas, Color, Size};
use super::survey::{Cell, Kind, Row, Survey};

const CELL: (u32, u32) = (8, 12);
const LEFT: u32 = 150;
const TOP: u32 = 104;
const MARGIN: u32 = 16;
/// Width of the bars of directories, and the room for a number beside them.
const BAR: u32 = 90;
const NUMBER: u32 = 60;
const LINE: u32 = 18;
const FREE: Color = (0xf0, 0xf0, 0xf0);

fn color(kind: Kind) -> Color {
    match kind {
        Kind::Directories => (0xd5, 0x5e, 0x00),
        Kind::Inodes => (0x00, 0x3f, 0x7f),
        Kind::Data => (0x7c, 0xc4, 0xee),
        Kind::Other => (0xb8, 0xb8, 0xb8),
    }
}

fn cells_width(survey: &Survey) -> u32 {
    survey.columns as u32 * CELL.0
}

pub fn size(survey: &Survey) -> (u32, u32) {
    let width = LEFT + cells_width(survey) + MARGIN + BAR + 3 * NUMBER + 2 * MARGIN;
    (width, TOP + survey.rows.len() as u32 * CELL.1 + MARGIN + 4 * LINE)
}

pub fn draw(canvas: &mut impl Canvas, survey: &Survey, title: &str) {
    let (width, height) = size(survey);
    canvas.rectangle(0, 0, width, height, (0xff, 0xff, 0xff));
    canvas.text(MARGIN, 22, Align::Left, Size::Title, title);
    legend(canvas, survey);
    let bars = LEFT + cells_width(survey) + MARGIN;
    let numbers = [1, 2, 3].map(|i| bars + BAR + i * NUMBER + MARGIN / 2);
    canvas.text(76, TOP - 12, Align::Right, Size::Text, "at");
    canvas.text(LEFT - 8, TOP - 12, Align::Right, Size::Text, "region");
    canvas.text(bars, TOP - 12, Align::Left, Size::Text, "directories");
    canvas.text(numbers[1], TOP - 12, Align::Right, Size::Text, "files");
    canvas.text(numbers[2], TOP - 12, Align::Right, Size::Text, "data");
    let most = survey.rows.iter().map(|row| row.directories).max().unwrap_or(0).max(1);
    for (index, row) in survey.rows.iter().enumerate() {
        let top = TOP + index as u32 * CELL.1;
        let middle = top + CELL.1 / 2;
        // A label a row would be too close to read.
        if index % 2 == 0 {
            canvas.text(76, middle, Align::Right, Size::Text, &survey.label(row));
            canvas.text(LEFT - 8, middle, Align::Right, Size::Text, &survey.regions_of(row));
        }
        cells(canvas, row, top);
        let bar = (u64::from(BAR) * row.directories).div_ceil(most) as u32;
        if bar > 0 {
            canvas.rectangle(bars, top + 2, bar, CELL.1 - 4, color(Kind::Directories));
        }
        let data = crate::show::size::human(row.data_blocks * survey.block_size);
        let texts = [
            (row.directories, row.directories.to_string()),
            (row.files, row.files.to_string()),
            (row.data_blocks, data),
        ];
        for (x, (count, text)) in numbers.into_iter().zip(texts) {
            if count > 0 {
                canvas.text(x, middle, Align::Right, Size::Text, &text);
            }
        }
    }
    let below = TOP + survey.rows.len() as u32 * CELL.1 + MARGIN;
    for (index, line) in survey.nearness().iter().enumerate() {
        canvas.text(MARGIN, below + LINE / 2 + index as u32 * LINE, Align::Left, Size::Text, line);
    }
}

fn legend(canvas: &mut impl Canvas, survey: &Survey) {
    let entries = Kind::ALL.into_iter().map(|kind| (color(kind), kind.name())).chain([(FREE, "free")]);
    let mut x = MARGIN;
    for (color, name) in entries {
        canvas.rectangle(x, 44, 14, 12, color);
        canvas.text(x + 20, 50, Align::Left, Size::Text, name);
        x += 20 + 7 * name.len() as u32 + 22;
    }
    let unit = format!("a cell is {}, a row {}", survey.cell_size(), survey.row_size());
    canvas.text(MARGIN, 70, Align::Left, Size::Text, &unit);
}

/// The cells of a row; those side by side that are alike are one rectangle, with thin gaps between rows.
fn cells(canvas: &mut impl Canvas, row: &Row, top: u32) {
    let mut first = 0;
    while first < row.cells.len() {
        let cell = row.cells[first];
        let length = row.cells[first..].iter().take_while(|&&next| next == cell).count();
        let (x, width) = (LEFT + first as u32 * CELL.0, length as u32 * CELL.0);
        bands(canvas, cell, x, top, width);
        first += length;
    }
}

fn bands(canvas: &mut impl Canvas, cell: Cell, x: u32, top: u32, width: u32) {
    let height = CELL.1 - 1;
    let count = cell.kinds().count() as u32;
    if count == 0 {
        canvas.rectangle(x, top, width, height, FREE);
    }
    for (index, kind) in cell.kinds().enumerate() {
        let (from, to) = (index as u32 * height / count, (index as u32 + 1) * height / count);
        canvas.rectangle(x, top + from, width, to - from, color(kind));
    }
}
