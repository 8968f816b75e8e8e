//! What a picture is drawn on.

/// Red, green, blue.
pub type Color = (u8, u8, u8);

/// Which end of a text lies at its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Sizes of text; the width of a letter is the same for all letters of a size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Title,
    Text,
}

pub trait Canvas {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, color: Color);
    /// `y` is the middle of the line.
    fn text(&mut self, x: u32, y: u32, align: Align, size: Size, text: &str);
}
