use core::hint::black_box;
use zeroize::Zeroize as _;

/// Number of bytes that are overwritten. The derivation of a key uses less, even without
/// optimisation, and the stacks of all threads that call this are larger.
const DEPTH: usize = 128 << 10;

/// Runs `act`, and then overwrites the part of the stack that it used: a value that is moved leaves
/// a copy where it was, and keys are moved while they are derived.
pub(crate) fn scrubbed<T>(act: impl FnOnce() -> T) -> T {
    let result = separate(act);
    overwrite();
    result
}

/// Runs `act` in a stack frame of its own.
#[inline(never)]
fn separate<T>(act: impl FnOnce() -> T) -> T {
    act()
}

#[inline(never)]
fn overwrite() {
    let mut below = [0_u8; DEPTH];
    below.zeroize();
    black_box(&below);
}
