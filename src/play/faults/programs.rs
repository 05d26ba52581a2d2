//! Commands in pods that fail.

use jiff::Timestamp;
use operetta_embedded::{Call, CallResponse, Course, Exec, ExecResult, Objects, Programs};
use serde_json::Value;

use super::{Faults, Injected};
use crate::diag::Diagnostic;
use crate::play::suite::CommandFault;

/// Programs of which some commands fail.
#[derive(Debug)]
pub(in crate::play) struct Faulty {
    pub inner: Box<dyn Programs>,
    pub faults: Faults,
}

impl Programs for Faulty {
    /// The programs themselves, without the faults of this play.
    fn copy(&self) -> Box<dyn Programs> {
        self.inner.copy()
    }

    fn start(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> Course {
        self.inner.start(pod, objects, now)
    }

    fn ready(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> bool {
        self.inner.ready(pod, objects, now)
    }

    fn faults(&self) -> Vec<Diagnostic> {
        self.inner.faults()
    }

    fn readiness(&self) -> Option<u64> {
        self.inner.readiness()
    }

    fn stop(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) {
        self.inner.stop(pod, objects, now);
    }

    fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> ExecResult {
        let fault = self.faults.with(|state| {
            let injected = state
                .commands
                .iter_mut()
                .find(|Injected { fault, .. }| fault.left > 0 && exec.command.starts_with(&fault.words))?;
            injected.has_struck = true;
            injected.fault.left -= 1;
            Some(injected.fault.clone())
        });
        match fault {
            Some(fault) => {
                let CommandFault { stdout, stderr, exit_code, .. } = fault;
                ExecResult { stdout, stderr, exit_code, ..ExecResult::default() }
            }
            None => self.inner.exec(exec, objects),
        }
    }

    fn log(&mut self, pod: &Value, container: &str, objects: &dyn Objects) -> String {
        self.inner.log(pod, container, objects)
    }

    fn address(&mut self, service: &Value, objects: &dyn Objects, now: Timestamp) -> Option<String> {
        self.inner.address(service, objects, now)
    }

    fn call(&mut self, call: &Call<'_>, objects: &dyn Objects) -> Result<CallResponse, String> {
        self.inner.call(call, objects)
    }
}
