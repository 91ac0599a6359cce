//! Random operations.

use super::history::{Mode, Model};
use testkit::Rng;
use vnode::Kind;

/// A name in a directory, by the directory's number.
pub type Path = (u64, Vec<u8>);

/// How an open file is reached: by a name, or through another open file (`/proc/self/fd`).
#[derive(Clone, Debug)]
pub enum Target {
    Path(Path),
    Slot(usize),
}

#[derive(Clone, Debug)]
pub enum Op {
    Create(Path, u32),
    Tmpfile(u64),
    Mkdir(Path),
    Symlink(Path, Vec<u8>),
    Mkfifo(Path),
    Open(Target, u32),
    Write(usize, u64, Vec<u8>),
    Read(usize),
    Close(usize),
    Fsync(usize),
    Truncate(Target, u64),
    Chmod(Target, u32),
    Chown(Target, u32, u32),
    Touch(Target),
    SetXattr(Target, Vec<u8>, Vec<u8>, bool),
    RemoveXattr(Target, Vec<u8>),
    Fallocate(usize, u32, u64, u64),
    Copy(usize, u64, usize, u64, u64),
    Reflink(usize, usize),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, bool, bool),
    Link(Target, Path),
    Restart,
    Kill,
}

impl Op {
    /// Returns the operation for a log: names as text, long values by their beginning and length.
    pub fn shown(&self) -> String {
        let text = format!("{self:?}");
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('[') {
            let (list, after) = after.split_once(']').unwrap();
            let bytes: Vec<u8> = list.split(", ").filter_map(|byte| byte.parse().ok()).collect();
            out += before;
            out += &format!("\"{}\"{}", bytes[..bytes.len().min(6)].escape_ascii(), bytes.len());
            rest = after;
        }
        out + rest
    }
}

const SIZES: [usize; 9] = [0, 1, 10, 100, 4095, 4096, 4097, 9000, 13_000];

fn long() -> Vec<u8> {
    vec![b'L'; 255]
}

fn name(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0..=2 => b"a".to_vec(),
        3..=5 => b"b".to_vec(),
        6 | 7 => b"c".to_vec(),
        8 => b"a;f1".to_vec(),
        9 => b"a;i".to_vec(),
        10 => long(),
        _ => b";links".to_vec(),
    }
}

fn any_path(model: &Model, rng: &mut Rng) -> Path {
    (rng.pick(&model.dirs()), name(rng))
}

/// Returns a name that exists, if possible one of this type.
fn path_of(model: &Model, rng: &mut Rng, is_dir: bool) -> Path {
    let mut all = Vec::new();
    for dir in model.dirs() {
        for (name, child) in &model.node(dir).entries {
            if (model.node(*child).kind == Kind::Directory) == is_dir {
                all.push((dir, name.clone()));
            }
        }
    }
    if all.is_empty() || rng.chance(3) { any_path(model, rng) } else { rng.pick(&all) }
}

fn target(model: &Model, rng: &mut Rng) -> Target {
    let slots: Vec<_> = model.opens.keys().copied().collect();
    if !slots.is_empty() && rng.chance(30) {
        Target::Slot(rng.pick(&slots))
    } else {
        Target::Path(path_of(model, rng, false))
    }
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let seed = rng.below(4);
    (0..len).map(|i| u8::try_from((i / 7 + seed * 31) % 251).unwrap()).collect()
}

fn offset(rng: &mut Rng) -> u64 {
    rng.pick(&SIZES) as u64
}

/// Returns the next operation.
pub fn next(model: &Model, rng: &mut Rng) -> Op {
    let slots: Vec<_> = model.opens.keys().copied().collect();
    if !slots.is_empty() && rng.chance(55) {
        return on_open(model, rng, &slots);
    }
    match rng.below(100) {
        0..=13 => Op::Create(any_path(model, rng), rng.pick(&[1, 2, 2, 2 | 0o2000])),
        14 | 15 => Op::Tmpfile(rng.pick(&model.dirs())),
        16..=20 => Op::Mkdir(any_path(model, rng)),
        21 | 22 => Op::Symlink(any_path(model, rng), b"to".to_vec()),
        23 => Op::Mkfifo(any_path(model, rng)),
        24..=44 => {
            let flags = [0, 1, 2, 2, 1 | 0o1000, 2 | 0o1000, 2 | 0o1000, 1 | 0o2000, 2 | 0o2000];
            Op::Open(target(model, rng), rng.pick(&flags))
        }
        45..=48 => Op::Truncate(target(model, rng), offset(rng)),
        49..=53 => Op::Chmod(target(model, rng), rng.pick(&[0o644, 0o600, 0o4755])),
        54..=56 => Op::Chown(target(model, rng), rng.pick(&[0, 1000, 1001]), rng.pick(&[0, 100])),
        57 => Op::Touch(target(model, rng)),
        58..=61 => {
            let value = rng.below(3).to_string().into_bytes();
            Op::SetXattr(target(model, rng), b"user.x".to_vec(), value, rng.chance(30))
        }
        62 | 63 => Op::RemoveXattr(target(model, rng), b"user.x".to_vec()),
        64..=73 => Op::Unlink(path_of(model, rng, false)),
        74..=77 => Op::Rmdir(path_of(model, rng, true)),
        78..=89 => {
            let is_dir = rng.chance(25);
            let from = path_of(model, rng, is_dir);
            let to = if rng.chance(50) { path_of(model, rng, is_dir) } else { any_path(model, rng) };
            Op::Rename(from, to, rng.chance(20), rng.chance(10))
        }
        90..=95 => Op::Link(target(model, rng), any_path(model, rng)),
        96 | 97 => Op::Restart,
        _ => Op::Kill,
    }
}

fn on_open(model: &Model, rng: &mut Rng, slots: &[usize]) -> Op {
    let slot = rng.pick(slots);
    let writers: Vec<_> = slots.iter().copied().filter(|slot| model.opens[slot].mode != Mode::Reads).collect();
    let writer = if writers.is_empty() || rng.chance(3) { slot } else { rng.pick(&writers) };
    let node = model.node(model.opens[&writer].ino);
    match rng.below(100) {
        0..=27 => {
            let len = rng.pick(&SIZES);
            Op::Write(writer, offset(rng), bytes(rng, len))
        }
        28..=41 => {
            // Bytes that are there already, or were before a truncation.
            let from = node.old.as_ref().unwrap_or(&node.data);
            let at = node.data.len() * usize::from(node.old.is_some());
            let start = if node.old.is_none() { rng.below(from.len() + 1) } else { at };
            let len = if rng.chance(50) { from.len() } else { rng.below(from.len() + 1) };
            let mut data = from[start..from.len().min(start + len)].to_vec();
            if rng.chance(15) {
                data.extend_from_slice(b"more");
            }
            Op::Write(writer, start as u64, data)
        }
        42..=47 => Op::Read(slot),
        48..=67 => Op::Close(slot),
        68..=71 => Op::Fsync(writer),
        72..=77 => Op::Truncate(Target::Slot(writer), if rng.chance(40) { 0 } else { offset(rng) }),
        78..=87 => Op::Fallocate(writer, rng.pick(&[0, 1, 3, 3, 0x10, 0x11, 0x08]), offset(rng), offset(rng)),
        88..=94 => Op::Copy(writer, offset(rng), slot, offset(rng), offset(rng)),
        _ => Op::Reflink(writer, slot),
    }
}
