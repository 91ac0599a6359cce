//! Bar charts as in the paper on Versionfs: for each system its elapsed time, the processor time,
//! and the space on a scale of its own at the right.

use std::fmt::Write as _;

use crate::plot::escape;
use crate::results::Spread;

const MARGIN: f64 = 16.0;
const HEADER: f64 = 72.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 58.0;
const TOP: f64 = 28.0;
/// Room for the names under a panel, which are rotated.
const BOTTOM: f64 = 84.0;
const BAR: f64 = 13.0;
const GAP: f64 = 12.0;

/// Colours for light and dark pages.
const STYLE: &str = "\
<style>
.page { fill: #ffffff; }
text { fill: #222222; }
.quiet { fill: #555555; }
.frame { fill: none; stroke: #888888; }
.grid { stroke: #dddddd; }
.elapsed { fill: #4a94c9; }
.user { fill: #e0a458; }
.system { fill: #c1662f; }
.space { fill: #444444; }
.range { stroke: #222222; }
.goal { stroke: #c1121f; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  .page { fill: #161b22; }
  text { fill: #e6edf3; }
  .quiet { fill: #9aa7b4; }
  .frame { stroke: #8b98a5; }
  .grid { stroke: #30363d; }
  .space { fill: #b8c1cb; }
  .range { stroke: #e6edf3; }
}
</style>
";

/// The bars of one system.
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) elapsed: Option<Spread>,
    /// Goal for the elapsed time.
    pub(crate) goal: Option<f64>,
    /// User and system time.
    pub(crate) processor: Option<(f64, f64)>,
    pub(crate) space: Option<f64>,
}

/// One panel.
pub(crate) struct Panel {
    pub(crate) title: String,
    /// Unit of the times.
    pub(crate) time: &'static str,
    /// Unit of the space.
    pub(crate) space: &'static str,
    pub(crate) groups: Vec<Group>,
}

impl Group {
    /// Returns the bars on the left scale.
    fn times(&self) -> usize {
        usize::from(self.elapsed.is_some()) + usize::from(self.processor.is_some())
    }
}

impl Panel {
    fn has(&self, has: impl Fn(&Group) -> bool) -> bool {
        self.groups.iter().any(has)
    }

    /// Returns the number of bars side by side for each system.
    fn bars(&self) -> usize {
        let times = self.groups.iter().map(Group::times).max().unwrap_or(0);
        times + usize::from(self.has(|group| group.space.is_some()))
    }

    fn group_width(&self) -> f64 {
        // Names need some room even if there is one bar.
        (BAR * self.bars() as f64 + GAP).max(30.0)
    }

    fn width(&self) -> f64 {
        LEFT + RIGHT + self.group_width() * self.groups.len() as f64 + GAP
    }

    fn most_time(&self) -> f64 {
        let elapsed = self.groups.iter().filter_map(|group| Some(group.elapsed?.max));
        let goals = self.groups.iter().filter_map(|group| group.goal);
        let processor = self.groups.iter().filter_map(|group| group.processor.map(|(user, system)| user + system));
        elapsed.chain(goals).chain(processor).fold(0.0, f64::max)
    }

    fn most_space(&self) -> f64 {
        self.groups.iter().filter_map(|group| group.space).fold(0.0, f64::max)
    }
}

/// Draws the panels side by side.
pub(crate) fn draw(title: &str, note: &str, panels: &[Panel]) -> String {
    let width = panels.iter().map(Panel::width).sum::<f64>().max(560.0) + 2.0 * MARGIN;
    let height = HEADER + HEIGHT + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" width=\"{width:.0}\" \
         height=\"{height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\">\n\
         {STYLE}<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{MARGIN}\" y=\"42\" class=\"quiet\">{}</text>\n",
        escape(title),
        escape(note)
    );
    draw_legend(&mut svg, panels);
    let mut x = MARGIN;
    for panel in panels {
        draw_panel(&mut svg, panel, x);
        x += panel.width();
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_legend(svg: &mut String, panels: &[Panel]) {
    let any = |has: fn(&Group) -> bool| panels.iter().any(|panel| panel.has(has));
    let entries = [
        ("elapsed", "elapsed", any(|group| group.elapsed.is_some())),
        ("user", "user", any(|group| group.processor.is_some())),
        ("system", "system", any(|group| group.processor.is_some())),
        ("space", "space (right scale)", any(|group| group.space.is_some())),
    ];
    let mut x = MARGIN;
    for (class, label, _) in entries.into_iter().filter(|entry| entry.2) {
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"52\" width=\"10\" height=\"10\"/>\n\
             <text x=\"{:.1}\" y=\"61\">{label}</text>",
            x + 14.0
        );
        x += 80.0;
    }
    if any(|group| group.goal.is_some()) {
        let x = x + 60.0;
        let _ = writeln!(
            svg,
            "<line class=\"goal\" x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"57\" y2=\"57\"/>\n<text x=\"{:.1}\" y=\"61\">goal</text>",
            x + 12.0,
            x + 16.0
        );
    }
}

/// Returns a scale's labelled values, from zero.
fn ticks(most: f64) -> Vec<f64> {
    if most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| step * 5.0 >= most * 0.999_999);
    let step = step.unwrap_or(10.0 * power);
    (0..=(most / step * 0.999_999).ceil() as u32).map(|n| f64::from(n) * step).collect()
}

/// Formats a value of a scale.
fn tick_text(value: f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

fn draw_panel(svg: &mut String, panel: &Panel, x: f64) {
    let (left, top) = (x + LEFT, HEADER + TOP);
    let (right, bottom) = (x + panel.width() - RIGHT, HEADER + HEIGHT - BOTTOM);
    let title = escape(&panel.title);
    let _ = writeln!(svg, "<text x=\"{left:.1}\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", top - 9.0);
    let times = ticks(panel.most_time());
    let spaces = ticks(panel.most_space());
    let at = |value: f64, ticks: &[f64]| bottom - (bottom - top) * value / ticks.last().copied().unwrap_or(1.0);
    if panel.has(|group| group.times() > 0) {
        for &tick in &times {
            let y = at(tick, &times);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 5.0,
                y + 4.0,
                tick_text(tick)
            );
        }
        draw_unit(svg, panel.time, x + 10.0, top);
    }
    if panel.has(|group| group.space.is_some()) {
        for &tick in &spaces {
            let y = at(tick, &spaces);
            let text = tick_text(tick);
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>", right + 5.0, y + 4.0);
        }
        draw_unit(svg, panel.space, right + RIGHT - 8.0, top);
    }
    for (n, group) in panel.groups.iter().enumerate() {
        let start = left + GAP + panel.group_width() * n as f64;
        draw_group(svg, group, (start, bottom), |value| at(value, &times), |value| at(value, &spaces));
    }
    let _ = writeln!(
        svg,
        "<rect class=\"frame\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        right - left,
        bottom - top
    );
}

/// Draws the unit of a scale along it.
fn draw_unit(svg: &mut String, unit: &str, x: f64, top: f64) {
    let y = top + (HEIGHT - TOP - BOTTOM) / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"quiet\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 {x:.1} {y:.1})\">\
         {}</text>",
        escape(unit)
    );
}

fn draw_group(
    svg: &mut String,
    group: &Group,
    (start, bottom): (f64, f64),
    at_time: impl Fn(f64) -> f64,
    at_space: impl Fn(f64) -> f64,
) {
    let mut x = start;
    let bar = |svg: &mut String, class: &str, x: f64, from: f64, to: f64| {
        let (width, height) = (BAR - 1.0, (from - to).max(0.0));
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{to:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    };
    let line = |svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)| {
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        );
    };
    if let Some(elapsed) = group.elapsed {
        bar(svg, "elapsed", x, bottom, at_time(elapsed.median));
        let middle = x + (BAR - 1.0) / 2.0;
        line(svg, "range", (middle, at_time(elapsed.min)), (middle, at_time(elapsed.max)));
        if let Some(goal) = group.goal {
            line(svg, "goal", (x - 2.0, at_time(goal)), (x + BAR + 1.0, at_time(goal)));
        }
        x += BAR;
    }
    if let Some((user, system)) = group.processor {
        bar(svg, "user", x, bottom, at_time(user));
        bar(svg, "system", x, at_time(user), at_time(user + system));
        x += BAR;
    }
    if let Some(space) = group.space {
        bar(svg, "space", x, bottom, at_space(space));
        x += BAR;
    }
    let (middle, below) = (f64::midpoint(start, x) + 3.0, bottom + 12.0);
    let _ = writeln!(
        svg,
        "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"end\" transform=\"rotate(-32 {middle:.1} {below:.1})\">{}</text>",
        escape(&group.label)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_begin_at_zero_and_hold_the_greatest_value() {
        assert_eq!(ticks(9.3), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        assert_eq!(tick_text(0.1 + 0.2), "0.3");
    }

    #[test]
    fn bars_are_proportional_and_what_is_missing_is_left_out() {
        let elapsed = Some(Spread { median: 5.0, min: 4.0, max: 10.0 });
        let full =
            Group { label: "a<b".to_owned(), elapsed, goal: Some(2.5), processor: Some((1.0, 2.0)), space: None };
        let empty = Group { label: "none".to_owned(), elapsed: None, goal: None, processor: None, space: None };
        let panel = Panel { title: "t".to_owned(), time: "s", space: "MB", groups: vec![full, empty] };
        let svg = draw("title", "note", &[panel]);
        let heights: Vec<f64> = ["elapsed", "user", "system"]
            .iter()
            .map(|class| {
                let start = format!("<rect class=\"{class}\"");
                let bars = svg.split(&start).filter(|bar| bar.contains("width=\"12.0\""));
                let bar = bars.last().unwrap();
                bar.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
            })
            .collect();
        let all = HEIGHT - TOP - BOTTOM;
        for (is, should) in heights.iter().zip([0.5, 0.1, 0.2]) {
            assert!((is - all * should).abs() < 0.2, "{heights:?} {svg}");
        }
        assert!(svg.contains("a&lt;b") && !svg.contains("space (right") && !svg.contains("NaN"), "{svg}");
    }
}
