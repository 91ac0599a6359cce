use super::instance::{Instance, must};
use crate::abi::{self, Bytes, NAME_ROOM};
use crate::convert::caller_out;
use std::sync::Arc;
use vnode::{Cx, Errno, NAME_MAX, Result};
use wrapfs::hooks::{self, LongName, Role, StateFile};

#[derive(Debug)]
pub(super) struct Store {
    instance: Arc<Instance>,
    table: abi::NameStore,
    role: abi::RoleFn,
    long_name: abi::LongNameFn,
    encoded_name: abi::EncodedName,
    /// The state file, with the hooks that create and validate its content.
    state: Option<(StateFile, abi::NewState, abi::IsState)>,
}

impl Store {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::NameStore) -> core::result::Result<Self, String> {
        let state = match state_file(instance, &table)? {
            Some(file) => Some((file, must(table.new_state, "new_state")?, must(table.is_state, "is_state")?)),
            None => None,
        };
        Ok(Self {
            instance: instance.clone(),
            table,
            role: must(table.role, "role")?,
            long_name: must(table.long_name, "long_name")?,
            encoded_name: must(table.encoded_name, "encoded_name")?,
            state,
        })
    }
}

fn state_file(instance: &Instance, table: &abi::NameStore) -> core::result::Result<Option<StateFile>, String> {
    let Some(ask) = table.state_file else { return Ok(None) };
    let mut file = abi::StateFile { name: [0; NAME_ROOM], name_len: 0, longest: 0, mode: 0, reserved: 0 };
    // SAFETY: calls the plugin's hook; the buffer outlives the call.
    match unsafe { ask(instance.me(), &raw mut file) } {
        0 => Ok(None),
        1 => match file.name.get(..file.name_len) {
            Some(name) if file.longest <= LONGEST_STATE && vnode::Name::new(name).is_ok() => {
                Ok(Some(StateFile { name: name.to_vec(), mode: file.mode, longest: file.longest, copy: None }))
            }
            _ => Err(format!(
                "its state_file has a name of {} bytes and a size limit of {} bytes; it needs a valid name and a limit of at most {LONGEST_STATE}",
                file.name_len, file.longest
            )),
        },
        code => Err(format!("its hook state_file returned {code}; it must be 0 or 1")),
    }
}

/// Maximum size of directory state in bytes.
const LONGEST_STATE: usize = 64 << 10;

impl hooks::NameStore for Store {
    fn role(&self, name: &[u8]) -> Role {
        const HOOK: &str = "role";
        let (mut other, mut len) = ([0; NAME_ROOM], 0);
        // SAFETY: calls the plugin's hook; name and buffer outlive the call.
        let role = unsafe { (self.role)(self.instance.me(), Bytes::of(name), other.as_mut_ptr(), &raw mut len) };
        let named = || other.get(..len).filter(|_| (1..=NAME_MAX).contains(&len)).map(<[u8]>::to_vec);
        match (role, named()) {
            (abi::ROLE_NAME, _) => Role::Name,
            (abi::ROLE_LEFTOVER, _) => Role::Leftover,
            (abi::ROLE_OWN, _) => Role::Own,
            (abi::ROLE_LONG, Some(side)) => Role::Long { side },
            (abi::ROLE_SIDE, Some(object)) => Role::Side { object },
            (role, _) => {
                self.instance
                    .log_error(HOOK, format_args!("returned role {role} with a name of {len} bytes, which is invalid"));
                Role::Own
            }
        }
    }

    fn long_name(&self, encoded: &[u8]) -> Option<LongName> {
        let mut content = vec![0; encoded.len() + abi::SIDE_ROOM];
        let mut out = abi::LongName {
            object: [0; NAME_ROOM],
            side: [0; NAME_ROOM],
            object_len: 0,
            side_len: 0,
            content: content.as_mut_ptr(),
            content_capacity: content.len(),
            content_len: 0,
        };
        // SAFETY: calls the plugin's hook; name and buffer outlive the call.
        let code = unsafe { (self.long_name)(self.instance.me(), Bytes::of(encoded), &raw mut out) };
        if code == 0 {
            return None;
        }
        let named = |name: &[u8; NAME_ROOM], len: usize| name.get(..len).map(<[u8]>::to_vec);
        match (named(&out.object, out.object_len), named(&out.side, out.side_len), content.get(..out.content_len)) {
            (Some(object), Some(side), Some(content)) if code == 1 => {
                Some(LongName { object, side, content: content.to_vec() })
            }
            _ => {
                self.instance.log_error("long_name", format_args!("returned {code}, or invalid lengths"));
                // The template rejects an empty name.
                Some(LongName { object: Vec::new(), side: Vec::new(), content: Vec::new() })
            }
        }
    }

    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        // The hook has no caller, so it must not return `MAY_BLOCK`.
        let cx = &Cx::internal(0, 0);
        let made = self.instance.bytes_for(cx, "encoded_name", |out, capacity| {
            let (object, content) = (Bytes::of(object), Bytes::of(content));
            // SAFETY: calls the plugin's hook; all arguments outlive the call, and the buffer has
            // `capacity` bytes.
            unsafe { (self.encoded_name)(self.instance.me(), object, content, out, capacity) }
        });
        made.ok()
    }

    fn side_mode(&self) -> u32 {
        // SAFETY: calls the plugin's hook.
        self.table.side_mode.map_or(0o644, |side_mode| unsafe { side_mode(self.instance.me()) })
    }

    fn state_file(&self) -> Option<StateFile> {
        self.state.as_ref().map(|(file, _, _)| file.clone())
    }

    fn new_state(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let (_, new_state, _) = self.state.as_ref().ok_or(Errno::IO)?;
        let caller = caller_out(cx);
        self.instance.bytes_for(cx, "new_state", |out, capacity| {
            // SAFETY: calls the plugin's hook; all arguments outlive the call, and the buffer has
            // `capacity` bytes.
            unsafe { new_state(self.instance.me(), &raw const caller, out, capacity) }
        })
    }

    fn is_state(&self, state: &[u8]) -> bool {
        // SAFETY: calls the plugin's hook; the bytes outlive the call.
        self.state
            .as_ref()
            .is_some_and(|(_, _, is_state)| unsafe { is_state(self.instance.me(), Bytes::of(state)) } == 1)
    }
}
