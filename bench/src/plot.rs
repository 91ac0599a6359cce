//! The plot: for each operation a bar per contender, proportional to its share of the native rate.
//!
//! The scale is linear and starts at zero, so that twice the length is twice the speed. Every bar
//! is labelled with name and number; the legend only explains the two marks.

use std::fmt::Write as _;

use crate::contender::Kind;
use crate::operation::Operation;
use crate::report::number;
use crate::results::Report;

const COLUMNS: usize = 3;
const PANEL_WIDTH: f64 = 400.0;
const TITLE_HEIGHT: f64 = 26.0;
const BAR_STEP: f64 = 16.0;
const BAR_HEIGHT: f64 = 11.0;
const GAP: f64 = 16.0;
const MARGIN: f64 = 16.0;
const HEADER: f64 = 62.0;
/// Left end of the bars in a panel; the names are to the left of it.
const ORIGIN: f64 = 92.0;
/// Length of a bar of the native rate.
const NATIVE: f64 = 210.0;
/// Bars are cut at this multiple of the native rate.
const LONGEST: f64 = 1.2;

/// One panel.
struct Panel {
    title: String,
    note: String,
    bars: Vec<(Kind, Option<f64>)>,
    target: Option<f64>,
}

/// Draws the single operations with the fewest workers, and the workloads.
pub(crate) fn draw(report: &Report) -> String {
    let panels: Vec<Panel> = operation_panels(report).into_iter().chain(workload_panels(report)).collect();
    let bars = panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(0);
    let panel_height = TITLE_HEIGHT + BAR_STEP * bars as f64 + GAP;
    let width = 2.0 * MARGIN + PANEL_WIDTH * COLUMNS as f64;
    let height = HEADER + MARGIN + panel_height * panels.len().div_ceil(COLUMNS) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    header(&mut svg, report);
    for (i, panel) in panels.iter().enumerate() {
        let x = MARGIN + PANEL_WIDTH * (i % COLUMNS) as f64;
        let y = HEADER + panel_height * (i / COLUMNS) as f64;
        draw_panel(&mut svg, panel, x, y);
    }
    svg.push_str("</svg>\n");
    svg
}

fn operation_panels(report: &Report) -> Vec<Panel> {
    let threads = report.rows.iter().map(|row| row.threads).min();
    let of = |operation: Operation| {
        let rows: Vec<_> =
            report.rows.iter().filter(|row| row.operation == operation && Some(row.threads) == threads).collect();
        let native = rows.iter().find(|row| row.contender == Kind::Native)?.rate?;
        Some(Panel {
            title: operation.label().to_owned(),
            note: format!("native {} {}", number(native.median), operation.unit().name()),
            bars: (rows.iter())
                .filter(|row| row.contender != Kind::Native)
                .map(|row| (row.contender, row.ratio.map(|ratio| ratio.median)))
                .collect(),
            target: operation.target(),
        })
    };
    Operation::ALL.into_iter().filter(|&operation| operation != Operation::GetattrForced).filter_map(of).collect()
}

fn workload_panels(report: &Report) -> Vec<Panel> {
    let natives = report.workloads.iter().filter(|row| row.contender == Kind::Native);
    let of = |native: &crate::workload::WorkloadRow| {
        let rows =
            report.workloads.iter().filter(|row| row.workload == native.workload && row.contender != Kind::Native);
        Some(Panel {
            title: native.workload.label().to_owned(),
            note: format!("native {:.1} s", native.spread?.median),
            bars: rows.map(|row| (row.contender, row.ratio.map(|ratio| 1.0 / ratio.median))).collect(),
            target: Some(1.0 / native.target),
        })
    };
    natives.filter_map(of).collect()
}

fn header(svg: &mut String, report: &Report) {
    let (x, machine) = (MARGIN, &report.machine);
    let threads = report.rows.iter().map(|row| row.threads).min().unwrap_or(1);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">Share of the native file system's speed</text>\n\
         <text x=\"{x}\" y=\"43\" fill=\"#555\">longer is faster; dashed line: native; red mark: target for unionfs; \
         {threads} thread(s), median of {}; ext4 in memory, Linux {}, {}</text>",
        report.repetitions,
        escape(&machine.kernel),
        escape(&machine.processor),
    );
}

fn draw_panel(svg: &mut String, panel: &Panel, x: f64, y: f64) {
    let bottom = y + TITLE_HEIGHT + BAR_STEP * panel.bars.len() as f64 - 3.0;
    let (origin, top) = (x + ORIGIN, y + 16.0);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{:.1}\"><tspan font-weight=\"bold\">{}</tspan><tspan dx=\"8\" fill=\"#777\" font-size=\"10\">{}\
         </tspan></text>",
        y + 10.0,
        escape(&panel.title),
        escape(&panel.note)
    );
    let bars = || panel.bars.iter().zip(0_u32..).map(|(bar, i)| (*bar, y + TITLE_HEIGHT + BAR_STEP * f64::from(i)));
    for ((kind, ratio), y) in bars() {
        draw_bar(svg, kind, ratio, origin, y);
    }
    let line = |svg: &mut String, at: f64, style: &str| {
        let _ = writeln!(svg, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" {style}/>");
    };
    line(svg, origin, "stroke=\"#999\"");
    line(svg, origin + NATIVE, "stroke=\"#999\" stroke-dasharray=\"3 3\"");
    if let Some(target) = panel.target {
        line(svg, origin + NATIVE * target, "stroke=\"#c1121f\" stroke-width=\"1.5\" stroke-dasharray=\"5 2\"");
    }
    // Labels last: each has a white background, so that no line crosses it.
    for ((kind, ratio), y) in bars() {
        draw_label(svg, kind, ratio, origin, y);
    }
}

fn length(ratio: Option<f64>) -> f64 {
    NATIVE * ratio.unwrap_or(0.0).clamp(0.0, LONGEST)
}

fn weight(kind: Kind) -> &'static str {
    if kind.is_strata() { " font-weight=\"bold\"" } else { "" }
}

/// Draws the name and the bar.
fn draw_bar(svg: &mut String, kind: Kind, ratio: Option<f64>, origin: f64, y: f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\"{}>{}</text>\n\
         <rect x=\"{origin:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{}\"/>",
        origin - 5.0,
        y + BAR_HEIGHT - 2.0,
        weight(kind),
        kind.name(),
        length(ratio),
        colour(kind)
    );
}

/// Draws the number at the end of the bar.
fn draw_label(svg: &mut String, kind: Kind, ratio: Option<f64>, origin: f64, y: f64) {
    let label = ratio.map_or_else(|| "failed".to_owned(), |ratio| format!("{ratio:.2}"));
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\"{}>{label}</text>",
        origin + length(ratio) + 4.0,
        y + BAR_HEIGHT - 2.0,
        weight(kind)
    );
}

/// Returns the color of a contender's bar: one hue for Strata's file systems, another for the
/// peers.
pub(crate) fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Native => "#222222",
        Kind::Overlayfs => "#6c757d",
        Kind::Unionfs => "#1b6ca8",
        Kind::UnionfsDefaults | Kind::UnionfsRing | Kind::UnionfsDevice => "#4a94c9",
        Kind::Wrapfs | Kind::WrapfsDevice | Kind::Versionfs => "#8fc1e3",
        Kind::Mergerfs => "#e0a458",
        Kind::FuseOverlayfs => "#d08c60",
        Kind::UnionfsFuse => "#b5a16b",
    }
}

/// Escapes text for XML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
