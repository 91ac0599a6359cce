//! The plot: one panel per figure, with logarithmic scales. The colour stands for the layout of the
//! directory, the line style for the file system.

use std::fmt::Write as _;
use std::time::Duration;

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 84.0;
const STEP: f64 = LEFT + WIDTH + 20.0;
const TITLES: [&str; 2] = ["1000 random lookups", "1000 additions, 1000 deletions of the oldest"];
const DASHES: [&str; 3] = ["", "6 4", "2 3"];

/// The measurements of one directory layout on one file system: size in articles, time of lookups
/// and time of changes.
pub(crate) struct Series {
    pub(crate) disk: String,
    pub(crate) form: String,
    pub(crate) points: Vec<(u64, [Duration; 2])>,
}

/// The scales of all panels: powers of two articles, and powers of ten milliseconds.
struct Scale {
    doublings: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(all: &[Series]) -> Self {
        let points = || all.iter().flat_map(|series| &series.points);
        let times = || points().flat_map(|(_, times)| times).map(|&time| magnitude(time));
        Self {
            doublings: points().map(|(size, _)| (*size as f64).log2()).fold(1.0, f64::max),
            from: times().fold(f64::INFINITY, f64::min).floor(),
            to: times().fold(f64::NEG_INFINITY, f64::max).ceil(),
        }
    }

    fn x(&self, doublings: f64) -> f64 {
        LEFT + WIDTH * doublings / self.doublings
    }

    fn y(&self, magnitude: f64) -> f64 {
        TOP + HEIGHT * (self.to - magnitude) / (self.to - self.from)
    }
}

fn magnitude(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).log10()
}

/// Returns the plot as SVG.
pub(crate) fn draw(all: &[Series]) -> String {
    let (width, height) = (2.0 * STEP + 20.0, TOP + HEIGHT + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut disks: Vec<&str> = all.iter().map(|series| series.disk.as_str()).collect();
    disks.dedup();
    let row = |series: &Series| disks.iter().position(|disk| *disk == series.disk).unwrap_or(0);
    let style = |series: &Series| style(series, DASHES.get(row(series)).unwrap_or(&""));
    let scale = Scale::of(all);
    // The legend: a row for each file system.
    for (i, series) in all.iter().enumerate() {
        let (row, column) = (row(series), i % (all.len() / disks.len()));
        let (x, y) = (LEFT + 220.0 * column as f64, 18.0 + 18.0 * row as f64);
        let _ = writeln!(svg, "<path d=\"M{x} {y}h26\" {}/>", style(series));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{}, {}</text>", x + 31.0, y + 4.0, series.form, series.disk);
    }
    for (figure, title) in TITLES.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate({} 0)\">", STEP * figure as f64);
        let _ =
            writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{title}, milliseconds</text>", TOP - 14.0);
        axes(&mut svg, &scale);
        for series in all {
            let points = series.points.iter().filter_map(|(size, times)| {
                Some(format!("{:.1},{:.1}", scale.x((*size as f64).log2()), scale.y(magnitude(*times.get(figure)?))))
            });
            let points: Vec<String> = points.collect();
            let _ = writeln!(svg, "<polyline points=\"{}\" {}/>", points.join(" "), style(series));
        }
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, scale: &Scale) {
    let bottom = TOP + HEIGHT;
    for ten in scale.from as i32..=scale.to as i32 {
        let y = scale.y(f64::from(ten));
        let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}h{WIDTH}\" stroke=\"#ddd\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            10_f64.powi(ten)
        );
    }
    for doubling in (0..=scale.doublings as u32).step_by(3) {
        let x = scale.x(f64::from(doubling));
        let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}v{HEIGHT}\" stroke=\"#eee\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            1_u64 << doubling
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">articles</text>",
        LEFT + WIDTH / 2.0,
        bottom + 34.0
    );
}

fn style(series: &Series, dash: &str) -> String {
    let colour = match series.form.as_str() {
        "flat" => "#222222",
        "digits" => "#1b6ca8",
        _ => "#d08c60",
    };
    format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" stroke-dasharray=\"{dash}\"")
}
