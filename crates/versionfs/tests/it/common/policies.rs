//! A history whose every version is known, over memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, reason = "tests")]

use memfs::MemFs;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use testkit::Rng;
use versionfs::{Options, PolicyHost, PolicySource, VersionFs};
use versionpolicy::{AdminConfig, External, UserConfig};
use versionset::{
    Blocks, Condition, Content, Head, Header, Index, Letter, Members, Plain, STORE, Source, Stamp, StoreFiles,
    index_name, open_version, stem_of,
};
use vnode::{Cx, Layer, Name, OpenFlags, Time, Vnode};

static CLOCK: AtomicI64 = AtomicI64::new(1_700_000_000);

/// A clock that advances by an hour each time.
pub(crate) fn clock() -> Time {
    Time { sec: CLOCK.fetch_add(3600, Ordering::Relaxed), nsec: 0 }
}

#[derive(Debug)]
pub(crate) struct Host(pub(crate) String, pub(crate) Option<&'static str>);

struct Nobody;

impl versionpolicy::Accounts for Nobody {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }
    fn group(&self, _: &str) -> Option<u32> {
        None
    }
}

impl PolicyHost for Host {
    fn admin(&self, _: &Path) -> Result<Option<AdminConfig>, String> {
        let parsed = AdminConfig::parse("test.conf", self.0.as_bytes(), &Nobody);
        parsed.config.map(Some).ok_or_else(|| format!("{:?}", parsed.problems))
    }
    fn user(&self, _: u32, _: &dyn Fn(&[u8]) -> Option<versionfs::Below>) -> Option<UserConfig> {
        None
    }
    fn groups(&self, _: u32) -> Vec<u32> {
        Vec::new()
    }
    fn utc_offset(&self) -> i32 {
        0
    }
    fn decide(&self, _: &External, request: &str) -> Option<Vec<u8>> {
        assert!(request.contains("\"versions\""));
        self.1.map(|answer| answer.as_bytes().to_vec())
    }
    fn mount_point(&self) -> Vec<u8> {
        Vec::new()
    }
}

pub(crate) fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

pub(crate) fn mount_with(lower: &Arc<MemFs>, config: &str, answer: Option<&'static str>) -> Arc<VersionFs> {
    let source = PolicySource { host: Some(Arc::new(Host(config.to_owned(), answer))), ..PolicySource::default() };
    let options = Options { clock, ..Options::default() };
    VersionFs::with_policies(lower.clone(), options, source).unwrap()
}

pub(crate) fn mount(lower: &Arc<MemFs>, config: &str) -> Arc<VersionFs> {
    mount_with(lower, config, None)
}

pub(crate) fn name(name: &[u8]) -> Name<'_> {
    Name::new(name).unwrap()
}

pub(crate) fn control(layer: &VersionFs, command: &str) -> vnode::Result<String> {
    layer.root().control(&cx(), command, b"").map(|text| String::from_utf8(text).unwrap())
}

pub(crate) fn store(lower: &Arc<MemFs>) -> Option<Arc<dyn Vnode>> {
    lower.root().lookup(&cx(), name(STORE)).unwrap().map(|entry| entry.vnode)
}

pub(crate) fn store_names(lower: &Arc<MemFs>) -> Vec<String> {
    let mut names = Vec::new();
    let Some(store) = store(lower) else { return names };
    store
        .readdir(&cx(), 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
            true
        })
        .unwrap();
    names.sort();
    names
}

pub(crate) fn index(lower: &Arc<MemFs>, file: &[u8]) -> Index {
    let Some(store) = store(lower) else { return Index::default() };
    let Some(entry) = store.lookup(&cx(), name(&index_name(&stem_of(file)))).unwrap() else { return Index::default() };
    let bytes = read_all(&*entry.vnode);
    let (index, condition) = Index::parse(&bytes);
    assert_eq!(condition, Condition::Complete);
    index
}

pub(crate) fn read_all(vnode: &dyn Vnode) -> Vec<u8> {
    try_read_all(vnode).unwrap()
}

pub(crate) fn try_read_all(vnode: &dyn Vnode) -> vnode::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(vnode.getattr(&cx())?.size).unwrap()];
    let file = vnode.open(&cx(), OpenFlags::RDONLY)?;
    let len = versionset::read_full(&cx(), &*file, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}

pub(crate) fn head(layer: &dyn Layer, file: &[u8]) -> Option<Vec<u8>> {
    layer.root().lookup(&cx(), name(file)).unwrap().map(|entry| read_all(&*entry.vnode))
}

/// Reads the block store as another program would.
#[derive(Debug)]
struct InBlocks(Arc<MemFs>);

#[derive(Debug)]
struct InBlock(Vec<u8>);

impl Content for InBlock {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, _: &Cx<'_>, out: &mut [u8], offset: u64) -> vnode::Result<usize> {
        let from = self.0.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn plain(&self) -> Option<&Arc<dyn vnode::OpenFile>> {
        None
    }
}

fn block_store(lower: &Arc<MemFs>) -> Option<Arc<blockstore::BlockStore>> {
    let dir = store(lower)?.lookup(&cx(), name(b";blocks")).unwrap()?.vnode;
    let options = blockstore::Options { read_only: true, ..blockstore::Options::default() };
    Some(blockstore::BlockStore::open(&cx(), dir, options).unwrap())
}

/// Returns how many versions are in the block store.
pub(crate) fn block_count(lower: &Arc<MemFs>) -> usize {
    block_store(lower).map_or(0, |store| store.ids(None, usize::MAX).len())
}

impl Blocks for InBlocks {
    fn open(&self, cx: &Cx<'_>, id: u64) -> vnode::Result<(Header, Arc<dyn Content>)> {
        let version = block_store(&self.0).unwrap().version(cx, blockstore::RecipeId(id))?;
        let mut bytes = vec![0; usize::try_from(version.size()).unwrap()];
        assert_eq!(version.read_at(cx, &mut bytes, 0)?, bytes.len());
        Ok((Header::decode(version.header()).unwrap(), Arc::new(InBlock(bytes))))
    }
}

/// Reconstructs a version from the lower files.
pub(crate) fn version(lower: &Arc<MemFs>, file: &[u8], number: u64) -> vnode::Result<Vec<u8>> {
    let index = index(lower, file);
    let head = lower.root().lookup(&cx(), name(file)).unwrap().map(|entry| {
        let file = entry.vnode.open(&cx(), OpenFlags::RDONLY).unwrap();
        Head { content: Arc::new(Plain::new(file, entry.attr.size)), stamp: Some(Stamp::of(&entry.attr)) }
    });
    let blocks: Option<Arc<dyn Blocks>> = Some(Arc::new(InBlocks(Arc::clone(lower))));
    let files = StoreFiles { dir: store(lower).unwrap(), stem: stem_of(file), head, blocks };
    let source: Arc<dyn Source> = Arc::new(files);
    let content = open_version(&cx(), &source, Members::of(&index, number).ok_or(vnode::Errno::NOENT)?)?;
    let mut bytes = vec![0; usize::try_from(content.size()).unwrap()];
    assert_eq!(content.read_at(&cx(), &mut bytes, 0)?, bytes.len());
    Ok(bytes)
}

/// The contents of the versions by number.
pub(crate) type Expected = BTreeMap<u64, Vec<u8>>;

/// Checks every version that the index lists. Returns how many.
pub(crate) fn verify(lower: &Arc<MemFs>, file: &[u8], expected: &Expected) -> usize {
    let index = index(lower, file);
    for (number, listed) in &index.versions {
        if matches!(listed.letter, Letter::Directory | Letter::Special | Letter::Renamed) {
            continue;
        }
        let bytes = version(lower, file, *number);
        let names = store_names(lower);
        assert!(bytes.as_ref() == Ok(&expected[number]), "version {number} {listed:?}: {:?} {names:?}", bytes.is_ok());
    }
    index.versions.len()
}

/// A file that changes at random, and what its versions must be.
pub(crate) struct Story {
    pub(crate) random: Rng,
    pub(crate) file: &'static [u8],
    pub(crate) expected: Expected,
}

impl Story {
    pub(crate) fn new(seed: u64, file: &'static [u8]) -> Self {
        Self { random: Rng::new(seed), file, expected: Expected::new() }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let text = self.random.below(2) == 0;
        let line = self.random.below(1000);
        let byte = |at: u64, random: &mut Rng| {
            if text { format!("line {line} {at}\n").into_bytes()[(at % 8) as usize] } else { random.below(256) as u8 }
        };
        (0..len).map(|at| byte(at, &mut self.random)).collect()
    }

    /// Changes the file once, in a session of its own.
    pub(crate) fn step(&mut self, layer: &VersionFs, lower: &Arc<MemFs>) {
        let root = layer.root();
        let before = head(layer, self.file);
        let Some(old) = before.clone() else {
            let len = self.random.below(40_000);
            let bytes = self.bytes(len);
            let (_, file) = root.create(&cx(), name(self.file), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&cx(), &bytes, 0).unwrap();
            return;
        };
        let next = index(lower, self.file).next();
        let entry = root.lookup(&cx(), name(self.file)).unwrap().unwrap();
        match self.random.below(10) {
            0 => root.unlink(&cx(), name(self.file)).unwrap(),
            1 => {
                let size = self.random.below(old.len() as u64 + 5000);
                let set = vnode::SetAttr { size: Some(size), ..vnode::SetAttr::default() };
                entry.vnode.setattr(&cx(), &set, None).unwrap();
            }
            2 => {
                let mode = Some(0o600 + self.random.below(64));
                entry.vnode.setattr(&cx(), &vnode::SetAttr { mode, ..vnode::SetAttr::default() }, None).unwrap();
            }
            3 => {
                let len = self.random.below(20_000);
                let bytes = self.bytes(len);
                let (_, file) = root.create(&cx(), name(b"new"), 0o644, OpenFlags::RDWR).unwrap();
                file.write(&cx(), &bytes, 0).unwrap();
                drop(file);
                root.rename(&cx(), name(b"new"), &root, name(self.file), vnode::RenameFlags::default()).unwrap();
            }
            4 => {
                let len = self.random.below(30_000);
                let bytes = self.bytes(len);
                let file = entry.vnode.open(&cx(), OpenFlags(OpenFlags::WRONLY.0 | 0o1000)).unwrap();
                file.write(&cx(), &bytes, 0).unwrap();
            }
            _ => {
                let file = entry.vnode.open(&cx(), OpenFlags::RDWR).unwrap();
                for _ in 0..=self.random.below(3) {
                    let len = self.random.below(6000) + 1;
                    let bytes = self.bytes(len);
                    let at = self.random.below(old.len() as u64 + 1);
                    file.write(&cx(), &bytes, at).unwrap();
                }
            }
        }
        let index = index(lower, self.file);
        for number in next..index.next() {
            self.expected.insert(number, old.clone());
        }
    }
}
