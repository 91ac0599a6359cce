//! The commands that the server itself answers.

use crate::held::Held;
use crate::ops::Server;
use core::fmt::Write as _;
use vnode::{Command, Cx, Errno, Result, Who};

/// A command of the server's. It takes no input.
pub(super) struct Own {
    pub(super) is: Command,
    pub(super) run: fn(&Server, &Cx<'_>) -> Result<Vec<u8>>,
}

/// All of them.
pub(super) const OWN: [Own; 4] = [
    Own {
        is: Command {
            name: "server.commands",
            help: "Answers as JSON the commands of this mount: name, who may give it, help.",
            who: Who::Anyone,
        },
        run: |server, _| Ok(list(server)),
    },
    Own {
        is: Command {
            name: "server.info",
            help: "Answers as JSON which server this is: version, process, transport, inodes that the kernel knows, open files.",
            who: Who::Anyone,
        },
        run: |server, _| info(server),
    },
    Own {
        is: Command {
            name: "server.stats",
            help: "Answers as JSON how many requests of each kind the kernel has sent, by transport, and what else is counted.",
            who: Who::Anyone,
        },
        run: |server, _| Ok(session(server)?.counters().to_json().into_bytes()),
    },
    Own {
        is: Command {
            name: "server.sync",
            help: "Makes everything durable that was done on the mount, as syncfs(2) does on other file systems.",
            who: Who::Anyone,
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
        let who = match command.who {
            Who::Owner => "owner",
            Who::Anyone => "anyone",
        };
        let (name, help) = (quoted(command.name), quoted(command.help));
        format!(r#"{{"name":{name},"who":"{who}","help":{help}}}"#)
    };
    let list: Vec<String> = commands.iter().map(one).collect();
    format!("[{}]", list.join(",")).into_bytes()
}

/// A string in JSON.
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
    let open = open + server.files.held.as_ref().map_or(0, Held::len);
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
