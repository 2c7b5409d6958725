//! The report: one self-contained page that opens offline.

use afterfit::learn::Learned;

use crate::output::short;
use crate::table::{certainty, score, score_name};

/// What a page is made from.
pub(crate) struct Report<'a> {
    pub(crate) title: &'a str,
    pub(crate) learned: &'a Learned,
    pub(crate) names: Option<&'a [String]>,
    pub(crate) image: Option<[usize; 2]>,
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#222;max-width:960px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.15rem .7rem;text-align:right}th{border-bottom:2px solid #888}tr.best{background:#fde7c3}tr.onese{background:#e4eefb}\
td.l{text-align:left;color:#777}svg{max-width:100%;height:auto}figure{margin:0}figcaption{color:#555;font-size:.9rem}\
figure ul{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.4rem;margin:0;padding:0;font-size:.85rem}\
figure li i{display:inline-block;width:22px;margin-right:6px;vertical-align:middle}figure li{overflow-wrap:anywhere}summary{cursor:pointer}\
.pictures{display:flex;flex-wrap:wrap;gap:12px}.pictures div{text-align:center;font-size:.85rem}\
.cards{display:flex;flex-wrap:wrap;gap:1rem}.card{background:#f5f5f2;border-radius:8px;padding:.6rem 1rem}.card b{display:block;font-size:1.25rem}";

/// The page.
pub(crate) fn page(report: &Report<'_>) -> String {
    let learned = report.learned;
    let (best, one_se) = (&learned.rows[learned.best], &learned.rows[learned.one_se]);
    let (score_name, best_score) = match score_name(learned) {
        name if name.is_empty() => ("validation loss".to_owned(), short(best.validation_loss)),
        name => (format!("validation {name}"), score(best)),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<div class=\"cards\">\
<div class=\"card\">best λ<b>{}</b></div><div class=\"card\">1-SE λ<b>{}</b></div><div class=\"card\">{score_name}<b>{}</b></div>\
<div class=\"card\">strengths, {} path{}<b>{}</b></div></div>\n",
        short(best.l2),
        short(one_se.l2),
        best_score,
        learned.runs,
        if learned.runs == 1 { "" } else { "s" },
        learned.rows.len(),
        title = escape(report.title),
    );
    let spread = spread(learned);
    page.push_str(&format!("<h2>Loss{} against λ</h2>\n", if spread.is_some() { " and R²" } else { "" }));
    page.push_str(&loss_figure(learned, spread));
    if spread.is_none() && (best.validation_accuracy.is_some() || best.validation_r2.is_some()) {
        page.push_str(&format!(
            "<h2>{} against λ</h2>\n",
            if best.validation_accuracy.is_some() { "Accuracy" } else { "R²" }
        ));
        page.push_str(&score_figure(learned));
    }
    if !learned.traces.is_empty() {
        page.push_str("<h2>Weights against λ</h2>\n");
        page.push_str(&trace_figure(report));
    }
    if let Some(pictures) = pictures(report) {
        page.push_str("<h2>Weights as pictures, at the best λ</h2>\n");
        page.push_str(&pictures);
    }
    if let (Some(confusion), Some(classes)) = (&learned.confusion, &learned.model.about.classes) {
        page.push_str("<h2>Confusion on the validation rows, at the best λ</h2>\n");
        page.push_str(&confusion_table(confusion, classes));
    }
    page.push_str("<h2>What is exact and what is not</h2>\n<ul>");
    for note in &learned.notes {
        page.push_str(&format!("<li>{}</li>", escape(note)));
    }
    page.push_str("<li>λ multiplies ½‖w‖² next to a mean loss: scikit-learn's <code>Ridge(alpha = nλ)</code>, <code>LogisticRegression(C = 1/(nλ))</code>, <code>PoissonRegressor(alpha = λ)</code>, <code>KernelRidge(alpha = nλ)</code> of a centred kernel, where n is the number of training rows, or the sum of their weights. Losses are half the mean squared error, the log-loss, or half the Poisson deviance. Intercepts are not penalized.</li></ul>\n");
    page.push_str(&format!(
        "<h2>Every strength</h2>\n<details><summary>The numbers of all {} strengths</summary>\n{}</details>\n",
        learned.rows.len(),
        full_table(learned)
    ));
    page.push_str("</body></html>\n");
    page
}

/// Text that may hold anything, made safe for HTML.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
const COLOURS: [&str; 10] =
    ["#4477aa", "#ee6677", "#228833", "#aa8800", "#66ccee", "#aa3377", "#777777", "#994f00", "#117733", "#332288"];

/// A handful of round numbers from `low` to `high`, which are logarithms if `log`.
fn round_numbers(low: f64, high: f64, log: bool) -> Vec<f64> {
    if log {
        let steps: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
        return all.filter(|value| (low..=high).contains(&value.log10())).collect();
    }
    let rough = (high - low) / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|&step| step >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    (0..12).map(|i| (first + i) as f64 * step).take_while(|value| *value <= high).collect()
}

/// Most characters of a name in a key; the whole of it is shown when the pointer rests there.
const MOST_NAME: usize = 60;

/// A long name without its middle: columns differ at the end of their names as often as at the start.
fn shortened(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= MOST_NAME {
        return name.to_owned();
    }
    let (head, tail) = (MOST_NAME / 3, MOST_NAME - MOST_NAME / 3 - 1);
    let ends = [&letters[..head], &['…'], &letters[letters.len() - tail..]];
    ends.concat().into_iter().collect()
}

/// A chart over log λ.
struct Chart {
    from: f64,
    to: f64,
    low: f64,
    high: f64,
    log: bool,
    body: String,
    keys: String,
}

impl Chart {
    /// Axes that hold all `values`; logarithmic if asked for and all are positive and far apart.
    fn new(learned: &Learned, log: bool, values: impl Iterator<Item = f64>) -> Self {
        let logs = learned.rows.iter().map(|row| row.l2.log10());
        let (from, to) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), l| (a.min(l), b.max(l)));
        let finite = values.filter(|v| v.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
        let log = log && low > 0.0 && high > 5.0 * low;
        let (low, high) = if log { (low.log10(), high.log10()) } else { (low, high) };
        let pad = if high > low { 0.04 * (high - low) } else { 0.5 };
        let to = if to > from { to } else { from + 1.0 };
        let mut chart =
            Self { from, to, low: low - pad, high: high + pad, log, body: String::new(), keys: String::new() };
        chart.axes();
        chart
    }

    fn x(&self, l2: f64) -> f64 {
        LEFT + (l2.log10() - self.from) / (self.to - self.from) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-300).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(-0.02, 1.02);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&mut self) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in round_numbers(self.low, self.high, self.log) {
            let y = self.y(value);
            self.body.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e4e4e4\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                short(value)
            ));
        }
        let step = ((self.to - self.from) / 8.0).ceil().max(1.0);
        let mut tick = (self.from - 1e-9).ceil();
        while tick <= self.to + 1e-9 {
            let x = self.x(10_f64.powf(tick));
            self.body.push_str(&format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{:.1}\" stroke=\"#888\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 5.0,
                bottom + 20.0,
                short(10_f64.powf(tick))
            ));
            tick += step;
        }
        self.body.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\" stroke=\"#888\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">λ</text>",
            (LEFT + right) / 2.0,
            bottom + 40.0
        ));
    }

    /// A vertical line at a chosen λ.
    fn mark(&mut self, l2: f64, colour: &str) {
        let x = self.x(l2);
        self.body.push_str(&format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-dasharray=\"5 4\"/>",
            HEIGHT - BOTTOM
        ));
    }

    /// A line, and its name for when the pointer rests on it.
    fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str, width: f64, name: &str) {
        let path: Vec<String> = points.map(|(l2, value)| format!("{:.1},{:.1}", self.x(l2), self.y(value))).collect();
        self.body.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"><title>{}</title></polyline>",
            path.join(" "),
            escape(name)
        ));
    }

    /// A place that says its numbers when the pointer rests on it.
    fn spot(&mut self, l2: f64, value: f64, text: &str) {
        self.body.push_str(&format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\" fill-opacity=\"0\"><title>{}</title></circle>",
            self.x(l2),
            self.y(value),
            escape(text)
        ));
    }

    /// A second axis on the right for `1 − value / spread`.
    fn right_axis(&mut self, spread: f64, name: &str) {
        let right = WIDTH - RIGHT;
        let mut axis = format!("<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", right + 26.0, HEIGHT - BOTTOM + 20.0);
        // Round numbers of what is shown: on a logarithmic axis, of the share that is left of the spread.
        let ticks: Vec<f64> = match self.log {
            true => {
                let log = spread.log10();
                round_numbers(self.low - log, self.high - log, true).into_iter().map(|left| 1.0 - left).collect()
            }
            false => round_numbers(1.0 - self.high / spread, 1.0 - self.low / spread, false),
        };
        for tick in ticks {
            let y = self.y((1.0 - tick) * spread);
            axis.push_str(&format!(
                "<line x1=\"{right}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#888\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                right + 5.0,
                right + 8.0,
                y + 4.0,
                short(tick)
            ));
        }
        self.body.push_str(&axis);
    }

    /// A line of the key below the chart.
    fn key(&mut self, colour: &str, name: &str, dashed: bool) {
        let style = if dashed { "dashed" } else { "solid" };
        self.keys.push_str(&format!(
            "<li title=\"{}\"><i style=\"border-top:2px {style} {colour}\"></i>{}</li>",
            escape(name),
            escape(&shortened(name))
        ));
    }

    /// Shades the λ that the run does not resolve.
    fn shade(&mut self, learned: &Learned) {
        let strongest = learned.rows.iter().filter(|row| !row.resolved).map(|row| row.l2).fold(0.0, f64::max);
        if strongest > 0.0 {
            let x = self.x(strongest);
            self.body.push_str(&format!(
                "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#999\" opacity=\"0.12\"/>",
                (x - LEFT).max(1.0),
                HEIGHT - BOTTOM - TOP
            ));
        }
    }

    fn figure(self, caption: &str) -> String {
        format!(
            "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"12\" font-family=\"system-ui,sans-serif\" role=\"img\">{}</svg><ul>{}</ul><figcaption>{}</figcaption></figure>\n",
            self.body,
            self.keys,
            escape(caption)
        )
    }
}

/// The loss of predicting the mean, if R² is the loss in other units: it needs no figure of its own then.
fn spread(learned: &Learned) -> Option<f64> {
    let spreads: Option<Vec<f64>> =
        learned.rows.iter().map(|row| row.validation_r2.map(|r2| row.validation_loss / (1.0 - r2))).collect();
    let spreads = spreads?;
    let first = *spreads.iter().find(|spread| spread.is_finite() && **spread > 0.0)?;
    // (A perfect fit has no loss to compare with.)
    let same = |spread: &f64| !spread.is_finite() || *spread == 0.0 || (spread / first - 1.0).abs() < 1e-6;
    spreads.iter().all(same).then_some(first)
}

fn loss_figure(learned: &Learned, spread: Option<f64>) -> String {
    let rows = &learned.rows;
    let mut chart = Chart::new(learned, true, rows.iter().flat_map(|row| [row.train_loss, row.validation_loss]));
    chart.shade(learned);
    chart.mark(rows[learned.one_se].l2, "#4477aa");
    chart.mark(rows[learned.best].l2, "#d55e00");
    chart.line(rows.iter().map(|row| (row.l2, row.train_loss)), "#999", 2.0, "training");
    chart.line(rows.iter().map(|row| (row.l2, row.validation_loss)), "#222", 2.5, "validation");
    for row in rows {
        let r2 = row.validation_r2.map_or_else(String::new, |r2| format!(", R² {r2:.4}"));
        let text = format!("λ {}: validation loss {}{r2}", short(row.l2), short(row.validation_loss));
        chart.spot(row.l2, row.validation_loss, &text);
    }
    chart.key("#222", "validation", false);
    chart.key("#999", "training", false);
    chart.key("#d55e00", "best λ", true);
    chart.key("#4477aa", "1-SE λ", true);
    if let Some(spread) = spread {
        chart.right_axis(spread, "R²");
    }
    let r2 = match spread {
        Some(_) => " On the right: R² on the validation rows, the same curve in other units.",
        None => "",
    };
    let shaded = if rows.iter().any(|row| !row.resolved) {
        " Shaded: unresolved, the certificates of these λ are too wide."
    } else {
        ""
    };
    chart.figure(&format!("Mean loss, without the penalty.{r2}{shaded}"))
}

fn score_figure(learned: &Learned) -> String {
    let rows = &learned.rows;
    let value = |row: &afterfit::learn::Row| row.validation_accuracy.or(row.validation_r2).unwrap_or(f64::NAN);
    let top = rows.iter().map(value).fold(f64::NEG_INFINITY, f64::max);
    // An R² far below zero would flatten everything worth seeing.
    let mut chart = Chart::new(learned, false, rows.iter().map(value).filter(|v| *v > top - 1.0));
    chart.shade(learned);
    chart.mark(rows[learned.best].l2, "#d55e00");
    chart.line(rows.iter().map(|row| (row.l2, value(row))), "#222", 2.5, "validation");
    for row in rows {
        chart.spot(row.l2, value(row), &format!("λ {}: {}", short(row.l2), score(row)));
    }
    chart.key("#222", "validation", false);
    chart.key("#d55e00", "best λ", true);
    chart.figure("On the rows held out.")
}

/// The class that an output speaks for: of two classes, the only one speaks for the second.
fn class_of(output: usize, learned: &Learned) -> usize {
    output + usize::from(learned.model.about.outputs == 1)
}

/// Most lines a trace shows.
const MOST_TRACES: usize = 40;
/// Lines that get a name.
const NAMED: usize = 8;

fn trace_figure(report: &Report<'_>) -> String {
    let learned = report.learned;
    let width = learned.traces[0].len();
    let features = learned.model.about.features;
    let mut order: Vec<usize> = (0..width).collect();
    let size = |i: &usize| learned.traces.iter().map(|weights| weights[*i].abs()).fold(0.0, f64::max);
    order.sort_by(|a, b| size(b).total_cmp(&size(a)));
    order.truncate(MOST_TRACES);
    let mut chart =
        Chart::new(learned, false, order.iter().flat_map(|&i| learned.traces.iter().map(move |weights| weights[i])));
    chart.mark(learned.rows[learned.best].l2, "#d55e00");
    let name = |i: usize| {
        let feature = match report.names {
            Some(names) => names[i % features].clone(),
            None => format!("feature {}", i % features),
        };
        match &learned.model.about.classes {
            Some(classes) => format!("{feature} → {}", classes[class_of(i / features, learned)]),
            None => feature,
        }
    };
    for (place, &i) in order.iter().enumerate().rev() {
        let (colour, width) = if place < NAMED { (COLOURS[place], 2.0) } else { ("#cccccc", 1.0) };
        let points = learned.rows.iter().zip(&learned.traces).map(|(row, weights)| (row.l2, weights[i]));
        chart.line(points, colour, width, &name(i));
    }
    for (place, &i) in order.iter().take(NAMED).enumerate() {
        chart.key(COLOURS[place], &name(i), false);
    }
    let shown = order.len();
    chart
        .figure(&format!("The {shown} of {width} weights that grow largest; the first {} are named.", shown.min(NAMED)))
}

/// One picture for each output, red for positive weights and blue for negative ones.
fn pictures(report: &Report<'_>) -> Option<String> {
    let [height, width] = report.image?;
    let learned = report.learned;
    let weights = learned.traces.get(learned.best)?;
    if height * width != learned.model.about.features || weights.is_empty() {
        return None;
    }
    let top = weights.iter().fold(0.0_f64, |top, w| top.max(w.abs())).max(f64::MIN_POSITIVE);
    let mut html = String::from("<div class=\"pictures\">");
    let cell = (112 / width.max(1)).max(2);
    for (output, weights) in weights.chunks_exact(height * width).enumerate() {
        let name = learned
            .model
            .about
            .classes
            .as_ref()
            .map_or_else(|| format!("output {output}"), |classes| classes[class_of(output, learned)].clone());
        let (w, h) = (cell * width, cell * height);
        html.push_str(&format!("<div><svg width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {width} {height}\" shape-rendering=\"crispEdges\"><rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"));
        for (i, &value) in weights.iter().enumerate() {
            let share = (value / top).clamp(-1.0, 1.0);
            if share.abs() > 0.01 {
                let colour = if share > 0.0 { "#c1272d" } else { "#0050a0" };
                html.push_str(&format!(
                    "<rect x=\"{}\" y=\"{}\" width=\"1\" height=\"1\" fill=\"{colour}\" opacity=\"{:.2}\"/>",
                    i % width,
                    i / width,
                    share.abs().sqrt()
                ));
            }
        }
        html.push_str(&format!("</svg><br>{}</div>", escape(&name)));
    }
    html.push_str("</div><p>Red pixels speak for the class, blue ones against it.</p>\n");
    Some(html)
}

fn confusion_table(confusion: &[Vec<usize>], classes: &[String]) -> String {
    if classes.len() > 40 {
        return "<p>More than 40 classes: not shown.</p>\n".into();
    }
    let mut html = String::from("<table><tr><th>true \\ predicted</th>");
    classes.iter().for_each(|class| html.push_str(&format!("<th>{}</th>", escape(class))));
    html.push_str("</tr>");
    for (truth, (class, row)) in classes.iter().zip(confusion).enumerate() {
        let total: usize = row.iter().sum();
        html.push_str(&format!("<tr><th>{}</th>", escape(class)));
        for (found, &count) in row.iter().enumerate() {
            let share = count as f64 / total.max(1) as f64;
            let colour = if truth == found {
                format!("rgba(34,136,51,{:.2})", 0.1 + 0.5 * share)
            } else {
                format!("rgba(213,94,0,{:.2})", (2.0 * share).min(0.8))
            };
            let text = if count == 0 { String::new() } else { count.to_string() };
            html.push_str(&format!("<td style=\"background:{colour}\">{text}</td>"));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>\n");
    html
}

fn full_table(learned: &Learned) -> String {
    let first = &learned.rows[0];
    let score_name = score_name(learned);
    let degrees = first.degrees_of_freedom.is_some();
    let scale = first.scale.is_some();
    let mut html =
        format!("<table><tr><th>λ</th><th>training loss</th><th>validation loss</th><th>{score_name}</th><th>‖w‖</th>");
    if degrees {
        html.push_str("<th>degrees of freedom</th>");
    }
    html.push_str("<th>excess loss ≤</th><th>distance ≤</th>");
    if scale {
        html.push_str("<th>rescaled by</th>");
    }
    html.push_str("<th></th></tr>");
    for (at, row) in learned.rows.iter().enumerate() {
        let class = if at == learned.best {
            " class=\"best\""
        } else if at == learned.one_se {
            " class=\"onese\""
        } else {
            ""
        };
        html.push_str(&format!(
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            short(row.l2),
            short(row.train_loss),
            short(row.validation_loss),
            score(row),
            short(row.norm)
        ));
        if degrees {
            html.push_str(&format!("<td>{:.1}</td>", row.degrees_of_freedom.unwrap_or(f64::NAN)));
        }
        let certificate = &row.certificate;
        html.push_str(&format!("<td>{}</td><td>{:.0e}</td>", certainty(certificate.excess), certificate.distance));
        if scale {
            html.push_str(&format!("<td>{:.3}</td>", row.scale.unwrap_or(1.0)));
        }
        let mut remarks = Vec::new();
        if at == learned.best {
            remarks.push("best".to_owned());
        }
        if at == learned.one_se {
            remarks.push("1-SE".to_owned());
        }
        if !row.resolved {
            remarks.push("unresolved".to_owned());
        }
        html.push_str(&format!("<td class=\"l\">{}</td></tr>", remarks.join(", ")));
    }
    html.push_str("</table>\n");
    html
}
