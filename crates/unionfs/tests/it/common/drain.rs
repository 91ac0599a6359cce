//! Draining branches, as `unionctl --drain` does.

use super::layer_ops::CX;
use super::session::Session;
use serde_json::{Value, json};
use vnode::Errno;

/// Sends a request of the command that moves files.
pub fn send(session: &Session, input: &Value) -> Result<Value, Errno> {
    let reply = session.layer.root().control(&CX, "unionfs.move", input.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&reply).unwrap())
}

/// Runs one pass of draining a branch; returns the last reply.
pub fn pass(session: &Session, branch: usize) -> Result<Value, String> {
    let begun = send(session, &json!({ "do": "drain", "branch": format!("/branch/{branch}") }))
        .map_err(|e| format!("begin: {e}"))?;
    let Some(id) = begun.get("id") else { return Ok(begun) };
    loop {
        let reply = send(session, &json!({ "do": "step", "id": id })).map_err(|e| format!("step: {e}"))?;
        if reply["done"] == true {
            return Ok(reply);
        }
    }
}
