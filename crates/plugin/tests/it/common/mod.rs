//! Plugins built by the system's C compiler.
#![allow(dead_code)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vnode::Layer;
use wrapfs::Settings;

/// The directory of the header, the examples and the documentation.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a path for a new file that is removed with the build directory.
pub(crate) fn fresh(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(dir).unwrap();
    dir.join(format!("{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// A plugin file, removed when dropped.
pub(crate) struct Object(pub(crate) PathBuf);

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Object {
    /// Creates a file with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let path = fresh("object.so");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Compiles a C file with macro definitions.
    pub(crate) fn compiled(source: &Path, defines: &[&str]) -> Self {
        let path = fresh("object.so");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O1", "-shared", "-fPIC", "-I"])
            .arg(top().join("include"));
        cc.args(defines.iter().map(|define| format!("-D{define}"))).arg("-o").arg(&path).arg(source);
        let said = cc.output().expect("cc");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Loads the plugin and creates an instance.
    pub(crate) fn over(&self, lower: Arc<dyn Layer>, given: &[(&str, &str)]) -> Result<Arc<dyn Layer>, String> {
        let mut settings = Settings::new();
        for (name, value) in given {
            assert!(settings.insert(name, value.as_bytes()));
        }
        plugin::load(&self.0)?.over(lower, &settings)
    }

    /// Returns the reason why it cannot be used.
    pub(crate) fn wrong(&self) -> String {
        self.over(memfs::MemFs::new(), &[]).map(|_| "usable".to_owned()).unwrap_or_else(|wrong| wrong)
    }
}
