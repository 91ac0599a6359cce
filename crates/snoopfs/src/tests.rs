use crate::LAYER;
use memfs::MemFs;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use vnode::{Cx, Errno, Layer, MAY_BLOCK, Name, OpenFlags, RenameFlags, SetAttr, Vnode, XattrFlags};
use wrapfs::Settings;

const ROOT: Cx<'static> = Cx::internal(0, 0);
const ALICE: Cx<'static> = Cx::internal(1001, 1001);
const BOB: Cx<'static> = Cx::internal(1002, 1002);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn settings(options: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::new();
    for (name, value) in options {
        assert!(LAYER.options.iter().any(|option| option.name == *name) && settings.insert(name, value.as_bytes()));
    }
    settings
}

/// Creates `/home/alice` (0755) with `private` (0700), `open` (0644) and `closed` (0600), all owned
/// by alice, and `/bin/login`, owned by root.
fn tree() -> Arc<MemFs> {
    let fs = MemFs::new();
    let open_to_all = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    fs.root().setattr(&ROOT, &open_to_all, None).unwrap();
    let home = fs.root().mkdir(&ROOT, name("home"), 0o755).unwrap().vnode;
    let alice = home.mkdir(&ROOT, name("alice"), 0o755).unwrap().vnode;
    alice.setattr(&ROOT, &SetAttr { uid: Some(1001), gid: Some(1001), ..SetAttr::default() }, None).unwrap();
    alice.mkdir(&ALICE, name("private"), 0o700).unwrap();
    alice.create(&ALICE, name("open"), 0o644, OpenFlags::RDWR).unwrap();
    alice.create(&ALICE, name("closed"), 0o600, OpenFlags::RDWR).unwrap();
    let bin = fs.root().mkdir(&ROOT, name("bin"), 0o755).unwrap().vnode;
    let (_, login) = bin.create(&ROOT, name("login"), 0o755, OpenFlags::RDWR).unwrap();
    login.write(&ROOT, b"program", 0).unwrap();
    fs
}

fn mount(lower: Arc<dyn Layer>, options: &[(&str, &str)]) -> Arc<dyn Layer> {
    LAYER.over(lower, &settings(options)).unwrap()
}

fn find(cx: &Cx<'_>, layer: &Arc<dyn Layer>, path: &str) -> Arc<dyn Vnode> {
    path.split('/').fold(layer.root(), |dir, part| dir.lookup(cx, name(part)).unwrap().unwrap().vnode)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the warnings that `what` logs, without the process.
fn warnings(what: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let sink = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).without_time().finish();
    tracing::subscriber::with_default(sink, what);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    text.lines()
        .map(|line| line.trim_start().strip_prefix("WARN snoopfs: ").expect("a warning"))
        .map(|line| line.replace(" pid=0 command=\"\"", ""))
        .collect()
}

#[test]
fn missing_names_in_unlistable_directories_cause_warnings() {
    let layer = mount(tree(), &[]);
    let alice = find(&ROOT, &layer, "home/alice");
    let guess = |who: &Cx<'_>| warnings(|| assert!(alice.lookup(who, name("x")).unwrap().is_none()));
    let mode =
        |mode| alice.setattr(&ROOT, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).map(|_| ()).unwrap();
    // All users can list the directory, so there is no warning. git(1) probes such directories.
    assert_eq!(guess(&BOB), [""; 0]);
    mode(0o711);
    assert_eq!(guess(&BOB), [r#"no such file: path="/home/alice/x" uid=1002"#]);
    assert_eq!((guess(&ALICE), guess(&ROOT)), (vec![], vec![]));
    // Her group can list it.
    mode(0o751);
    assert_eq!(guess(&BOB).len(), 1);
    assert_eq!(guess(&Cx::internal(1002, 1001)), [""; 0]);
}

#[test]
fn with_missing_all_missing_names_cause_warnings_for_other_users() {
    let layer = mount(tree(), &[("missing", "all")]);
    let alice = find(&ROOT, &layer, "home/alice");
    assert_eq!(warnings(|| assert!(alice.lookup(&ROOT, name("x")).unwrap().is_none())), [""; 0]);
    assert_eq!(warnings(|| assert!(alice.lookup(&ALICE, name("x")).unwrap().is_none())), [""; 0]);
    assert_eq!(warnings(|| assert!(alice.lookup(&BOB, name("open")).unwrap().is_some())), [""; 0]);
    let lines = warnings(|| assert!(alice.lookup(&BOB, name("x\n\"")).unwrap().is_none()));
    assert_eq!(lines, [r#"no such file: path="/home/alice/x\n\"" uid=1002"#]);
}

#[test]
fn refused_accesses_of_other_users_cause_warnings() {
    let layer = mount(tree(), &[]);
    assert!(layer.properties().audits_refusals);
    let (private, closed) = (find(&ROOT, &layer, "home/alice/private"), find(&ROOT, &layer, "home/alice/closed"));
    let open = find(&ROOT, &layer, "home/alice/open");
    for owner in [&ROOT, &ALICE] {
        assert_eq!(warnings(|| private.refused(owner, 7).unwrap()), [""; 0]);
    }
    let denied = |path: &str, what| format!("permission denied ({what}): path=\"/home/alice/{path}\" uid=1002");
    assert_eq!(warnings(|| private.refused(&BOB, 1).unwrap()), [denied("private", "x")]);
    assert_eq!(warnings(|| closed.refused(&BOB, 7).unwrap()), [denied("closed", "rwx")]);
    assert_eq!(warnings(|| open.refused(&BOB, 7).unwrap()), [denied("open", "wx")]);
    // A permitted access causes no warning.
    assert_eq!(warnings(|| open.refused(&BOB, 4).unwrap()), [""; 0]);
}

#[test]
fn a_refusal_is_logged_once_by_a_thread_that_may_block() {
    let layer = mount(tree(), &[]);
    let private = find(&ROOT, &layer, "home/alice/private");
    let never = AtomicBool::new(false);
    let bob = |may_block| Cx::new(1002, 1002, 0, 0, may_block, &never);
    assert_eq!(warnings(|| assert_eq!(private.refused(&bob(false), 1), Err(MAY_BLOCK))), [""; 0]);
    assert_eq!(warnings(|| private.refused(&bob(true), 1).unwrap()).len(), 1);
}

#[test]
fn paths_follow_renames() {
    let layer = mount(tree(), &[]);
    let (home, alice) = (find(&ROOT, &layer, "home"), find(&ROOT, &layer, "home/alice"));
    let path = |vnode: &Arc<dyn Vnode>| warnings(|| vnode.refused(&BOB, 1).unwrap()).concat();
    let private = find(&ROOT, &layer, "home/alice/private");
    alice.rename(&ROOT, name("private"), &home, name("moved"), RenameFlags::default()).unwrap();
    assert!(path(&private).contains("path=\"/home/moved\""), "{}", path(&private));
    home.mkdir(&ROOT, name("other"), 0o700).unwrap();
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    home.rename(&ROOT, name("other"), &home, name("moved"), exchange).unwrap();
    assert!(path(&private).contains("path=\"/home/other\""), "{}", path(&private));
    home.rename(&ROOT, name("other"), &home, name("moved"), exchange).unwrap();
    let new = private.mkdir(&ALICE, name("new"), 0o700).unwrap().vnode;
    assert!(path(&new).contains("path=\"/home/moved/new\""), "{}", path(&new));
}

#[test]
fn warnings_are_rate_limited() {
    let layer = mount(tree(), &[("rate", "2"), ("missing", "all")]);
    let alice = find(&ROOT, &layer, "home/alice");
    let guess = |cx: &Cx<'_>| assert!(alice.lookup(cx, name("x")).unwrap().is_none());
    assert_eq!(warnings(|| (0..10).for_each(|_| guess(&BOB))).len(), 2);
    assert_eq!(warnings(|| guess(&Cx::internal(1003, 1003))).len(), 1);
    drop(alice);
    let last = warnings(|| drop(layer));
    assert_eq!(last, ["uid=1002: 8 more warnings were not logged"]);
}

#[test]
fn invalid_options_are_refused() {
    for (option, value, why) in [
        ("rate", "many", "rate=many"),
        ("missing", "some", "missing=some"),
        ("protect", "/bin/none", "protect=/bin/none"),
        ("protect", "/bin", "protect=/bin"),
        ("protect", "/", "protect=/"),
        ("protect", "/bin/../bin/login", "protect="),
        ("protect", "/bin/login/x", "protect=/bin/login/x"),
    ] {
        let error = LAYER.over(tree(), &settings(&[(option, value)])).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}

/// Tries every operation that would overwrite `/bin/login`, and returns the results.
fn attacks(cx: &Cx<'_>, layer: &Arc<dyn Layer>) -> Vec<(&'static str, Option<Errno>)> {
    let (root, bin) = (layer.root(), find(cx, layer, "bin"));
    let login = bin.lookup(cx, name("login")).unwrap().unwrap().vnode;
    bin.link(cx, name("alias"), &login).unwrap();
    let alias = bin.lookup(cx, name("alias")).unwrap().unwrap().vnode;
    bin.mknod(cx, name("trojan"), 0o100_755, 0).unwrap();
    let plain = RenameFlags::default();
    let exchange = RenameFlags { exchange: true, ..plain };
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    vec![
        ("write", login.open(cx, OpenFlags::WRONLY).err()),
        ("read and write", login.open(cx, OpenFlags::RDWR).err()),
        ("cut on opening", login.open(cx, OpenFlags::RDONLY.with_trunc()).err()),
        ("write by another name", alias.open(cx, OpenFlags::WRONLY).err()),
        ("truncate", login.setattr(cx, &cut, None).err()),
        ("unlink", bin.unlink(cx, name("login")).err()),
        ("rename over", bin.rename(cx, name("trojan"), &bin, name("login"), plain).err()),
        ("exchange", bin.rename(cx, name("trojan"), &bin, name("login"), exchange).err()),
        ("rename away", bin.rename(cx, name("login"), &bin, name("old"), plain).err()),
        ("rename the directory", root.rename(cx, name("bin"), &root, name("old"), plain).err()),
        ("make anew", bin.create(cx, name("login"), 0o755, OpenFlags::RDWR).err()),
        ("symlink", bin.symlink(cx, name("login"), b"trojan").err()),
        ("link", bin.link(cx, name("login"), &find(cx, layer, "bin/trojan")).err()),
        ("mkdir", bin.mkdir(cx, name("login"), 0o755).err()),
        ("mknod", bin.mknod(cx, name("login"), 0o100_755, 0).err()),
        ("rmdir", root.rmdir(cx, name("bin")).err()),
    ]
}

#[test]
fn protected_files_can_not_be_changed() {
    let layer = mount(tree(), &[("protect", "/bin/login:home/alice/open"), ("rate", "0")]);
    let lines = warnings(|| {
        for (what, errno) in attacks(&ROOT, &layer) {
            assert_eq!(errno, Some(Errno::PERM), "{what}");
        }
    });
    assert_eq!(lines.len(), 16);
    // Operations on an open file are logged with the name of its last lookup.
    let paths = [
        ["/bin/alias"; 5].to_vec(),
        ["/bin/login"; 4].to_vec(),
        vec!["/bin"],
        ["/bin/login"; 5].to_vec(),
        vec!["/bin"],
    ];
    let paths = paths.concat();
    for (line, path) in lines.iter().zip(paths) {
        assert!(line.ends_with(&format!("path=\"{path}\" uid=0")), "{line}: {path}");
    }
    let login = find(&ROOT, &layer, "bin/login");
    let mut text = [0; 20];
    assert_eq!(login.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut text, 0), Ok(7));
    assert_eq!(&text[..7], b"program");
    // Other operations succeed.
    let bin = find(&ROOT, &layer, "bin");
    bin.rename(&ROOT, name("trojan"), &bin, name("tool"), RenameFlags::default()).unwrap();
    bin.unlink(&ROOT, name("tool")).unwrap();
    find(&ROOT, &layer, "home/alice/closed").open(&ROOT, OpenFlags::RDWR).unwrap();
    let home = find(&ROOT, &layer, "home");
    home.mkdir(&ROOT, name("bin"), 0o755).unwrap();
    home.rename(&ROOT, name("bin"), &home, name("other"), RenameFlags::default()).unwrap();
}

#[test]
fn without_protection_the_same_operations_succeed() {
    let layer = mount(tree(), &[]);
    let bin = find(&ROOT, &layer, "bin");
    let login = bin.lookup(&ROOT, name("login")).unwrap().unwrap().vnode;
    login.open(&ROOT, OpenFlags::WRONLY).unwrap();
    bin.unlink(&ROOT, name("login")).unwrap();
    let root = layer.root();
    root.rename(&ROOT, name("bin"), &root, name("old"), RenameFlags::default()).unwrap();
}

#[test]
fn a_file_replaced_on_the_lower_layer_is_protected() {
    let lower = tree();
    let layer = mount(lower.clone(), &[("protect", "/bin/login")]);
    let below = lower.root().lookup(&ROOT, name("bin")).unwrap().unwrap().vnode;
    below.mknod(&ROOT, name("new"), 0o100_755, 0).unwrap();
    below.rename(&ROOT, name("new"), &below, name("login"), RenameFlags::default()).unwrap();
    let login = find(&ROOT, &layer, "bin/login");
    assert_eq!(login.open(&ROOT, OpenFlags::WRONLY).err(), Some(Errno::PERM));
}

#[test]
fn nosetid_forbids_new_setid_and_capability_files() {
    let lower = tree();
    let layer = mount(lower.clone(), &[("nosetid", "")]);
    let bin = find(&ROOT, &layer, "bin");
    let login = bin.lookup(&ROOT, name("login")).unwrap().unwrap().vnode;
    let chmod = |vnode: &Arc<dyn Vnode>, mode| {
        vnode.setattr(&ROOT, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).err()
    };
    assert_eq!(chmod(&login, 0o4755), Some(Errno::PERM));
    assert_eq!(chmod(&login, 0o2755), Some(Errno::PERM));
    assert_eq!(bin.create(&ROOT, name("a"), 0o4755, OpenFlags::RDWR).err(), Some(Errno::PERM));
    assert_eq!(bin.tmpfile(&ROOT, 0o4755, OpenFlags::RDWR).err(), Some(Errno::PERM));
    assert_eq!(bin.mknod(&ROOT, name("a"), 0o102_755, 0).err(), Some(Errno::PERM));
    let given = login.setxattr(&ROOT, b"security.capability", b"caps", XattrFlags::default());
    assert_eq!(given, Err(Errno::PERM));
    // An existing set-id file can't be linked, but its bits can be removed.
    let below = lower.root().lookup(&ROOT, name("bin")).unwrap().unwrap().vnode;
    below
        .lookup(&ROOT, name("login"))
        .unwrap()
        .unwrap()
        .vnode
        .setattr(&ROOT, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }, None)
        .unwrap();
    assert_eq!(bin.link(&ROOT, name("a"), &login).err(), Some(Errno::PERM));
    assert_eq!(chmod(&login, 0o6755), Some(Errno::PERM));
    assert_eq!(chmod(&login, 0o4711), None);
    assert_eq!(chmod(&login, 0o711), None);
    let below_login = below.lookup(&ROOT, name("login")).unwrap().unwrap().vnode;
    below_login.setxattr(&ROOT, b"security.capability", b"caps", XattrFlags::default()).unwrap();
    assert_eq!(bin.link(&ROOT, name("b"), &login).err(), Some(Errno::PERM));
    below_login.removexattr(&ROOT, b"security.capability").unwrap();
    bin.link(&ROOT, name("b"), &login).unwrap();
    // On directories, set-group-id has another meaning and is permitted.
    assert_eq!(chmod(&bin, 0o2755), None);
    bin.create(&ROOT, name("a"), 0o755, OpenFlags::RDWR).unwrap();
}

/// A set-id file can't take the name of another one, whatever the system call.
#[test]
fn nosetid_forbids_new_names_of_setid_files() {
    for capable in [false, true] {
        let lower = tree();
        let below = lower.root().lookup(&ROOT, name("bin")).unwrap().unwrap().vnode;
        let tool = below.mknod(&ROOT, name("tool"), 0o100_755, 0).unwrap().vnode;
        if capable {
            tool.setxattr(&ROOT, b"security.capability", b"caps", XattrFlags::default()).unwrap();
        } else {
            tool.setattr(&ROOT, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }, None).unwrap();
        }
        let layer = mount(lower.clone(), &[("nosetid", "")]);
        let (root, bin) = (layer.root(), find(&ROOT, &layer, "bin"));
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let rename =
            |from: &str, dir: &Arc<dyn Vnode>, to: &str, flags| bin.rename(&ROOT, name(from), dir, name(to), flags);
        assert_eq!(rename("tool", &bin, "login", RenameFlags::default()), Err(Errno::PERM));
        assert_eq!(rename("tool", &bin, "new", RenameFlags::default()), Err(Errno::PERM));
        assert_eq!(rename("tool", &root, "new", RenameFlags::default()), Err(Errno::PERM));
        assert_eq!(rename("tool", &bin, "login", exchange), Err(Errno::PERM));
        assert_eq!(rename("login", &bin, "tool", exchange), Err(Errno::PERM));
        // An ordinary file can replace it.
        assert_eq!(rename("login", &bin, "tool", RenameFlags::default()), Ok(()));
        assert_eq!(rename("tool", &bin, "login", RenameFlags::default()), Ok(()));
    }
}

#[test]
fn conforms_to_posix() {
    let quiet = tracing::subscriber::NoSubscriber::default();
    tracing::subscriber::with_default(quiet, || {
        conformance::run_all(|| mount(MemFs::new(), &[]));
    });
}
