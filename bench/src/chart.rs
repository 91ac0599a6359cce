//! Line charts: panels with a line for each series. Each point is a median, with a thin line from
//! minimum to maximum.

use std::fmt::Write as _;

use crate::plot::escape;
use crate::results::Spread;

const PANEL_WIDTH: f64 = 420.0;
const PANEL_HEIGHT: f64 = 300.0;
const MARGIN: f64 = 16.0;
const HEADER: f64 = 50.0;
/// Height of a line of the legend.
const LEGEND: f64 = 18.0;
/// Distances of a panel's plot from its edges.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
/// Radius of a mark.
const MARK: f64 = 3.6;

/// Colours for light and dark pages. The lines' colours are readable on both.
const STYLE: &str = "\
<style>
.page { fill: #ffffff; }
text { fill: #222222; }
.quiet { fill: #555555; }
.frame { fill: none; stroke: #888888; }
.grid { stroke: #dddddd; }
@media (prefers-color-scheme: dark) {
  .page { fill: #161b22; }
  text { fill: #e6edf3; }
  .quiet { fill: #9aa7b4; }
  .frame { stroke: #8b98a5; }
  .grid { stroke: #30363d; }
}
</style>
";

/// Spacing of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Starts at zero.
    Linear,
    Log,
}

/// Shape of the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
}

/// How a series looks, in all panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) label: &'static str,
    pub(crate) colour: &'static str,
    pub(crate) mark: Mark,
    pub(crate) dashed: bool,
}

/// A series of points, from left to right.
pub(crate) struct Line {
    pub(crate) look: Look,
    pub(crate) points: Vec<(f64, Spread)>,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) scale: Scale,
}

/// One panel.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Labelled positions of the x axis.
    pub(crate) ticks: Vec<f64>,
    pub(crate) lines: Vec<Line>,
}

/// Draws the panels, `columns` in a row. Panels with logarithmic y axes have the same range.
pub(crate) fn draw(title: &str, note: &str, panels: &[Panel], columns: usize) -> String {
    let looks = looks(panels);
    let header = HEADER + LEGEND * looks.len().div_ceil(legend_columns(columns)) as f64;
    let width = 2.0 * MARGIN + PANEL_WIDTH * columns as f64;
    let height = header + MARGIN + PANEL_HEIGHT * panels.len().div_ceil(columns) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\">\n\
         {STYLE}<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{MARGIN}\" y=\"42\" class=\"quiet\">{}</text>\n",
        escape(title),
        escape(note)
    );
    for (i, look) in looks.iter().enumerate() {
        let x = MARGIN + 205.0 * (i % legend_columns(columns)) as f64;
        let y = HEADER + 8.0 + LEGEND * (i / legend_columns(columns)) as f64;
        draw_look(&mut svg, look, x, y);
    }
    let shared = Range::of(panels.iter().filter(|panel| panel.y.scale == Scale::Log).flat_map(|panel| &panel.lines));
    for (i, panel) in panels.iter().enumerate() {
        let x = MARGIN + PANEL_WIDTH * (i % columns) as f64;
        let y = header + PANEL_HEIGHT * (i / columns) as f64;
        let values = if panel.y.scale == Scale::Log { shared } else { Range::of(&panel.lines) };
        Plot::new(panel, x, y, values).draw(&mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend_columns(columns: usize) -> usize {
    2 * columns
}

/// Returns the looks of all panels, each once.
fn looks(panels: &[Panel]) -> Vec<Look> {
    let mut looks: Vec<Look> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !looks.contains(&line.look) {
            looks.push(line.look);
        }
    }
    looks
}

/// The least and the greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    /// Returns the range of the values of these lines; 1 to 1 for none.
    fn of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Self {
        let values = lines.into_iter().flat_map(|line| &line.points).map(|(_, spread)| spread);
        let all = values.fold(None, |range: Option<Self>, spread| {
            let range = range.unwrap_or(Self { least: spread.min, most: spread.max });
            Some(Self { least: range.least.min(spread.min), most: range.most.max(spread.max) })
        });
        all.unwrap_or(Self { least: 1.0, most: 1.0 })
    }

    /// Returns the ends of an axis for these values, and its labelled positions.
    fn axis(self, scale: Scale) -> (Self, Vec<f64>) {
        match scale {
            Scale::Log => {
                let (low, high) = (self.least.log10().floor(), self.most.log10().ceil());
                let high = high.max(low + 1.0);
                let mut ticks = vec![low];
                while let Some(last) = ticks.last().filter(|last| **last < high) {
                    ticks.push(last + 1.0);
                }
                let ends = Self { least: 10_f64.powf(low), most: 10_f64.powf(high) };
                (ends, ticks.into_iter().map(|power| 10_f64.powf(power)).collect())
            }
            Scale::Linear => {
                let step = step(self.most / 5.0);
                let mut ticks = vec![0.0];
                while let Some(last) = ticks.last().filter(|last| **last < self.most) {
                    ticks.push(last + step);
                }
                (Self { least: 0.0, most: ticks.last().copied().unwrap_or(step) }, ticks)
            }
        }
    }

    /// Returns the position of a value on an axis of this range: 0 to 1.
    fn position(self, scale: Scale, value: f64) -> f64 {
        let along = |value: f64| match scale {
            Scale::Linear => value,
            Scale::Log => value.ln(),
        };
        let length = along(self.most) - along(self.least);
        if length > 0.0 { (along(value) - along(self.least)) / length } else { 0.5 }
    }
}

/// Returns the least of 1, 2, 5, 10, 20, ... and their tenths that is not below `least`.
fn step(least: f64) -> f64 {
    if least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    let candidates = [1.0, 2.0, 5.0].map(|factor| factor * power);
    // Rounding must not lead to the next candidate.
    candidates.into_iter().find(|step| *step >= least * 0.999_999).unwrap_or(10.0 * power)
}

/// A panel at its place.
struct Plot<'a> {
    panel: &'a Panel,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: Range,
    y: Range,
    y_ticks: Vec<f64>,
}

impl<'a> Plot<'a> {
    fn new(panel: &'a Panel, x: f64, y: f64, values: Range) -> Self {
        let (y_ends, y_ticks) = values.axis(panel.y.scale);
        let points = panel.lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
        let places: Vec<f64> = panel.ticks.iter().copied().chain(points).collect();
        let least = places.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let most = places.iter().copied().reduce(f64::max).unwrap_or(1.0);
        Self {
            panel,
            left: x + LEFT,
            top: y + TOP,
            width: PANEL_WIDTH - LEFT - RIGHT,
            height: PANEL_HEIGHT - TOP - BOTTOM,
            x: Range { least, most },
            y: y_ends,
            y_ticks,
        }
    }

    /// Returns the x coordinate; the first and the last position are 3 % inside the frame.
    fn at_x(&self, value: f64) -> f64 {
        self.left + self.width * (0.03 + 0.94 * self.x.position(self.panel.x.scale, value))
    }

    fn at_y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - self.y.position(self.panel.y.scale, value))
    }

    fn draw(&self, svg: &mut String) {
        let (left, top, right, bottom) = (self.left, self.top, self.left + self.width, self.top + self.height);
        let _ = writeln!(
            svg,
            "<text x=\"{left:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            top - 9.0,
            escape(&self.panel.title)
        );
        for &tick in &self.y_ticks {
            let y = self.at_y(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 5.0,
                y + 4.0,
                tick_text(tick)
            );
        }
        for &tick in &self.panel.ticks {
            let x = self.at_x(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                tick_text(tick)
            );
        }
        let (middle, x_label) = (left + self.width / 2.0, escape(self.panel.x.label));
        let (y_middle, y_label) = (top + self.height / 2.0, escape(self.panel.y.label));
        let side = left - LEFT + 12.0;
        let _ = writeln!(
            svg,
            "<rect class=\"frame\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\n\
             <text class=\"quiet\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>\n\
             <text class=\"quiet\" x=\"{side:.1}\" y=\"{y_middle:.1}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {side:.1} {y_middle:.1})\">{y_label}</text>",
            self.width,
            self.height,
            bottom + 32.0
        );
        self.panel.lines.iter().for_each(|line| self.draw_line(svg, line));
    }

    fn draw_line(&self, svg: &mut String, line: &Line) {
        let Look { colour, mark, .. } = line.look;
        let at = |(x, spread): &(f64, Spread)| (self.at_x(*x), self.at_y(spread.median));
        let path: Vec<String> =
            line.points.iter().map(|point| format!("{:.1},{:.1}", at(point).0, at(point).1)).collect();
        let dashes = dashes(line.look);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes}/>",
            path.join(" ")
        );
        for point in &line.points {
            let ((x, y), spread) = (at(point), point.1);
            let (low, high) = (self.at_y(spread.min), self.at_y(spread.max));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>"
            );
            draw_mark(svg, mark, colour, x, y);
        }
    }
}

fn dashes(look: Look) -> &'static str {
    if look.dashed { " stroke-dasharray=\"5 3\"" } else { "" }
}

/// Draws a line of the legend.
fn draw_look(svg: &mut String, look: &Look, x: f64, y: f64) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 26.0,
        look.colour,
        dashes(*look),
        x + 32.0,
        y + 4.0,
        escape(look.label)
    );
    draw_mark(svg, look.mark, look.colour, x + 13.0, y);
}

fn draw_mark(svg: &mut String, mark: Mark, colour: &str, x: f64, y: f64) {
    let shape = |corners: &[(f64, f64)]| {
        let points: Vec<_> =
            corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx * MARK, y + dy * MARK)).collect();
        format!("<polygon points=\"{}\" fill=\"{colour}\"/>", points.join(" "))
    };
    let drawn = match mark {
        Mark::Circle => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{MARK}\" fill=\"{colour}\"/>"),
        Mark::Square => shape(&[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]),
        Mark::Triangle => shape(&[(0.0, -1.3), (1.2, 1.0), (-1.2, 1.0)]),
        Mark::Diamond => shape(&[(0.0, -1.4), (1.4, 0.0), (0.0, 1.4), (-1.4, 0.0)]),
    };
    svg.push_str(&drawn);
    svg.push('\n');
}

/// Formats a round number: 1,024, 0.5.
fn tick_text(tick: f64) -> String {
    if tick >= 1000.0 {
        let thousands = (tick / 1000.0).floor();
        return format!("{thousands:.0},{:03.0}", tick - 1000.0 * thousands);
    }
    // Removes what the binary representation adds to a decimal fraction.
    format!("{}", (tick * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = Look { label: "a < b & c", colour: "#123456", mark: Mark::Square, dashed: false };

    fn spread(median: f64) -> Spread {
        Spread { median, min: median, max: median }
    }

    fn panel(scale: Scale, points: Vec<(f64, Spread)>) -> Panel {
        Panel {
            title: "title".to_owned(),
            x: Axis { label: "branches", scale: Scale::Log },
            y: Axis { label: "µs", scale },
            ticks: vec![1.0, 16.0],
            lines: vec![Line { look: LOOK, points }],
        }
    }

    /// Returns the coordinates of the drawn lines.
    fn polylines(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let number = |text: &str| text.parse().unwrap();
        let point = |pair: &str| pair.split_once(',').map(|(x, y)| (number(x), number(y))).unwrap();
        svg.split("<polyline points=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().split(' ').map(point).collect())
            .collect()
    }

    #[test]
    fn equal_ratios_are_equally_far_apart_on_a_logarithmic_axis() {
        let points = vec![(1.0, spread(1.0)), (4.0, spread(10.0)), (16.0, spread(100.0))];
        let svg = draw("t", "n", &[panel(Scale::Log, points)], 1);
        let [line] = polylines(&svg).try_into().unwrap();
        let [(x0, y0), (x1, y1), (x2, y2)] = line.try_into().unwrap();
        assert!((x1 - x0 - (x2 - x1)).abs() < 0.2 && x1 > x0, "{svg}");
        assert!((y0 - y1 - (y1 - y2)).abs() < 0.2 && y1 < y0, "{svg}");
    }

    #[test]
    fn a_linear_axis_begins_at_zero() {
        let points = vec![(1.0, spread(2.0)), (16.0, spread(4.0))];
        let plot = panel(Scale::Linear, points);
        let svg = draw("t", "n", std::slice::from_ref(&plot), 1);
        let [line] = polylines(&svg).try_into().unwrap();
        let bottom = Plot::new(&plot, 0.0, HEADER + LEGEND, Range::of(&plot.lines)).at_y(0.0);
        // Twice the value is twice as high.
        assert!((bottom - line[1].1 - 2.0 * (bottom - line[0].1)).abs() < 0.3, "{svg}");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let range = |least, most| Range { least, most };
        assert_eq!(range(3.0, 240.0).axis(Scale::Log), (range(1.0, 1000.0), vec![1.0, 10.0, 100.0, 1000.0]));
        assert_eq!(range(2.0, 9.3).axis(Scale::Linear), (range(0.0, 10.0), vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
        assert_eq!(range(1.0, 1.0).axis(Scale::Log).0, range(1.0, 10.0));
        assert_eq!([0.04, 0.2, 1.9, 5.0, 6.0].map(step), [0.05, 0.2, 2.0, 5.0, 10.0]);
        assert_eq!([0.1 + 0.2, 16.0, 1024.0, 10_000.0].map(tick_text), ["0.3", "16", "1,024", "10,000"]);
    }

    #[test]
    fn a_chart_without_points_and_one_with_a_single_one_are_drawn() {
        for points in [vec![], vec![(3.0, spread(7.0))]] {
            let svg = draw("t", "n", &[panel(Scale::Log, points)], 1);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
        }
    }
}
