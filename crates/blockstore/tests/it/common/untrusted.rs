//! Untrusted packs.

use super::{CX, collect, get, open, put};
use memfs::MemFs;
use std::sync::Arc;
use vnode::{Layer, Name, OpenFlags};

/// Creates a store with this newest pack.
pub(crate) fn with_pack(bytes: &[u8]) -> Arc<MemFs> {
    let fs = MemFs::new();
    add_file(&fs, b"p-00000001", bytes);
    fs
}

/// Creates a file of the store.
pub(crate) fn add_file(fs: &MemFs, name: &[u8], bytes: &[u8]) {
    let (_, file) = fs.root().create(&CX, Name::new(name).unwrap(), 0o600, OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&CX, bytes, 0).unwrap(), bytes.len());
}

/// Returns the bytes of a file of the store.
pub(crate) fn file(fs: &MemFs, name: &[u8]) -> Option<Vec<u8>> {
    let found = fs.root().lookup(&CX, Name::new(name).unwrap()).unwrap()?;
    let mut bytes = vec![0; found.attr.size as usize];
    found.vnode.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut bytes, 0).unwrap();
    Some(bytes)
}

/// Runs all operations on a store.
pub(crate) fn exercise(fs: &MemFs) {
    let Ok(store) = open(fs) else { return };
    let known = store.ids(None, 50);
    for &id in &known {
        if let Ok(version) = store.version(&CX, id) {
            let mut out = vec![0; 5000];
            for at in [0, 4000, version.size().saturating_sub(10), u64::MAX - 10] {
                let _ = version.read_at(&CX, &mut out, at);
            }
        }
    }
    // What is stored now must be readable, whatever the rest is.
    let bytes: Vec<u8> = (0..3000_u32).flat_map(u32::to_le_bytes).collect();
    if let Ok(id) = put(&store, b"new", &bytes, None) {
        assert_eq!(get(&store, id), Ok((b"new".to_vec(), bytes.clone())));
        let _ = collect(&store, 5000);
        assert_eq!(get(&store, id), Ok((b"new".to_vec(), bytes.clone())));
    }
    let hinted = put(&store, b"hinted", &bytes[5..], known.first().copied());
    for &id in known.iter().take(3) {
        let _ = store.delete(&CX, id);
    }
    let _ = store.check(&CX);
    let repaired = store.repair(&CX);
    if let Ok(before) = &repaired {
        let after = store.check(&CX).unwrap();
        assert!(after.unreadable.is_empty(), "{before:?}, then {after:?}");
    }
    if let Ok(id) = hinted
        && store.has(id)
        && repaired.is_ok()
    {
        assert_eq!(get(&store, id), Ok((b"hinted".to_vec(), bytes[5..].to_vec())));
    }
}

/// Corrects the checksums of the header and of all entries, as far as their lengths are valid.
pub(crate) fn fix_checksums(bytes: &mut [u8]) {
    if let Some((covered, sum)) = bytes.get_mut(..64).and_then(|header| header.split_last_chunk_mut::<4>()) {
        *sum = crc32c::crc32c(covered).to_le_bytes();
    }
    let mut offset = 64;
    while let Some((kind, mut at)) = bytes.get(offset).map(|&kind| (kind, offset + 1)) {
        let mut len = 0u64;
        for shift in (0..28).step_by(7) {
            let byte = bytes.get(at).copied().unwrap_or(0);
            at += 1;
            len |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let Some(body) = bytes.get(at + 4..at + 4 + len as usize) else { return };
        let mut place = [0; 17];
        place[..4].copy_from_slice(&1u32.to_le_bytes());
        place[4..12].copy_from_slice(&(offset as u64).to_le_bytes());
        place[12] = kind;
        place[13..].copy_from_slice(&(len as u32).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&place), body);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        offset = at + 4 + len as usize;
    }
}
