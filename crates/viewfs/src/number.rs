//! Numbers of objects.
//!
//! Each view's layer has its own numbers. The number of a lower object is combined with its view by
//! XOR, and so can be converted back. The first view's numbers are unchanged.

use classify::ViewId;

/// Maximum number of views.
pub const MAX_VIEWS: usize = 32;

/// Position of the view in a number. Unions use the bits up to 55 for up to 128 branches.
const SHIFT: u32 = 56;

/// Numbers from here on are assigned to vnodes whose usual number is in use.
pub(crate) const FRESH: u64 = 0x3f << SHIFT;

/// The root's number in each layer.
pub(crate) const ROOT: u64 = 1;

/// Converts a number of a view's layer to one of this layer, and back.
pub(crate) const fn convert(view: ViewId, number: u64) -> u64 {
    if number == ROOT { ROOT } else { number ^ ((view as u64) << SHIFT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_converted_both_ways() {
        for view in 0..MAX_VIEWS {
            for number in [ROOT, 2, 5 | 3 << 48, 1 << 63 | 77] {
                let shown = convert(view, number);
                assert_eq!(convert(view, shown), number);
                assert_eq!(shown == number, view == 0 || number == ROOT);
                assert!(shown < FRESH || shown >> 63 == 1);
            }
        }
    }
}
