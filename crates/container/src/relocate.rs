//! Relocates the blocks of a group to fill fewer pages.

use crate::batch::Batch;
use crate::compact::STEP_BYTES;
use crate::container::Container;
use crate::format::Version;
use crate::geometry::{PAGE, UNIT};
use crate::group::Group;
use crate::head::Head;
use crate::scratch::with_buffer;
use vnode::{Cx, Result};

/// Number of units in a page.
const PAGE_UNITS: u32 = (PAGE / UNIT) as u32;

/// A block, its place, and its new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    at: usize,
    from: Version,
    to: u32,
}

impl Container {
    /// Relocates blocks of a group as far as free space allows; returns how many bytes.
    pub(crate) fn relocate_blocks(&self, cx: &Cx<'_>, head: &mut Head, group: &Group) -> Result<u64> {
        let newest = |at: usize| group.entry(at).ok()?.newest().ok()?.map(|(_, version)| *version);
        let pieces = (0..group.entries.len()).filter_map(|at| Some((at, newest(at).filter(|v| !v.is_hole())?)));
        let moves = plan(&group.used(head), pieces.collect(), head.fixed.geometry.capacity_units());
        let (mut moved, mut rest) = (0, &moves[..]);
        while !rest.is_empty() {
            let count = self.relocate_some(cx, head, group.number, rest)?;
            if count == 0 {
                break;
            }
            let (done, later) = rest.split_at(count);
            moved += done.iter().map(|one| u64::from(one.from.units()) * UNIT).sum::<u64>();
            rest = later;
        }
        Ok(moved)
    }

    /// Relocates the first blocks of `moves`; returns how many. Stops at a block whose bytes are
    /// not intact.
    fn relocate_some(&self, cx: &Cx<'_>, head: &mut Head, group: u64, moves: &[Move]) -> Result<usize> {
        with_buffer(|buffer| {
            let mut batch = Batch::new(group, buffer);
            let (mut encoded, mut units, mut bytes) = (Vec::new(), Vec::new(), 0);
            for one in moves {
                if bytes >= STEP_BYTES || !self.fetch(cx, head, group, &one.from, &mut encoded)? {
                    break;
                }
                batch.add_encoded(one.at, one.from, &encoded);
                units.push(one.to);
                bytes += u64::from(one.from.units()) * UNIT;
            }
            if !units.is_empty() {
                self.commit_relocated(cx, head, &batch, &units)?;
            }
            Ok(units.len())
        })
    }
}

/// Plans the relocation of blocks to fill few pages. `used`: sorted pieces that must not be
/// overwritten; `pieces`: the blocks, which lie in them.
///
/// If one gap has room for all blocks, they are placed there contiguously. Otherwise each gap, from
/// the first on, receives the largest blocks behind it that fit.
fn plan(used: &[(u32, u32)], mut pieces: Vec<(usize, Version)>, capacity: u32) -> Vec<Move> {
    let total: u64 = pieces.iter().map(|(_, version)| u64::from(version.units())).sum();
    let gaps = gaps(used, capacity);
    let roomy = |&(start, end): &(u32, u32)| {
        let start = start.next_multiple_of(PAGE_UNITS);
        (u64::from(start) + total <= u64::from(end)).then_some(start)
    };
    if let Some(start) = gaps.iter().find_map(roomy) {
        let place = |next: &mut u32, (at, from): (usize, Version)| {
            let to = *next;
            *next += from.units();
            Some(Move { at, from, to })
        };
        return pieces.into_iter().scan(start, place).collect();
    }
    pieces.sort_unstable_by_key(|(_, version)| (version.units(), version.unit));
    let mut moves = Vec::new();
    for (start, end) in gaps {
        let mut free = start;
        while let Some(best) = pieces.iter().rposition(|(_, v)| v.unit > start && v.units() <= end - free) {
            let (at, from) = pieces.remove(best);
            moves.push(Move { at, from, to: free });
            free += from.units();
        }
    }
    moves
}

/// Returns the gaps between the used pieces.
fn gaps(used: &[(u32, u32)], capacity: u32) -> Vec<(u32, u32)> {
    let mut free_from = 0;
    let mut gaps = Vec::new();
    for &(start, end) in used.iter().chain([&(capacity, capacity)]) {
        if start > free_from {
            gaps.push((free_from, start));
        }
        free_from = free_from.max(end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(unit: u32, units: u32) -> Version {
        Version { seq: 1, unit, len: units * UNIT as u32, plain: 1, sum: 0 }
    }

    fn planned(pieces: &[(u32, u32)], capacity: u32) -> Vec<(u32, u32)> {
        let used: Vec<_> = pieces.iter().map(|&(unit, units)| (unit, unit + units)).collect();
        let pieces = pieces.iter().map(|&(unit, units)| piece(unit, units)).enumerate().collect();
        let mut moves: Vec<_> = plan(&used, pieces, capacity).iter().map(|one| (one.from.unit, one.to)).collect();
        moves.sort_unstable();
        moves
    }

    #[test]
    fn blocks_move_together_to_a_page_aligned_gap() {
        assert_eq!(planned(&[(0, 3), (10, 5), (20, 5)], 200), [(0, 64), (10, 67), (20, 72)]);
        assert_eq!(planned(&[(10, 5), (140, 60)], 200), [(10, 64), (140, 69)]);
    }

    #[test]
    fn otherwise_gaps_are_filled_with_later_blocks() {
        // No gap has 65 units.
        assert_eq!(planned(&[(0, 10), (30, 10), (50, 10), (70, 25), (100, 10)], 110), [(50, 20), (100, 10)]);
        assert_eq!(planned(&[(0, 60), (60, 50)], 110), []);
    }

    /// Blocks are relocated to free places only, and each place is used once.
    #[test]
    fn no_used_piece_is_overwritten() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % below) as u32
        };
        for _ in 0..2000 {
            let (mut pieces, mut unit) = (Vec::new(), 0);
            while unit < 900 {
                unit += random(40);
                let units = 1 + random(30);
                pieces.push((unit, units));
                unit += units;
            }
            let moves = planned(&pieces, 1000);
            let mut taken: Vec<(u32, u32)> = pieces.iter().map(|&(unit, units)| (unit, unit + units)).collect();
            for (from, to) in moves {
                let units = pieces.iter().find(|piece| piece.0 == from).unwrap().1;
                assert!(to + units <= 1000);
                taken.push((to, to + units));
            }
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{pieces:?}");
        }
    }
}
