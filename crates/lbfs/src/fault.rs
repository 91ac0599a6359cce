//! Why a replica gave no answer, and whose fault that is.

use crate::pool::NoAnswer;
use vnode::Errno;

/// Why a replica gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operation failed.
    Errno(Errno),
    /// There is no such object on this replica, or one of another kind.
    Missing,
}

/// What one replica answers.
pub(crate) type Outcome<T> = core::result::Result<T, Fault>;

/// The error of a call that its pool did not answer.
pub(crate) const fn errno_of(none: NoAnswer) -> Errno {
    match none {
        NoAnswer::Late | NoAnswer::Full => Errno::TIMEDOUT,
        NoAnswer::Panicked => Errno::IO,
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// Nobody's: it is the answer, and every replica would give it.
    Nobody,
    /// It may concern this one object only. Another replica is asked; several in a row make the replica suspect.
    Object,
    /// The replica can't be reached. Another one is asked, and this one is suspect at once.
    Replica,
}

/// Whose fault is it?
pub(crate) const fn blame(errno: Errno) -> Blame {
    match errno {
        Errno::IO | Errno::STALE | Errno::REMOTEIO => Blame::Object,
        Errno::NOTCONN
        | Errno::TIMEDOUT
        | Errno::CONNABORTED
        | Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::NETRESET
        | Errno::NETUNREACH
        | Errno::NODEV
        | Errno::NOLINK
        | Errno::COMM
        | Errno::PROTO
        | Errno::PIPE
        | Errno::SHUTDOWN => Blame::Replica,
        _ => Blame::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_replica_would_answer_is_nobodys_fault() {
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NODATA, Errno::NXIO, Errno::NOMEM, vnode::MAY_BLOCK] {
            assert_eq!(blame(errno), Blame::Nobody);
        }
        assert_eq!(blame(Errno::IO), Blame::Object);
        assert_eq!(blame(Errno::NOTCONN), Blame::Replica);
    }
}
