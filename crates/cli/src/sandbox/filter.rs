//! The system call filter (seccomp): calls that act on the terminal or on the user's keys, which no
//! namespace separates.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use std::collections::BTreeMap;

/// Terminal ioctls that insert input as if it were typed: `TIOCSTI`, and `TIOCLINUX` (paste the
/// selection).
const TYPING: [u32; 2] = [0x5412, 0x541c];

/// Returns the program.
///
/// # Errors
/// This machine's architecture is not supported.
pub(super) fn program() -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|error| format!("can't filter system calls on this machine: {error}"))?;
    let mut program = foreign(arch);
    for (action, rules) in [(EPERM, typing()?), (ENOSYS, keys())] {
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(action), arch);
        let part: BpfProgram =
            filter.and_then(TryInto::try_into).map_err(|error| format!("system call filter: {error}"))?;
        // The first part continues with the second where it would allow the call.
        join(&mut program, part);
    }
    Ok(program)
}

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn typing() -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let rule = |&command: &u32| {
        // The kernel looks at the lower half alone.
        let is = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, command.into());
        is.and_then(|is| SeccompRule::new(vec![is])).map_err(|error| format!("system call filter: {error}"))
    };
    let rules = TYPING.iter().map(rule).collect::<Result<_, _>>()?;
    Ok([(IOCTL, rules)].into())
}

/// Programs fall back to other places for keys if these calls are missing.
fn keys() -> BTreeMap<i64, Vec<SeccompRule>> {
    KEYS.map(|number| (number, Vec::new())).into()
}

#[cfg(target_arch = "x86_64")]
const IOCTL: i64 = 16;
/// add_key(2), request_key(2), keyctl(2)
#[cfg(target_arch = "x86_64")]
const KEYS: [i64; 3] = [248, 249, 250];
#[cfg(not(target_arch = "x86_64"))]
const IOCTL: i64 = 29;
#[cfg(not(target_arch = "x86_64"))]
const KEYS: [i64; 3] = [217, 218, 219];

/// Opcodes of classic BPF.
mod op {
    /// Load a word of `struct seccomp_data`.
    pub(super) const LOAD: u16 = 0x20;
    /// Jump if the accumulator equals the constant.
    pub(super) const JEQ: u16 = 0x15;
    /// Jump if it is at least the constant.
    pub(super) const JGE: u16 = 0x35;
    /// Jump always.
    pub(super) const JA: u16 = 0x05;
    /// Return the constant.
    pub(super) const RET: u16 = 0x06;
}

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

/// Lets the program continue with `part` where it would allow a call.
fn join(program: &mut BpfProgram, part: BpfProgram) {
    let len = program.len();
    for (at, instruction) in program.iter_mut().enumerate() {
        if instruction.code == op::RET && instruction.k == RET_ALLOW {
            // Both counts are of a few dozen instructions.
            let distance = u32::try_from(len - at - 1).unwrap_or(u32::MAX);
            *instruction = sock_filter { code: op::JA, jt: 0, jf: 0, k: distance };
        }
    }
    program.extend(part);
}

/// Handles calls of other calling conventions, which have other numbers: 32-bit programs on x86-64.
/// The parts that follow kill a process that uses a convention unknown to them.
fn foreign(arch: TargetArch) -> BpfProgram {
    /// `AUDIT_ARCH_I386`
    const I386: u32 = 0x4000_0003;
    /// The bit of the calls of x32 programs.
    const X32: u32 = 0x4000_0000;
    /// ioctl, add_key, request_key and keyctl of 32-bit programs.
    const IOCTL32: u32 = 54;
    const KEYS32: [u32; 3] = [286, 287, 288];
    if arch != TargetArch::x86_64 {
        return Vec::new();
    }
    let load = |offset| sock_filter { code: op::LOAD, jt: 0, jf: 0, k: offset };
    let ret = |k| sock_filter { code: op::RET, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    // Offsets in `struct seccomp_data`: the number 0, the architecture 4, the second argument 24.
    vec![
        load(4),
        jump(op::JEQ, I386, 0, 11),
        load(0),
        jump(op::JEQ, KEYS32[0], 6, 0),
        jump(op::JEQ, KEYS32[1], 5, 0),
        jump(op::JEQ, KEYS32[2], 4, 0),
        jump(op::JEQ, IOCTL32, 0, 5),
        load(24),
        jump(op::JEQ, TYPING[0], 2, 0),
        jump(op::JEQ, TYPING[1], 1, 2),
        ret(RET_ERRNO | ENOSYS),
        ret(RET_ERRNO | EPERM),
        // 32-bit programs end here.
        ret(RET_ALLOW_32),
        load(0),
        jump(op::JGE, X32, 0, 1),
        ret(RET_ERRNO | ENOSYS),
    ]
}

/// Allows a call, as [`RET_ALLOW`] does; [`join`] leaves it as it is.
const RET_ALLOW_32: u32 = RET_ALLOW | 1;
