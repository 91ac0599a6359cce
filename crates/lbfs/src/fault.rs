//! Classification of failures: the replica's, the object's, or nobody's.

use crate::timed_call::CallError;
use vnode::Errno;

/// Failure of a call to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operation failed.
    Errno(Errno),
    /// The replica does not have the object, or has one of another type.
    Missing,
}

/// The result of a call to one replica.
pub(crate) type Outcome<T> = core::result::Result<T, Fault>;

/// Returns the errno for a call that its pool did not complete.
pub(crate) const fn errno_of(none: CallError) -> Errno {
    match none {
        CallError::TimedOut | CallError::Full => Errno::TIMEDOUT,
        CallError::Panicked => Errno::IO,
    }
}

/// The cause of an error: whom it is blamed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// Nobody: every replica would return this error.
    Nobody,
    /// Possibly only this object. The call is retried on another replica; several such errors in a
    /// row make the replica suspect.
    Object,
    /// The replica, which is unreachable. The call is retried on another replica, and this one
    /// becomes suspect at once.
    Replica,
}

/// Classifies an error.
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
    fn only_errors_of_a_replica_or_object_cause_blame() {
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NODATA, Errno::NXIO, Errno::NOMEM, vnode::MAY_BLOCK] {
            assert_eq!(blame(errno), Blame::Nobody);
        }
        assert_eq!(blame(Errno::IO), Blame::Object);
        assert_eq!(blame(Errno::NOTCONN), Blame::Replica);
    }
}
