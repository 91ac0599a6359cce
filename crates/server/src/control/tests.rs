use super::{Command, Invocation};
use crate::Config;
use crate::ops::Server;
use fuse::abi::{InHeader, IoctlIn, MknodIn};
use fuse::control::{CONTROL, ControlRequest, FRAME, PIECE_MAX, Reply};
use fuse::{Filesystem, Opcode, Request};
use memfs::MemFs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{CommandAccess, Errno, MAY_BLOCK};

const ROOT: u64 = 1;
const OWNER: u32 = 7;

fn added(name: &'static str, access: CommandAccess, run: fn(&Invocation<'_>) -> vnode::Result<Vec<u8>>) -> Command {
    Command { declared: vnode::Command { name, help: "For a test.", access }, run: Arc::new(run) }
}

fn server() -> Server {
    let mut config = Config::new("/".into(), "none", "test");
    config.owner = OWNER;
    config.commands = vec![
        added("server.long", CommandAccess::Anyone, |given| Ok(vec![b'x'; given.input.len() * 1000])),
        added("server.secret", CommandAccess::Owner, |_| Ok(b"told".to_vec())),
        added(
            "server.who",
            CommandAccess::Anyone,
            |given| if given.by_owner { Ok(Vec::new()) } else { Err(Errno::PERM) },
        ),
    ];
    Server::new(MemFs::new(), &config)
}

/// Sends a frame and returns the reply frame.
fn send(server: &Server, (uid, may_block): (u32, bool), node: u64, frame: &[u8; FRAME]) -> Result<[u8; FRAME], Errno> {
    let cancelled = AtomicBool::new(false);
    let header = InHeader { uid, ..InHeader::default() };
    let rq = Request::new(&header, Opcode::Ioctl, may_block, &cancelled, &[]);
    let arg = IoctlIn { cmd: CONTROL, in_size: FRAME as u32, out_size: FRAME as u32, ..IoctlIn::default() };
    let mut out = [0; FRAME];
    let (reply, len) = server.ioctl(&rq, node, &arg, frame, &mut out)?;
    assert_eq!((reply.result, len), (0, FRAME));
    Ok(out)
}

fn send_request(server: &Server, uid: u32, node: u64, request: ControlRequest<'_>) -> Result<(u64, Vec<u8>), Errno> {
    let mut frame = [0; FRAME];
    request.write(&mut frame).unwrap();
    match Reply::read(&send(server, (uid, true), node, &frame).unwrap()).unwrap() {
        Reply::Failed(errno) => Err(errno),
        Reply::Piece { token, bytes, .. } => Ok((token, bytes.to_vec())),
    }
}

fn command(server: &Server, uid: u32, name: &str, input: &[u8]) -> Result<Vec<u8>, Errno> {
    send_request(server, uid, ROOT, ControlRequest::Command { name, input }).map(|(_, bytes)| bytes)
}

#[test]
fn command_permissions() {
    let server = server();
    for (uid, may) in [(0, true), (OWNER, true), (8, false), (u32::MAX, false)] {
        let expected = if may { Ok(b"told".to_vec()) } else { Err(Errno::PERM) };
        assert_eq!(command(&server, uid, "server.secret", b""), expected, "{uid}");
        assert_eq!(command(&server, uid, "server.who", b"").is_ok(), may, "{uid}");
        assert_eq!(command(&server, uid, "server.sync", b""), Ok(Vec::new()), "{uid}");
    }
}

#[test]
fn unknown_commands_and_wrong_objects_have_different_errors() {
    let layer = wrapfs::Template::over(MemFs::new()).commands(Only).build().unwrap();
    let server = Server::new(layer, &Config::new("/".into(), "none", "test"));
    assert_eq!(command(&server, 0, "test.other", b""), Err(Errno::NOTTY));
    assert_eq!(command(&server, 0, "server.other", b""), Err(Errno::NOTTY));
    assert_eq!(command(&server, 0, "server.sync", b"input"), Err(Errno::INVAL));
    assert_eq!(command(&server, 5, "test.files", b""), Err(Errno::OPNOTSUPP));
    let mut node = 0;
    let cancelled = AtomicBool::new(false);
    let rq = Request::new(&InHeader::default(), Opcode::Mknod, true, &cancelled, &[]);
    node += server.mknod(&rq, ROOT, &MknodIn { mode: 0o100_644, ..MknodIn::default() }, b"f").unwrap().nodeid;
    let given = |uid, node, name| {
        send_request(&server, uid, node, ControlRequest::Command { name, input: b"in" }).map(|(_, bytes)| bytes)
    };
    assert_eq!(given(5, node, "test.files"), Ok(b"uid 5: in".to_vec()));
    // An inode unknown to the kernel, and an owner-only command of a layer.
    assert_eq!(given(5, 4711, "test.files"), Err(Errno::STALE));
    assert_eq!(given(5, node, "test.owner"), Err(Errno::PERM));
    // A layer cannot replace a server command.
    assert_eq!(given(0, node, "server.layers"), Err(Errno::NOTTY));
    let list = command(&server, 9, "server.commands", b"").unwrap();
    let list = String::from_utf8(list).unwrap();
    assert!(
        list.contains("\"test.files\"") && list.contains("\"server.sync\"") && !list.contains("server.layers"),
        "{list}"
    );
}

/// Commands of a layer.
#[derive(Debug)]
struct Only;

impl wrapfs::hooks::Commands for Only {
    fn commands(&self) -> Vec<vnode::Command> {
        let one = |name, access| vnode::Command { name, help: "For a test.", access };
        vec![
            one("test.files", CommandAccess::Anyone),
            one("test.owner", CommandAccess::Owner),
            one("server.layers", CommandAccess::Anyone),
        ]
    }

    fn control(
        &self,
        cx: &vnode::Cx<'_>,
        object: &wrapfs::hooks::Object<'_>,
        name: &str,
        input: &[u8],
    ) -> vnode::Result<Vec<u8>> {
        match (name, object.kind()) {
            ("test.files", vnode::Kind::Regular) => Ok([format!("uid {}: ", cx.uid).as_bytes(), input].concat()),
            _ => Err(Errno::NOTTY),
        }
    }
}

#[test]
fn commands_do_not_run_on_shared_threads() {
    let server = server();
    let mut frame = [0; FRAME];
    for name in ["server.long", "server.sync", "none.such"] {
        ControlRequest::Command { name, input: b"" }.write(&mut frame).unwrap();
        assert_eq!(send(&server, (0, false), ROOT, &frame), Err(MAY_BLOCK), "{name}");
    }
    // Fetching the rest of a reply does not block.
    let (token, _) =
        send_request(&server, 0, ROOT, ControlRequest::Command { name: "server.long", input: &[0; 20] }).unwrap();
    ControlRequest::Rest { token, offset: PIECE_MAX as u64 }.write(&mut frame).unwrap();
    assert!(send(&server, (0, false), ROOT, &frame).is_ok());
}

#[test]
fn long_replies_are_fetched_in_pieces_by_the_same_user() {
    let server = server();
    let (token, first) =
        send_request(&server, 5, ROOT, ControlRequest::Command { name: "server.long", input: &[0; 20] }).unwrap();
    assert!(token != 0 && first.len() == PIECE_MAX);
    let mut got = first.len();
    while got < 20_000 {
        let rest = ControlRequest::Rest { token, offset: got as u64 };
        assert_eq!(send_request(&server, 6, ROOT, rest), Err(Errno::STALE));
        // The rest can be fetched on any object.
        let (more, bytes) = send_request(&server, 5, 4711, rest).unwrap();
        got += bytes.len();
        assert_eq!(more == 0, got == 20_000);
    }
    assert_eq!(got, 20_000);
    assert_eq!(command(&server, 5, "server.long", &[0; 2000]), Err(Errno::MSGSIZE));
}

#[test]
fn other_versions_and_foreign_frames_are_rejected() {
    let server = server();
    let mut frame = [0; FRAME];
    assert_eq!(send(&server, (0, true), ROOT, &frame), Err(Errno::NOTTY));
    ControlRequest::Command { name: "server.sync", input: b"" }.write(&mut frame).unwrap();
    frame[8] = 2;
    let reply = send(&server, (0, true), ROOT, &frame).unwrap();
    assert_eq!(Reply::read(&reply), Ok(Reply::Failed(Errno::PROTO)));
    frame[8] = 1;
    frame[12] = 1;
    let reply = send(&server, (0, true), ROOT, &frame).unwrap();
    assert_eq!(Reply::read(&reply), Ok(Reply::Failed(Errno::INVAL)));
}

#[test]
fn random_frames_are_harmless() {
    let (server, mut seed) = (server(), 1_u64);
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let mut valid = [0; FRAME];
    for round in 0..20_000 {
        let name = ["server.long", "server.secret", "server.commands", "a.b"][random() as usize % 4];
        match round % 3 {
            0 => ControlRequest::Command { name, input: b"seven bytes" }.write(&mut valid).unwrap(),
            _ => ControlRequest::Rest { token: random() % 5, offset: random() % 20_000 }.write(&mut valid).unwrap(),
        }
        // Changes some bytes of a valid frame, mostly in the header.
        for _ in 0..random() % 4 {
            let at = random() as usize % if random() % 2 == 0 { 64 } else { FRAME };
            valid[at] = random() as u8;
        }
        if let Ok(reply) = send(&server, (9, true), random() % 3, &valid) {
            let reply = Reply::read(&reply).unwrap();
            assert!(!matches!(reply, Reply::Piece { bytes: b"told", .. }));
        }
    }
}
