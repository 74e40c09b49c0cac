//! A drawing of figures over time, as SVG: two axes, lines, a legend.
//!
//! Deliberately absent: anything that has to be loaded. The file shows in a browser and in a page of documentation as it is.

use std::fmt::Write;
use std::path::Path;

use crate::exit::Failure;

/// Size of the whole, and of the margins around the field, in pixels.
const SIZE: (f64, f64) = (860.0, 420.0);
const LEFT: f64 = 70.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 48.0;
/// About so many lines across.
const TICKS: f64 = 6.0;
/// One a line, told apart also by those who see few colours (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Which axis a line belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) side: Side,
    /// By ascending x.
    pub(super) points: Vec<(f64, f64)>,
}

/// A drawing.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) across: String,
    pub(super) left: String,
    pub(super) right: String,
    pub(super) lines: Vec<Line>,
    /// Moments that something happened at.
    pub(super) marks: Vec<(f64, String)>,
}

impl Plot {
    /// Writes it to a file.
    pub(super) fn write(&self, file: &Path) -> Result<(), Failure> {
        std::fs::write(file, self.svg()).map_err(|error| Failure::other(format!("{}: {error}", file.display())))
    }

    /// As text.
    pub(super) fn svg(&self) -> String {
        let mut out = String::new();
        self.draw(&mut out).expect("a String takes every write");
        out
    }

    fn draw(&self, out: &mut String) -> std::fmt::Result {
        let (width, height) = SIZE;
        writeln!(
            out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12" role="img">
<title>{0}</title>
<rect width="{width}" height="{height}" fill="#ffffff"/>
<text x="{LEFT}" y="22" font-size="15" fill="#222222">{0}</text>"##,
            escaped(&self.title)
        )?;
        let across = Scale::of(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)));
        let across = across.over(LEFT, width - RIGHT);
        let side = |side| {
            let lines = self.lines.iter().filter(move |line| line.side == side);
            let scale = Scale::of(lines.flat_map(|line| line.points.iter().map(|point| point.1)));
            scale.over(height - BOTTOM, TOP)
        };
        let (left, right) = (side(Side::Left), side(Side::Right));
        self.axes(out, &across, &left, &right)?;
        for (at, name) in &self.marks {
            let x = across.place(*at);
            writeln!(
                out,
                r##"<path d="M{x:.1} {TOP}V{:.1}" stroke="#888888" stroke-dasharray="4 3"/><text x="{:.1}" y="{:.1}" fill="#555555">{}</text>"##,
                height - BOTTOM,
                x + 4.0,
                TOP + 12.0,
                escaped(name)
            )?;
        }
        let mut legend = LEFT;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let scale = if line.side == Side::Left { &left } else { &right };
            let mut path = String::new();
            for (index, (x, y)) in line.points.iter().enumerate() {
                let step = if index == 0 { 'M' } else { 'L' };
                write!(path, "{step}{:.1} {:.1}", across.place(*x), scale.place(*y))?;
            }
            writeln!(out, r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>"#)?;
            let name = escaped(&line.name);
            writeln!(
                out,
                r##"<path d="M{legend} 42h18" stroke="{colour}" stroke-width="3"/><text x="{:.1}" y="46" fill="#222222">{name}</text>"##,
                legend + 24.0
            )?;
            legend += 44.0 + 6.6 * line.name.chars().count() as f64;
        }
        writeln!(out, "</svg>")
    }

    fn axes(&self, out: &mut String, across: &Scale, left: &Scale, right: &Scale) -> std::fmt::Result {
        let (width, height) = SIZE;
        let (bottom, end) = (height - BOTTOM, width - RIGHT);
        for tick in left.ticks() {
            let (y, text) = (left.place(tick), shown(tick));
            writeln!(
                out,
                r##"<path d="M{LEFT} {y:.1}H{end}" stroke="#e4e4e4"/><text x="{}" y="{:.1}" text-anchor="end" fill="#444444">{text}</text>"##,
                LEFT - 6.0,
                y + 4.0
            )?;
        }
        if self.lines.iter().any(|line| line.side == Side::Right) {
            for tick in right.ticks() {
                let (y, text) = (right.place(tick) + 4.0, shown(tick));
                writeln!(out, r##"<text x="{}" y="{y:.1}" fill="#444444">{text}</text>"##, end + 6.0)?;
            }
        }
        for tick in across.ticks() {
            let (x, text) = (across.place(tick), shown(tick));
            writeln!(
                out,
                r##"<text x="{x:.1}" y="{}" text-anchor="middle" fill="#444444">{text}</text>"##,
                bottom + 16.0
            )?;
        }
        writeln!(out, r##"<path d="M{LEFT} {TOP}V{bottom}H{end}V{TOP}" fill="none" stroke="#444444"/>"##)?;
        let (middle, label) = ((TOP + bottom) / 2.0, bottom + 36.0);
        let centre = (LEFT + end) / 2.0;
        writeln!(
            out,
            r##"<text x="{centre}" y="{label}" text-anchor="middle" fill="#222222">{}</text>"##,
            escaped(&self.across)
        )?;
        for (x, text) in [(16.0, &self.left), (width - 8.0, &self.right)] {
            writeln!(
                out,
                r##"<text transform="translate({x} {middle}) rotate(-90)" text-anchor="middle" fill="#222222">{}</text>"##,
                escaped(text)
            )?;
        }
        Ok(())
    }
}

/// From figures to pixels, beginning at 0.
#[derive(Debug, Clone, Copy)]
struct Scale {
    step: f64,
    steps: u32,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let most = figures.fold(0.0, f64::max);
        let step = round(if most > 0.0 { most / TICKS } else { 1.0 });
        let steps = (most / step).ceil().max(1.0) as u32;
        Self { step, steps, from: 0.0, to: 1.0 }
    }

    fn over(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    fn place(&self, figure: f64) -> f64 {
        self.from + (self.to - self.from) * figure / (self.step * f64::from(self.steps))
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = self.step;
        (0..=self.steps).map(move |number| f64::from(number) * step)
    }
}

/// The next of 1, 2, 5, 10, 20, … that is not below.
fn round(figure: f64) -> f64 {
    let power = 10.0_f64.powf(figure.log10().floor());
    let lead = [1.0, 2.0, 5.0, 10.0].into_iter().find(|lead| lead * power >= figure * 0.999_999);
    lead.unwrap_or(10.0) * power
}

fn shown(figure: f64) -> String {
    if figure >= 10_000.0 { format!("{:.0} k", figure / 1_000.0) } else { format!("{}", (figure * 1e6).round() / 1e6) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_steps_and_hold_everything() {
        for (most, step, steps) in [(0.0, 1.0, 1), (6.0, 1.0, 6), (7.0, 2.0, 4), (30_000.0, 5_000.0, 6), (0.3, 0.05, 6)]
        {
            let scale = Scale::of([most / 2.0, most].into_iter()).over(100.0, 0.0);
            assert!((scale.step - step).abs() < 1e-9, "{most}: {scale:?}");
            assert_eq!(scale.steps, steps, "{most}");
            assert!((0.0..=100.0).contains(&scale.place(most)), "{most}");
        }
        assert_eq!((shown(30_000.0), shown(0.15), shown(400.0)), ("30 k".into(), "0.15".into(), "400".into()));
    }

    #[test]
    fn a_drawing_has_its_lines_and_no_foreign_markup() {
        let line = |name: &str, side| Line { name: name.to_owned(), side, points: vec![(0.0, 1.0), (2.0, 3.0)] };
        let plot = Plot {
            title: "a < b".to_owned(),
            across: "seconds".to_owned(),
            left: "ms".to_owned(),
            right: "sessions".to_owned(),
            lines: vec![line("p99", Side::Left), line("joined", Side::Right)],
            marks: vec![(1.0, "killed".to_owned())],
        };
        let svg = plot.svg();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        for colour in &COLOURS[..2] {
            assert_eq!(svg.matches(colour).count(), 2, "a line and its legend");
        }
        assert!(svg.contains("killed") && svg.contains("joined") && svg.contains("sessions"));
    }
}
