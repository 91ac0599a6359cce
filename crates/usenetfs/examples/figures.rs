//! Look-ups, and additions with deletions, in flat and managed directories of 1, 2, 4, ... articles (Wrapfs paper, figures 5 and 6).
//!
//! `figures DIR MAX`: DIR is an empty directory of the file system to measure. Everything is done through the vnode interface, in one thread,
//! without a mount: what a server does for a request, without the request. Files are empty.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hostfs::{HostFs, HostOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use usenetfs::{UsenetFs, Wanted};
use vnode::{Cx, Layer, Name, SetAttr, Vnode};

const EACH: u64 = 1000;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let dir = PathBuf::from(args.next().expect("DIR"));
    let max: u64 = args.next().and_then(|max| max.to_str()?.parse().ok()).expect("MAX");
    // What is missing is not remembered: each look-up is one of the file system's.
    let options = HostOptions { believed: Duration::ZERO, ..HostOptions::default() };
    let hash = Wanted { hash: true, limit: None };
    let forms = [("flat", None), ("digits", Some(Wanted::default())), ("hash", Some(hash))];
    let mut made: Vec<(&str, Arc<dyn Vnode>)> = Vec::new();
    for (name, wanted) in forms {
        let layer = UsenetFs::new(HostFs::open(&dir, options).unwrap(), wanted.unwrap_or_default());
        let cx = Cx::internal(0, 0);
        let group = layer.root().mkdir(&cx, Name::new(name.as_bytes()).unwrap(), 0o755).unwrap().vnode;
        if wanted.is_some() {
            group.setattr(&cx, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }, None).unwrap();
        }
        made.push((name, group));
    }
    println!("| articles | look-ups flat | digits | hash | additions and deletions flat | digits | hash |");
    println!("|---|---|---|---|---|---|---|");
    let (mut oldest, mut next) = ([1_u64; 3], [1_u64; 3]);
    let mut size = 1;
    while size <= max {
        let mut cells = [[Duration::ZERO; 3]; 2];
        for (i, (_, group)) in made.iter().enumerate() {
            while next[i] - oldest[i] < size {
                add(group, &mut next[i]);
            }
            cells[0][i] = time(|| look_up(group, oldest[i], size));
            cells[1][i] = time(|| {
                (0..EACH).for_each(|_| add(group, &mut next[i]));
                (0..EACH).for_each(|_| remove(group, &mut oldest[i]));
            });
        }
        let shown = cells.iter().flatten().map(|cell| format!(" {:.2} ms |", cell.as_secs_f64() * 1e3));
        println!("| {size} |{}", shown.collect::<String>());
        size *= 2;
    }
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

/// Random articles, the same in every run.
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
