//! Counters of a session: requests by opcode and transport, passthrough, notifications.

use crate::Opcode;
use crate::latency::Latencies;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

/// Counts per opcode of one group of threads, on its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Block([AtomicU64; Opcode::COUNT]);

impl Block {
    pub(crate) fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counters of a session.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Requests received from the device.
    pub(crate) device: Block,
    /// Requests received over the ring, per queue.
    pub(crate) ring: Box<[Block]>,
    pub(crate) passthrough_opens: AtomicU64,
    pub(crate) backing_opens: AtomicU64,
    pub(crate) backing_closes: AtomicU64,
    pub(crate) notifications: AtomicU64,
    pub(crate) offloads: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) forgotten: AtomicU64,
    pub(crate) spliced: AtomicU64,
    pub(crate) latencies: Latencies,
}

impl Counters {
    pub(crate) fn new(queues: usize) -> Self {
        let block = || Block([const { AtomicU64::new(0) }; Opcode::COUNT]);
        Self {
            device: block(),
            ring: (0..queues).map(|_| block()).collect(),
            passthrough_opens: AtomicU64::new(0),
            backing_opens: AtomicU64::new(0),
            backing_closes: AtomicU64::new(0),
            notifications: AtomicU64::new(0),
            offloads: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            spliced: AtomicU64::new(0),
            latencies: Latencies::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = Opcode::ALL.iter().map(|&opcode| {
            let of = |block: &Block| block.0.get(opcode as usize).map_or(0, get);
            (opcode, self.ring.iter().map(of).sum(), of(&self.device))
        });
        CounterSnapshot {
            requests: requests.filter(|&(_, ring, device)| ring + device != 0).collect(),
            passthrough_opens: get(&self.passthrough_opens),
            backing_opens: get(&self.backing_opens),
            backing_closes: get(&self.backing_closes),
            notifications: get(&self.notifications),
            offloads: get(&self.offloads),
            interrupts: get(&self.interrupts),
            forgotten: get(&self.forgotten),
            spliced: get(&self.spliced),
        }
    }
}

/// Snapshot of a session's counters since mounting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Number of requests over the ring and over the device, for each opcode that occurred.
    pub requests: Vec<(Opcode, u64, u64)>,
    /// Opens with a backing file.
    pub passthrough_opens: u64,
    /// Backing files registered.
    pub backing_opens: u64,
    /// Backing files unregistered.
    pub backing_closes: u64,
    /// Notifications sent.
    pub notifications: u64,
    /// Ring requests handed to a worker.
    pub offloads: u64,
    /// Requests interrupted by their caller.
    pub interrupts: u64,
    /// Nodes in FORGET and BATCH_FORGET.
    pub forgotten: u64,
    /// READs from the device whose data was spliced from a host file.
    pub spliced: u64,
}

impl CounterSnapshot {
    /// Returns the number of requests with this opcode, over both transports.
    #[must_use]
    pub fn total(&self, opcode: Opcode) -> u64 {
        self.requests.iter().filter(|r| r.0 == opcode).map(|&(_, ring, device)| ring + device).sum()
    }

    /// Returns the number of requests over the ring.
    #[must_use]
    pub fn by_ring(&self) -> u64 {
        self.requests.iter().map(|r| r.1).sum()
    }

    /// Returns the number of requests over the device.
    #[must_use]
    pub fn by_device(&self) -> u64 {
        self.requests.iter().map(|r| r.2).sum()
    }

    /// Formats the counters as one line of JSON:
    /// `{"ring":{"LOOKUP":1},"device":{"INIT":1},"passthrough_opens":0,...}`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        let by_ring = self.requests.iter().map(|r| (r.0.name(), r.1));
        let by_device = self.requests.iter().map(|r| (r.0.name(), r.2));
        json.push_str("\"ring\":");
        object(&mut json, by_ring);
        json.push_str(",\"device\":");
        object(&mut json, by_device);
        json.push(',');
        let singles = [
            ("passthrough_opens", self.passthrough_opens),
            ("backing_opens", self.backing_opens),
            ("backing_closes", self.backing_closes),
            ("notifications", self.notifications),
            ("offloads", self.offloads),
            ("interrupts", self.interrupts),
            ("forgotten", self.forgotten),
            ("spliced", self.spliced),
        ];
        for (i, (name, value)) in singles.into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _infallible = write!(json, "{comma}\"{name}\":{value}");
        }
        json.push('}');
        json
    }
}

fn object<'a>(json: &mut String, members: impl Iterator<Item = (&'a str, u64)>) {
    json.push('{');
    for (i, (name, value)) in members.filter(|m| m.1 != 0).enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _infallible = write!(json, "{comma}\"{name}\":{value}");
    }
    json.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_and_formatted() {
        let counters = Counters::new(2);
        counters.ring[0].count(Opcode::Lookup);
        counters.ring[1].count(Opcode::Lookup);
        counters.device.count(Opcode::Init);
        counters.notifications.fetch_add(3, Ordering::Relaxed);
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.total(Opcode::Lookup), 2);
        assert_eq!((snapshot.by_ring(), snapshot.by_device()), (2, 1));
        assert_eq!(
            snapshot.to_json(),
            "{\"ring\":{\"LOOKUP\":2},\"device\":{\"INIT\":1},\"passthrough_opens\":0,\"backing_opens\":0,\
             \"backing_closes\":0,\"notifications\":3,\"offloads\":0,\"interrupts\":0,\"forgotten\":0,\"spliced\":0}"
        );
    }
}
