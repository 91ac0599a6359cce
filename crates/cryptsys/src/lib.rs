//! Safe wrappers for what encryption needs of C. Callers contain no unsafe code.
//!
//! | module | contents |
//! |---|---|
//! | `cipher` | the authenticated ciphers of AWS-LC |
//! | `process` | detection of fork(2) |

mod cipher;
mod process;

pub use cipher::{AuthCipher, Failed, KEY, TAG};
pub use process::process_token;
