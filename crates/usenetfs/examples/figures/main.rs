//! Measures lookups, and additions with deletions, in flat and managed directories of 1, 2, 4, ...
//! articles (Wrapfs paper, figures 5 and 6).
//!
//! Usage: `figures FILE.svg MAX LABEL=DIR...`. Each DIR is the root of an empty file system. It is
//! remounted before the lookups to empty the kernel's dentry cache. The program calls the vnode
//! interface in one thread, without a Strata mount, so the figures exclude the cost of FUSE
//! requests. Files are empty.
#![allow(clippy::disallowed_methods, reason = "it makes the directories that it works on")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plot;

use hostfs::{HostFs, HostOptions};
use plot::Series;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use usenetfs::{SchemeChoice, UsenetFs};
use vnode::{Cx, Layer, Name, SetAttr, Vnode};

/// Number of timed lookups, additions and deletions.
const EACH: u64 = 1000;
/// Time limit for one size, including the time to fill the directory. Larger sizes are then
/// skipped.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const FORMS: [(&str, Option<SchemeChoice>); 3] = [
    ("flat", None),
    ("digits", Some(SchemeChoice { hash: false, limit: None })),
    ("hash", Some(SchemeChoice { hash: true, limit: None })),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, max, disks @ ..] = args.as_slice() else { panic!("figures FILE.svg MAX LABEL=DIR...") };
    let max: u64 = max.parse().expect("MAX");
    let mut all = Vec::new();
    for disk in disks {
        let (label, dir) = disk.split_once('=').expect("LABEL=DIR");
        let of_disk: Vec<Series> = FORMS.iter().map(|form| measure(label, Path::new(dir), form, max)).collect();
        println!("{}", table(label, &of_disk));
        all.extend(of_disk);
    }
    std::fs::write(file, plot::draw(&all)).expect("the plot");
}

fn measure(label: &str, dir: &Path, (form, wanted): &(&str, Option<SchemeChoice>), max: u64) -> Series {
    // The host layer does not cache lookups either.
    let options = HostOptions { name_cache_ttl: Duration::ZERO, ..HostOptions::default() };
    let layer = UsenetFs::new(HostFs::open(dir, options).unwrap(), wanted.unwrap_or_default());
    let cx = Cx::internal(0, 0);
    let group = layer.root().mkdir(&cx, Name::new(form.as_bytes()).unwrap(), 0o755).unwrap().vnode;
    if wanted.is_some() {
        group.setattr(&cx, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }, None).unwrap();
    }
    let mut series = Series { disk: label.to_owned(), form: (*form).to_owned(), points: Vec::new() };
    let (mut oldest, mut next, mut size) = (1, 1, 1);
    while size <= max {
        let began = Instant::now();
        while next - oldest < size {
            add(&group, &mut next);
        }
        assert!(Command::new("mount").args(["-o", "remount"]).arg(dir).status().unwrap().success());
        let look_ups = time(|| look_up(&group, oldest, size));
        let changes = time(|| {
            (0..EACH).for_each(|_| add(&group, &mut next));
            (0..EACH).for_each(|_| remove(&group, &mut oldest));
        });
        series.points.push((size, [look_ups, changes]));
        if began.elapsed() > TIME_LIMIT {
            break;
        }
        size *= 2;
    }
    series
}

/// Returns the two figures of one file system as a table, in milliseconds.
fn table(label: &str, all: &[Series]) -> String {
    let forms = |figure: &str| all.iter().map(|series| format!(" {figure} {} |", series.form)).collect::<String>();
    let mut text =
        format!("{label}\n\n| articles |{}{}\n|{}\n", forms("lookups,"), forms("changes,"), "---|".repeat(7));
    let longest = all.iter().max_by_key(|series| series.points.len()).map_or(&[][..], |series| &series.points);
    for (i, (size, _)) in longest.iter().enumerate() {
        let cell = |figure: usize, series: &Series| match series.points.get(i) {
            Some((_, times)) => format!(" {:.1} |", times[figure].as_secs_f64() * 1e3),
            None => " – |".to_owned(),
        };
        let cells: String = (0..2).flat_map(|figure| all.iter().map(move |series| cell(figure, series))).collect();
        text += &format!("| {size} |{cells}\n");
    }
    text
}

fn time(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}

fn add(group: &Arc<dyn Vnode>, next: &mut u64) {
    let cx = Cx::internal(0, 0);
    group.mknod(&cx, Name::new(next.to_string().as_bytes()).unwrap(), 0o100_644, 0).unwrap();
    *next += 1;
}

fn remove(group: &Arc<dyn Vnode>, oldest: &mut u64) {
    group.unlink(&Cx::internal(0, 0), Name::new(oldest.to_string().as_bytes()).unwrap()).unwrap();
    *oldest += 1;
}

/// Looks up random articles; the sequence is the same in every run.
fn look_up(group: &Arc<dyn Vnode>, oldest: u64, size: u64) {
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..EACH {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let name = (oldest + random % size).to_string();
        assert!(group.lookup(&Cx::internal(0, 0), Name::new(name.as_bytes()).unwrap()).unwrap().is_some());
    }
}
