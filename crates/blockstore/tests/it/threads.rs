//! Several threads at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, Model, content, contents, edit, get, open, put};
use memfs::MemFs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::Rng;

#[test]
fn writers_readers_and_the_garbage_collection_work_at_once() {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let model = Mutex::new(Model::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let (store, model) = (&store, &model);
                scope.spawn(move || {
                    let mut random = Rng::new(seed);
                    let (mut bytes, mut last) = (content(&mut random), None);
                    for round in 0..400 {
                        edit(&mut random, &mut bytes);
                        if round % 10 == 0 {
                            bytes = content(&mut random);
                        }
                        let id = put(store, b"key", &bytes, last).unwrap();
                        model.lock().unwrap().insert(id, (b"key".to_vec(), bytes.clone()));
                        last = Some(id);
                        if round % 3 == 0 {
                            let oldest = model.lock().unwrap().pop_first().unwrap().0;
                            store.delete(&CX, oldest).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.gc_step(&CX, 3000).unwrap();
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            let mut random = Rng::new(99);
            while !done.load(Ordering::Relaxed) {
                let picked = {
                    let model = model.lock().unwrap();
                    let at = random.below(model.len().max(1));
                    model.iter().nth(at).map(|(id, version)| (*id, version.clone()))
                };
                let Some((id, version)) = picked else { continue };
                match get(&store, id) {
                    Ok(seen) => assert!(seen == version),
                    Err(errno) => assert!(!store.has(id), "{id}: {errno}"),
                }
            }
        });
        let failed = writers.into_iter().any(|writer| writer.join().is_err());
        done.store(true, Ordering::Relaxed);
        assert!(!failed);
    });
    assert!(contents(&store) == *model.lock().unwrap());
    assert!(store.check(&CX).unwrap().is_clean());
}
