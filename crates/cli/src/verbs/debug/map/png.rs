//! A picture as PNG.

use super::canvas::{Align, Canvas, Color, Size};
use super::draw;
use super::survey::Survey;
use anyhow::Result;
use embedded_graphics::mono_font::iso_8859_1::{FONT_7X13, FONT_9X18_BOLD};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use std::convert::Infallible;

/// Red, green and blue of each pixel, line by line.
struct Pixels {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

pub fn render(survey: &Survey, title: &str) -> Result<Vec<u8>> {
    let (width, height) = draw::size(survey);
    let mut pixels = Pixels { width, height, bytes: vec![0; (width * height * 3) as usize] };
    draw::draw(&mut pixels, survey, title);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    encoder.write_header()?.write_image_data(&pixels.bytes)?;
    Ok(bytes)
}

impl Pixels {
    fn set(&mut self, x: u32, y: u32, color: [u8; 3]) {
        if x < self.width && y < self.height {
            let at = ((y * self.width + x) * 3) as usize;
            self.bytes[at..at + 3].copy_from_slice(&color);
        }
    }
}

impl Canvas for Pixels {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, (red, green, blue): Color) {
        for line in y..y + height {
            (x..x + width).for_each(|column| self.set(column, line, [red, green, blue]));
        }
    }

    fn text(&mut self, x: u32, y: u32, align: Align, size: Size, text: &str) {
        let font: &MonoFont<'_> = if size == Size::Title { &FONT_9X18_BOLD } else { &FONT_7X13 };
        let alignment = if align == Align::Right { Alignment::Right } else { Alignment::Left };
        let style = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Middle).build();
        let letters = MonoTextStyle::new(font, Rgb888::BLACK);
        let at = Point::new(x as i32, y as i32);
        let Ok(_) = Text::with_text_style(text, at, letters, style).draw(self);
    }
}

impl OriginDimensions for Pixels {
    fn size(&self) -> embedded_graphics::geometry::Size {
        embedded_graphics::geometry::Size::new(self.width, self.height)
    }
}

impl DrawTarget for Pixels {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(at, color) in pixels {
            if let (Ok(x), Ok(y)) = (u32::try_from(at.x), u32::try_from(at.y)) {
                self.set(x, y, [color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}
