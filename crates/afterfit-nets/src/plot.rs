//! Figures as SVG: panels of curves and dots, one legend below them all, so that it never lies over data.

use std::fmt::Write;

/// The same color for the same thing in every figure.
pub mod color {
    /// The unregularized path w.
    pub const PATH: &str = "#2a9d3a";
    /// The explicitly regularized path ŵ.
    pub const HAT: &str = "#2457c5";
    /// The normalized average w̃ (the paper's).
    pub const TILDE: &str = "#d1342f";
    /// The regularized answer.
    pub const REGULARIZED: &str = "#111111";
    /// What theory says: rates, bounds, certificates.
    pub const THEORY: &str = "#8a6fc8";
    /// What the authors' scripts computed where they slipped.
    pub const SLIP: &str = "#b08d57";
    /// ℓ1 solutions that no average reaches.
    pub const OUTSIDE: &str = "#e07b00";
    /// Contours and guides.
    pub const GUIDE: &str = "#b8bec8";
    /// More curves of one kind, light to dark.
    pub const LADDER: [&str; 5] = ["#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b"];
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Style {
    /// A line of this width.
    Line(f64),
    /// A dashed line.
    Dashed(f64),
    /// A dotted line.
    Dotted(f64),
    /// Filled dots of this radius.
    Dots(f64),
    /// Rings of this radius.
    Rings(f64),
}

/// Points drawn alike.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend says; nothing when empty.
    pub label: String,
    /// One of [`color`].
    pub color: &'static str,
    /// How it is drawn.
    pub style: Style,
    /// x and y; a number that cannot be shown breaks a line.
    pub points: Vec<(f64, f64)>,
}

/// Makes a series.
pub fn series(label: &str, color: &'static str, style: Style, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { label: label.into(), color, style, points: points.into_iter().collect() }
}

/// One direction of a panel.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What is measured.
    pub label: String,
    /// Logarithmic or linear.
    pub log: bool,
    /// The ends; those of the data when `None`.
    pub range: Option<(f64, f64)>,
}

/// A linear axis.
pub fn linear(label: &str) -> Axis {
    Axis { label: label.into(), log: false, range: None }
}

/// A logarithmic axis.
pub fn log(label: &str) -> Axis {
    Axis { label: label.into(), log: true, range: None }
}

impl Axis {
    /// With these ends.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// The ends in drawing units.
    fn ends(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        if let Some((low, high)) = self.range {
            return (self.place(low), self.place(high));
        }
        let (low, high) = values
            .filter(|&value| self.shows(value))
            .map(|value| self.place(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low >= high || !low.is_finite() {
            let middle = if low.is_finite() { low } else { 0.0 };
            return (middle - 0.5, middle + 0.5);
        }
        let room = 0.04 * (high - low);
        (low - room, high + room)
    }

    /// Places and labels of the ticks between the ends.
    fn ticks(&self, low: f64, high: f64) -> Vec<(f64, String)> {
        if self.log {
            if high - low < 1.5 {
                // Less than two decades: steps within them.
                let places = (low.floor() as i32..=high.ceil() as i32)
                    .flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10.0_f64.powi(power)));
                let shown = places.filter(|value| (low..=high).contains(&value.log10()));
                return shown.map(|value| (value.log10(), short(value))).collect();
            }
            let every = ((high - low) / 6.0).ceil().max(1.0);
            let first = (low / every).ceil() as i64;
            let last = (high / every).floor() as i64;
            return (first..=last).map(|i| (i as f64 * every, power(i * every as i64))).collect();
        }
        let rough = (high - low) / 5.0;
        let unit = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|m| m * unit).find(|&step| step >= rough).unwrap_or(unit);
        let digits = (-(step.log10().floor()) as i32 + i32::from((step / unit - 2.5).abs() < 1e-9)).max(0) as usize;
        let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
        (first..=last).map(|i| (i as f64 * step, format!("{:.digits$}", i as f64 * step))).collect()
    }
}

/// 0.02, or 2e-5.
fn short(value: f64) -> String {
    if (1e-4..1e5).contains(&value) {
        let digits = (-value.log10().floor()).max(0.0) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:e}")
    }
}

/// Leaves out points that would lie on top of the one before: closer than `gap` of the data's units.
pub fn thinned(points: Vec<(f64, f64)>, gap: f64) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let last = points.last().copied();
    for point in points {
        if kept.last().is_none_or(|at| (at.0 - point.0).hypot(at.1 - point.1) >= gap) {
            kept.push(point);
        }
    }
    kept.extend(last);
    kept
}

/// 10⁻³.
fn power(exponent: i64) -> String {
    let digits: String = exponent
        .to_string()
        .chars()
        .map(|c| match c {
            '-' => '⁻',
            '1' => '¹',
            '2' => '²',
            '3' => '³',
            c => char::from_u32(c as u32 - '0' as u32 + 0x2070).unwrap_or(c),
        })
        .collect();
    format!("10{digits}")
}

/// A set of axes with data.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// In drawing order.
    pub series: Vec<Series>,
}

/// A figure of panels in rows.
#[derive(Debug, Clone)]
pub struct Figure {
    /// File name without ending.
    pub name: String,
    /// Above all panels.
    pub title: String,
    /// Row by row.
    pub panels: Vec<Panel>,
    /// Panels in a row.
    pub columns: usize,
}

const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;
const HEAD: f64 = 40.0;
const LEGEND_LINE: f64 = 22.0;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// About how wide a text is at this size.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

impl Figure {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let columns = self.columns.min(self.panels.len()).max(1);
        let rows = self.panels.len().div_ceil(columns);
        let width = columns as f64 * (LEFT + WIDTH + RIGHT);
        let mut legend: Vec<&Series> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !series.label.is_empty() && !legend.iter().any(|known| known.label == series.label) {
                legend.push(series);
            }
        }
        // Entries flow into lines.
        let mut lines: Vec<Vec<(&Series, f64)>> = vec![Vec::new()];
        let mut at = 20.0;
        for entry in legend {
            let wide = 44.0 + text_width(&entry.label, 12.0) + 18.0;
            if at + wide > width && lines.last().is_some_and(|line| !line.is_empty()) {
                lines.push(Vec::new());
                at = 20.0;
            }
            if let Some(line) = lines.last_mut() {
                line.push((entry, at));
            }
            at += wide;
        }
        let body = rows as f64 * (TOP + HEIGHT + BOTTOM);
        let height = HEAD + body + lines.len() as f64 * LEGEND_LINE + 14.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"{}\" y=\"26\" font-size=\"15\" text-anchor=\"middle\">{}</text>\n",
            width / 2.0,
            escaped(&self.title)
        );
        for (i, panel) in self.panels.iter().enumerate() {
            let x = (i % columns) as f64 * (LEFT + WIDTH + RIGHT) + LEFT;
            let y = HEAD + (i / columns) as f64 * (TOP + HEIGHT + BOTTOM) + TOP;
            panel.draw(&mut out, x, y, &format!("{}-{i}", self.name));
        }
        for (row, line) in lines.iter().enumerate() {
            let y = HEAD + body + row as f64 * LEGEND_LINE + 10.0;
            for (entry, x) in line {
                sample(&mut out, entry, *x, y);
                let _ =
                    writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 44.0, y + 4.0, escaped(&entry.label));
            }
        }
        out.push_str("</svg>\n");
        out
    }
}

fn stroke(style: Style) -> Option<(f64, &'static str)> {
    match style {
        Style::Line(width) => Some((width, "")),
        Style::Dashed(width) => Some((width, " stroke-dasharray=\"6 4\"")),
        Style::Dotted(width) => Some((width, " stroke-dasharray=\"1.5 3.5\" stroke-linecap=\"round\"")),
        Style::Dots(_) | Style::Rings(_) => None,
    }
}

fn mark(out: &mut String, series: &Series, x: f64, y: f64) {
    let color = series.color;
    let _ = match series.style {
        Style::Rings(radius) => {
            writeln!(
                out,
                "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{radius}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.1\"/>"
            )
        }
        Style::Dots(radius) => writeln!(out, "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{radius}\" fill=\"{color}\"/>"),
        _ => Ok(()),
    };
}

/// The legend's picture of a series.
fn sample(out: &mut String, series: &Series, x: f64, y: f64) {
    match stroke(series.style) {
        Some((width, dash)) => {
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{}\" stroke-width=\"{width}\"{dash}/>",
                x + 36.0,
                series.color
            );
        }
        None => [6.0, 18.0, 30.0].iter().for_each(|dx| mark(out, series, x + dx, y)),
    }
}

impl Panel {
    fn draw(&self, out: &mut String, left: f64, top: f64, id: &str) {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let (x_low, x_high) = self.x.ends(points().map(|(x, _)| x));
        let (y_low, y_high) = self.y.ends(points().map(|(_, y)| y));
        let across = |value: f64| left + (value - x_low) / (x_high - x_low) * WIDTH;
        let up = |value: f64| top + HEIGHT - (value - y_low) / (y_high - y_low) * HEIGHT;
        let _ = writeln!(
            out,
            "<clipPath id=\"{id}\"><rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/></clipPath>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" text-anchor=\"middle\">{}</text>",
            left + WIDTH / 2.0,
            top - 10.0,
            escaped(&self.title)
        );
        for (place, label) in self.x.ticks(x_low, x_high) {
            let x = across(place);
            let _ = writeln!(
                out,
                "<line x1=\"{x:.2}\" y1=\"{top}\" x2=\"{x:.2}\" y2=\"{:.2}\" stroke=\"#eceef2\"/>\
                 <text x=\"{x:.2}\" y=\"{:.2}\" font-size=\"11\" text-anchor=\"middle\">{label}</text>",
                top + HEIGHT,
                top + HEIGHT + 16.0
            );
        }
        for (place, label) in self.y.ticks(y_low, y_high) {
            let y = up(place);
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{y:.2}\" x2=\"{:.2}\" y2=\"{y:.2}\" stroke=\"#eceef2\"/>\
                 <text x=\"{:.2}\" y=\"{:.2}\" font-size=\"11\" text-anchor=\"end\">{label}</text>",
                left + WIDTH,
                left - 6.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n<g clip-path=\"url(#{id})\">",
            left + WIDTH / 2.0,
            top + HEIGHT + 36.0,
            escaped(&self.x.label),
            left - 50.0,
            top + HEIGHT / 2.0,
            escaped(&self.y.label)
        );
        for series in &self.series {
            let Some((width, dash)) = stroke(series.style) else {
                for &(x, y) in series.points.iter().filter(|(x, y)| self.x.shows(*x) && self.y.shows(*y)) {
                    mark(out, series, across(self.x.place(x)), up(self.y.place(y)));
                }
                continue;
            };
            for part in
                series.points.split(|(x, y)| !(self.x.shows(*x) && self.y.shows(*y))).filter(|part| part.len() > 1)
            {
                // What leaves the panel is cut off, but not by so far that numbers lose their meaning.
                let near = |value: f64| value.clamp(-1e5, 1e5);
                let path: Vec<String> = part
                    .iter()
                    .map(|&(x, y)| format!("{:.2},{:.2}", near(across(self.x.place(x))), near(up(self.y.place(y)))))
                    .collect();
                let _ = writeln!(
                    out,
                    "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash} points=\"{}\"/>",
                    series.color,
                    path.join(" ")
                );
            }
        }
        let _ = writeln!(
            out,
            "</g>\n<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#555\"/>"
        );
    }
}

/// The picture in pixels, twice as many as units. The font is part of the program: the same bytes on every machine.
pub fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut options = resvg::usvg::Options { font_family: "DejaVu Sans".into(), ..Default::default() };
    options.fontdb_mut().load_font_data(include_bytes!("../assets/DejaVuSans.ttf").to_vec());
    let tree = resvg::usvg::Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(2.0).unwrap_or(tree.size().to_int_size());
    let mut pixels = resvg::tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or_else(|| anyhow::anyhow!("a picture of {} × {} pixels", size.width(), size.height()))?;
    resvg::render(&tree, resvg::tiny_skia::Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
    Ok(pixels.encode_png()?)
}
