//! A picture as SVG.

use super::canvas::{Align, Canvas, Color, Size};
use super::draw;
use super::survey::Survey;
use std::fmt::Write;

struct Svg(String);

pub fn render(survey: &Survey, title: &str) -> Vec<u8> {
    let (width, height) = draw::size(survey);
    let mut svg = Svg(String::new());
    let written = writeln!(
        svg.0,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"monospace\" shape-rendering=\"crispEdges\" role=\"img\">\n<title>{}</title>",
        escape(title)
    );
    written.expect("a string takes all");
    draw::draw(&mut svg, survey, title);
    svg.0.push_str("</svg>\n");
    svg.0.into_bytes()
}

impl Canvas for Svg {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, (red, green, blue): Color) {
        let written = writeln!(
            self.0,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
        );
        written.expect("a string takes all");
    }

    fn text(&mut self, x: u32, y: u32, align: Align, size: Size, text: &str) {
        let anchor = if align == Align::Right { "end" } else { "start" };
        // Letters of these sizes are as wide as those of the fonts of `png`.
        let size = if size == Size::Title { 16.0 } else { 11.5 };
        let text = escape(text);
        let written = writeln!(
            self.0,
            "<text x=\"{x}\" y=\"{y}\" dominant-baseline=\"central\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
        );
        written.expect("a string takes all");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
