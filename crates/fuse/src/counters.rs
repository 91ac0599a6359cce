use crate::Opcode;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

/// One thread group's counts per opcode, on cache lines of its own.
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

/// What a session counts.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Requests that came by the device.
    pub(crate) device: Block,
    /// Requests that came by the ring, per queue.
    pub(crate) ring: Box<[Block]>,
    pub(crate) passthrough_opens: AtomicU64,
    pub(crate) backing_opens: AtomicU64,
    pub(crate) backing_closes: AtomicU64,
    pub(crate) notifications: AtomicU64,
    pub(crate) offloads: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) forgotten: AtomicU64,
    pub(crate) spliced: AtomicU64,
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

/// The counts of a session at one moment, since it was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Requests that came by the ring, and by the device, of each opcode that came at all.
    pub requests: Vec<(Opcode, u64, u64)>,
    /// Opens that were answered with a backing file.
    pub passthrough_opens: u64,
    /// Backing files registered.
    pub backing_opens: u64,
    /// Backing files given back.
    pub backing_closes: u64,
    /// Notifications sent.
    pub notifications: u64,
    /// Ring requests that were handed to a worker.
    pub offloads: u64,
    /// Requests whose caller gave up.
    pub interrupts: u64,
    /// Nodes in FORGET and BATCH_FORGET.
    pub forgotten: u64,
    /// READs that were answered with pages of a host file (splice), of those that came by the device.
    pub spliced: u64,
}

impl CounterSnapshot {
    /// Requests of this opcode, by either transport.
    #[must_use]
    pub fn total(&self, opcode: Opcode) -> u64 {
        self.requests.iter().filter(|r| r.0 == opcode).map(|&(_, ring, device)| ring + device).sum()
    }

    /// Requests that came by the ring.
    #[must_use]
    pub fn by_ring(&self) -> u64 {
        self.requests.iter().map(|r| r.1).sum()
    }

    /// Requests that came by the device.
    #[must_use]
    pub fn by_device(&self) -> u64 {
        self.requests.iter().map(|r| r.2).sum()
    }

    /// One line of JSON: `{"ring":{"LOOKUP":1},"device":{"INIT":1},"passthrough_opens":0,...}`.
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
    fn counts_are_summed_and_named() {
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
