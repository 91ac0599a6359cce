//! Times of the steps of one run.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::step::{Done, Step};
use crate::process;
use crate::processor::Processor;

/// The steps of one run that were completed.
#[derive(Debug, Default)]
pub(super) struct Record(pub(super) Vec<(Step, Done)>);

/// Runs from the start of an operation.
pub(super) struct Clock<'a> {
    record: &'a mut Record,
    before: Processor,
    begun: Instant,
}

impl Record {
    /// Starts a clock.
    pub(super) fn start(&mut self) -> Result<Clock<'_>> {
        let before = Processor::of_processes()?;
        Ok(Clock { record: self, before, begun: Instant::now() })
    }

    /// Times a shell script that gets these arguments, in a directory.
    pub(super) fn script(
        &mut self,
        step: Step,
        (script, arguments): (&str, &[&Path]),
        dir: &Path,
        log: &Path,
    ) -> Result<()> {
        let mut clock = self.start()?;
        process::run(Command::new("sh").args(["-c", script, "sh"]).args(arguments).current_dir(dir), log)?;
        clock.lap(step, 1, 0)
    }
}

impl Clock<'_> {
    /// Records a step with the time since the start.
    pub(super) fn lap(&mut self, step: Step, operations: u64, bytes: u64) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let processor = Processor::of_processes()?.since(self.before);
        self.record.0.push((step, Done { seconds, operations, bytes, processor }));
        Ok(())
    }
}
