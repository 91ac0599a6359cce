//! Commands implemented by the server itself.

use crate::open_cache::OpenCache;
use crate::ops::Server;
use core::fmt::Write as _;
use vnode::{Command, CommandAccess, Cx, Errno, Result};

/// A server command, which takes no input.
pub(super) struct Builtin {
    pub(super) declared: Command,
    pub(super) run: fn(&Server, &Cx<'_>) -> Result<Vec<u8>>,
}

/// All server commands.
pub(super) const BUILTIN: [Builtin; 7] = [
    Builtin {
        declared: Command {
            name: "server.commands",
            help: "Returns the commands of this mount as JSON: name, permission, help.",
            access: CommandAccess::Anyone,
        },
        run: |server, _| Ok(list(server)),
    },
    Builtin {
        declared: Command {
            name: "server.info",
            help: "Returns the state of the server as JSON: version, process, transport, inodes in use, open files.",
            access: CommandAccess::Anyone,
        },
        run: |server, _| info(server),
    },
    Builtin {
        declared: Command {
            name: "server.stats",
            help: "Returns the request counts by opcode and transport, and the other counters, as JSON.",
            access: CommandAccess::Anyone,
        },
        run: |server, _| Ok(session(server)?.counters().to_json().into_bytes()),
    },
    Builtin {
        declared: Command {
            name: "server.latency",
            help: "Returns how long the handlers of requests took since server.start-latency, as JSON: whether that is measured \
                   now, and for each opcode the number of requests, the total and the longest time in nanoseconds, and the \
                   number of requests per bucket. Bucket N counts times of 2^N to 2^(N+1) - 1 nanoseconds.",
            access: CommandAccess::Anyone,
        },
        run: |server, _| session(server).map(latencies),
    },
    Builtin {
        declared: Command {
            name: "server.start-latency",
            help: "Starts measuring the times of server.latency, from zero. It takes up to 250 ns per request.",
            access: CommandAccess::Owner,
        },
        run: |server, _| {
            session(server)?.start_latencies();
            Ok(Vec::new())
        },
    },
    Builtin {
        declared: Command {
            name: "server.stop-latency",
            help: "Stops measuring the times of server.latency, which remain.",
            access: CommandAccess::Owner,
        },
        run: |server, _| {
            session(server)?.stop_latencies();
            Ok(Vec::new())
        },
    },
    Builtin {
        declared: Command {
            name: "server.sync",
            help: "Flushes all changes on the mount to stable storage, as syncfs(2) does on other file systems.",
            access: CommandAccess::Anyone,
        },
        run: |server, cx| server.layer.sync(cx).map(|()| Vec::new()),
    },
];

fn session(server: &Server) -> Result<&fuse::Session> {
    server.session.get().map(|session| &**session).ok_or(Errno::NOTCONN)
}

fn list(server: &Server) -> Vec<u8> {
    let commands = server.commands();
    let one = |command: &Command| {
        let who = match command.access {
            CommandAccess::Owner => "owner",
            CommandAccess::Anyone => "anyone",
        };
        let (name, help) = (quoted(command.name), quoted(command.help));
        format!(r#"{{"name":{name},"who":"{who}","help":{help}}}"#)
    };
    let list: Vec<String> = commands.iter().map(one).collect();
    format!("[{}]", list.join(",")).into_bytes()
}

/// Formats the histograms as JSON.
fn latencies(session: &fuse::Session) -> Vec<u8> {
    let one = |of: &fuse::LatencySnapshot| {
        let (count, total, longest) = (of.buckets.iter().sum::<u64>(), of.total.as_nanos(), of.longest.as_nanos());
        let last = of.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let buckets: Vec<String> = of.buckets.iter().take(last).map(u64::to_string).collect();
        let (name, buckets) = (of.opcode.name(), buckets.join(","));
        format!(r#""{name}":{{"count":{count},"total":{total},"longest":{longest},"buckets":[{buckets}]}}"#)
    };
    let (measuring, list) = (session.measures_latencies(), session.latencies());
    let list: Vec<String> = list.iter().map(one).collect();
    format!(r#"{{"measuring":{measuring},"operations":{{{}}}}}"#, list.join(",")).into_bytes()
}

/// Formats a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _infallible = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn info(server: &Server) -> Result<Vec<u8>> {
    let (open, passthrough) = server.files.count();
    let open = open + server.files.open_cache.as_ref().map_or(0, OpenCache::len);
    let info = format!(
        concat!(
            "{{\"version\":\"{}\",\"control_version\":{},\"pid\":{},\"transport\":\"{}\",\"inodes\":{},",
            "\"open_files\":{},\"passthrough_inodes\":{},\"cache_seconds\":{},\"names_cached\":{}}}"
        ),
        env!("CARGO_PKG_VERSION"),
        fuse::control::VERSION,
        std::process::id(),
        if session(server)?.ring_is_up() { "ring" } else { "device" },
        server.nodes.len(),
        open,
        passthrough,
        server.cache.as_secs_f64(),
        !server.layer.properties().merges_names,
    );
    Ok(info.into_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn strings_are_escaped() {
        assert_eq!(super::quoted("say \"a\\b\"\n\u{7f}ä"), r#""say \"a\\b\"\u000a\u007fä""#);
    }
}
