//! Branches in memory, unions over them, and what must hold of a union at any time.

use super::config::{Access, Config};
use super::session::Session;
use super::tree::{ROOT, Tree, Who};
use super::view::{Numbers, Times, View, Walk, compare, compare_object, expected_object, view};
use memfs::{Dump, Faults, MemFs, MemOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use unionfs::{Branch, Delete, Metacopy, Mode, Options, Unionfs};
use vnode::Layer;

/// A set of branches in memory, with one plan of faults.
pub struct Bed {
    /// When which lower operation fails.
    pub faults: Faults,
    /// The branches, left to right.
    pub disks: Vec<(Access, Arc<MemFs>)>,
    /// How the union removes.
    pub delete: Delete,
    /// What the read-only branches must be for ever.
    read_only: Vec<Option<Dump>>,
}

/// A configuration made ready: branches to copy from, the model of their union, and the numbers its objects are seen with.
pub struct Start {
    /// To be forked for each run.
    pub bed: Bed,
    /// The union at the start, with every time known.
    pub tree: Tree,
    /// The numbers at the start.
    pub numbers: Numbers,
}

impl Start {
    /// Builds the branches and checks that their union is what the model says.
    pub fn new(config: &Config, delete: Delete, options: MemOptions) -> Self {
        let mut bed = Bed { faults: Faults::new(), disks: Vec::new(), delete, read_only: Vec::new() };
        for (access, program) in &config.branches {
            let disk = MemFs::with(options, &bed.faults);
            let mut session = Session::new(disk.clone());
            for op in program {
                session.run(Who::ROOT, op).unwrap_or_else(|e| panic!("{}: {op:?}: {e}", config.name));
            }
            bed.disks.push((*access, disk));
        }
        // Nothing of the start is lost in a crash.
        for (_, disk) in &bed.disks {
            disk.sync(&super::view::looker()).unwrap_or_else(|e| panic!("{}: sync: {e}", config.name));
        }
        bed.freeze();
        let mut tree = config.union_tree();
        let before = Tree { read_only: tree.read_only, ..super::config::merge(&config.branch_trees()) };
        let mut numbers = bed.prologue(config, before);
        // The first mount puts the identity log into the root of the leftmost branch.
        tree.nodes.entry(ROOT).and_modify(|root| root.mtime = None);
        let session = bed.mount().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        let times = if config.prologue.is_empty() { Times::All } else { Times::Files };
        let seen = check(&session, &tree, &mut numbers, times)
            .unwrap_or_else(|e| panic!("{}, after mounting:\n{e}", config.name));
        super::view::learn_times(&seen, &mut tree);
        drop(session);
        bed.check_branches().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        Self { bed, tree, numbers }
    }
}

impl Bed {
    /// What a configuration asks for before the test proper, in whiteout mode, step by step with the model.
    fn prologue(&self, config: &Config, mut tree: Tree) -> Numbers {
        let mut numbers = Numbers::default();
        if config.prologue.is_empty() {
            return numbers;
        }
        let whiteout = Bed { delete: Delete::Whiteout, ..self.share() };
        let mut session = whiteout.mount().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        for op in &config.prologue {
            let name = &config.name;
            session.run(Who::ROOT, op).unwrap_or_else(|e| panic!("{name}: prologue {op:?}: {e}"));
            tree.apply(Who::ROOT, op).unwrap_or_else(|e| panic!("{name}: prologue {op:?}: {e:?}"));
            check(&session, &tree, &mut numbers, Times::Files)
                .unwrap_or_else(|e| panic!("{name}: after the prologue's {op:?}:\n{e}"));
        }
        numbers.retain(&tree);
        numbers
    }

    /// Notes what the read-only branches hold.
    fn freeze(&mut self) {
        self.read_only = self.disks.iter().map(|(access, disk)| (*access == Access::Ro).then(|| disk.dump())).collect();
    }

    /// The same branches, by another name.
    fn share(&self) -> Self {
        Self {
            faults: self.faults.clone(),
            disks: self.disks.clone(),
            delete: self.delete,
            read_only: self.read_only.clone(),
        }
    }

    /// A copy of all, with a plan of its own.
    pub fn fork(&self) -> Self {
        let faults = Faults::new();
        let disks = self.disks.iter().map(|(access, disk)| (*access, disk.fork(&faults))).collect();
        Self { faults, disks, delete: self.delete, read_only: self.read_only.clone() }
    }

    /// What is found after a crash.
    pub fn recover(&self) -> Self {
        let faults = Faults::new();
        let disks = self.disks.iter().map(|(access, disk)| (*access, disk.recover(&faults))).collect();
        Self { faults, disks, delete: self.delete, read_only: self.read_only.clone() }
    }

    /// Mounts the union.
    pub fn mount(&self) -> Result<Session, String> {
        let branch = |(at, (access, disk)): (usize, &(Access, Arc<MemFs>))| Branch {
            layer: disk.clone() as Arc<dyn Layer>,
            path: format!("/branch/{at}").into(),
            mode: if *access == Access::Rw { Mode::ReadWrite } else { Mode::ReadOnly },
        };
        let branches = self.disks.iter().enumerate().map(branch).collect();
        // Of the files that these branches have, some are larger than this and some are not.
        let options = Options { delete: self.delete, metacopy: Metacopy::Above(30), ..Options::default() };
        let layer = Unionfs::new(branches, options).map_err(|e| format!("mounting: {e}"))?;
        Ok(Session::new(layer))
    }

    /// The read-only branches are as they were, and the writable ones hold only what the formats page names.
    pub fn check_branches(&self) -> Result<(), String> {
        for (at, (before, (_, disk))) in self.read_only.iter().zip(&self.disks).enumerate() {
            if let Some(before) = before
                && *before != disk.dump()
            {
                return Err(format!("the read-only branch {at} was changed:\n{:?}", self.dump()));
            }
        }
        Ok(())
    }

    /// Nothing is left on the writable branches that has no use in the union that is seen, as after a mount.
    pub fn check_litter(&self, seen: &View) -> Result<(), String> {
        let numbers: BTreeSet<u64> = seen.0.values().map(|object| object.ino).collect();
        for (at, (access, disk)) in self.disks.iter().enumerate() {
            if *access == Access::Rw {
                let lies = view(&*disk.calm(), Walk::Branch).map_err(|e| format!("branch {at}: {e}"))?;
                litter(&lies, &numbers).map_err(|e| format!("branch {at}: {e}"))?;
            }
        }
        Ok(())
    }

    /// What lies in the branches, to be printed.
    pub fn dump(&self) -> Vec<View> {
        self.disks.iter().map(|(_, disk)| view(&*disk.calm(), Walk::Branch).unwrap_or_default()).collect()
    }
}

fn litter(lies: &View, numbers: &BTreeSet<u64>) -> Result<(), String> {
    for (path, object) in &lies.0 {
        let names: Vec<&[u8]> = path.components().collect();
        match names.as_slice() {
            [b".wh..wh.work", _, ..] => return Err(format!("unfinished work: /{path:?} {object:?}")),
            [b".wh..wh.links", name] => {
                let number = std::str::from_utf8(name).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                if !number.is_some_and(|number| numbers.contains(&number)) {
                    return Err(format!("an index entry of nothing: /{path:?} {object:?}"));
                }
            }
            [b".wh..wh.work" | b".wh..wh.links" | b".wh..wh.ident" | b".wh..wh.moved" | b".wh..wh.metacopies"] => {}
            [.., last] if last.starts_with(b".wh..wh.") => {
                let known = [&b".wh..wh..opq"[..], b".wh..wh..redirect", b".wh..wh.redirect"].contains(last)
                    || last.starts_with(b".wh..wh.meta.")
                    || last.strip_prefix(b".wh..wh.l.").is_some_and(|hex| hex.len() == 32);
                if !known {
                    return Err(format!("of no known kind: /{path:?} {object:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The union looks as the model says, and so does every open file. Answers the view.
pub fn check(session: &Session, tree: &Tree, numbers: &mut Numbers, times: Times) -> Result<View, String> {
    // With faults there are so many runs that the cookies are left to the tests without.
    let walk = if times == Times::All { Walk::User } else { Walk::Quick };
    let seen = view(&*session.layer, walk)?;
    compare(&seen, tree, numbers, times)?;
    for slot in 0..session.slots.len() {
        let open = tree.slots[slot];
        match (session.look_at(slot), open) {
            (None, None) => {}
            (Some(got), Some(open)) => {
                let want = expected_object(tree, open.id, tree.nlink(open.id));
                let got = got.map_err(|e| format!("open file {slot}: {e}"))?;
                compare_object(&got, &want, numbers, times).map_err(|e| format!("open file {slot}: {e}"))?;
            }
            (got, want) => {
                return Err(format!("open file {slot}: is open {}, should {}", got.is_some(), want.is_some()));
            }
        }
    }
    Ok(seen)
}
