//! Worlds: what the programs do that packages deal with, described in YAML. See `docs/guide/worlds.md`.
//!
//! A file is compiled to rules (`compile`, `rules`). Each call tries the rules in order (`file`): patterns take the call apart
//! (`pattern`), expressions see the pod (`pod`) and the state, and a rule that answers may change the state (`turn`). What all programs can
//! be asked is in `programs`. Without playing, `types` and `shadows` find mistakes, and `mentions` the names that a package gives.

mod compile;
mod file;
mod mentions;
mod pattern;
mod pod;
pub(crate) mod programs;
mod rules;
mod shadows;
mod sites;
#[cfg(test)]
mod tests;
mod turn;
mod types;

use std::sync::Arc;

use jiff::Timestamp;
use operetta_lang::diag::{Diagnostic, Source};
use operetta_lang::schema::Kubernetes;
use serde_json::Value;

use file::File;
pub use mentions::{Mention, Mentioned};
use programs::{Call, CallResponse, Course, DefaultPrograms, Exec, ExecResult, Objects, Programs};
use turn::Outcome;

/// The most faults that are kept.
const MOST_FAULTS: usize = 100;

/// The exit code of a command whose rule has a fault.
const FAULTY: i32 = 126;

/// The exit code of a command that no rule is for.
const UNKNOWN: i32 = 127;

/// What programs do, as files say. The files are tried in order.
#[derive(Debug, Clone)]
pub struct World {
    files: Vec<File>,
    faults: Vec<Diagnostic>,
    /// The time of the last call that has one.
    now: Timestamp,
}

impl World {
    /// Compiles worlds, such as those of several packages.
    ///
    /// # Errors
    /// All mistakes in them.
    pub fn parse(sources: &[Arc<Source>]) -> Result<Self, Vec<Diagnostic>> {
        let (mut files, mut errors) = (Vec::new(), Vec::new());
        for source in sources {
            match compile::compile(source) {
                Ok(rules) => files.push(File::new(rules)),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() {
            Ok(Self { files, faults: Vec::new(), now: Timestamp::UNIX_EPOCH })
        } else {
            Err(errors)
        }
    }

    /// Mistakes that show without a call: fields that no pod has, comparisons that never hold, and rules that never answer.
    pub fn check(&self, kubernetes: &Kubernetes) -> Vec<Diagnostic> {
        let each = self.files.iter().map(File::rules).map(|rules| {
            let mut found = types::mistyped(rules, kubernetes);
            found.extend(shadows::shadowed(rules));
            found
        });
        each.flatten().collect()
    }

    /// The names in it that a package or its cases give.
    pub fn mentions(&self) -> Vec<Mention> {
        self.files.iter().map(File::rules).flat_map(mentions::mentions).collect()
    }

    /// The names of its files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(File::name)
    }

    /// What went wrong in expressions while the world was played, in order; the first hundred.
    pub fn faults(&self) -> &[Diagnostic] {
        &self.faults
    }

    /// The answer of the first file that has one, or its fault.
    fn first<T>(
        &mut self,
        mut ask: impl FnMut(&mut File, Timestamp) -> Outcome<Option<T>>,
    ) -> Result<Option<T>, String> {
        for file in &mut self.files {
            match ask(file, self.now) {
                Ok(None) => {}
                Ok(answer) => return Ok(answer),
                Err(fault) => {
                    let message = fault.to_string();
                    if self.faults.len() < MOST_FAULTS {
                        self.faults.push(*fault);
                    }
                    return Err(message);
                }
            }
        }
        Ok(None)
    }

    /// The names of the files, for messages.
    fn names(&self) -> String {
        self.files().collect::<Vec<_>>().join(", ")
    }
}

impl Programs for World {
    fn copy(&self) -> Box<dyn Programs> {
        Box::new(self.clone())
    }

    fn start(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> Course {
        self.now = now;
        // Each file knows the pods of its states, whichever answers.
        let seen = self.first(|file, _| file.register(pod, objects).map(|()| None::<()>));
        let course = seen.and_then(|_| self.first(|file, now| file.start(pod, objects, now)));
        match course {
            Ok(Some(course)) => course,
            Ok(None) => DefaultPrograms.start(pod, objects, now),
            Err(fault) => Course { message: fault, ..Course::default() },
        }
    }

    fn ready(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> bool {
        self.now = now;
        self.first(|file, now| file.ready(pod, objects, now)).is_ok_and(|ready| ready.unwrap_or(true))
    }

    fn memory(&self) -> Value {
        self.files.iter().map(|file| (file.name().to_owned(), file.memory())).collect()
    }

    fn resume(&mut self, memory: &Value, pods: &[Value], objects: &dyn Objects, now: Timestamp) {
        self.now = now;
        for file in &mut self.files {
            if let Some(memory) = memory.get(file.name()) {
                file.resume(memory);
            }
        }
        for pod in pods {
            // A fault is kept, and the pod has no part in that file.
            let _ = self.first(|file, now| file.adopt(pod, objects, now).map(|()| None::<()>));
        }
    }

    fn faults(&self) -> Vec<Diagnostic> {
        World::faults(self).to_vec()
    }

    fn readiness(&self) -> Option<u64> {
        let has_readiness = self.files.iter().any(File::has_readiness);
        has_readiness.then(|| self.files.iter().map(File::changes).sum())
    }

    fn stop(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) {
        self.now = now;
        self.files.iter_mut().for_each(|file| file.stop(pod));
        DefaultPrograms.stop(pod, objects, now);
    }

    fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> ExecResult {
        self.now = exec.now;
        let (stderr, exit_code) = match self.first(|file, _| file.exec(exec, objects)) {
            Ok(Some(result)) => return result,
            Ok(None) if self.files.is_empty() => return DefaultPrograms.exec(exec, objects),
            Ok(None) => {
                let (command, names) = (exec.command.join(" "), self.names());
                (
                    format!("no rule says what `{command}` does in container {}: {names}\n", exec.container),
                    UNKNOWN,
                )
            }
            Err(fault) => (format!("{fault}\n"), FAULTY),
        };
        ExecResult { stderr, exit_code, ..ExecResult::default() }
    }

    fn log(&mut self, pod: &Value, container: &str, objects: &dyn Objects) -> String {
        let log = self.first(|file, now| file.log(pod, container, objects, now));
        log.unwrap_or_else(Some).unwrap_or_default()
    }

    fn address(&mut self, service: &Value, objects: &dyn Objects, now: Timestamp) -> Option<String> {
        self.now = now;
        self.first(|file, now| file.address(service, objects, now)).ok().flatten()
    }

    fn call(&mut self, call: &Call<'_>, objects: &dyn Objects) -> Result<CallResponse, String> {
        self.now = call.now;
        match self.first(|file, _| file.call(call, objects)) {
            Ok(Some(reply)) => reply,
            Ok(None) if self.files.is_empty() => DefaultPrograms.call(call, objects),
            Ok(None) => {
                Err(format!("no rule says what {} {} answers: {}", call.method, call.url, self.names()))
            }
            Err(fault) => {
                Ok(CallResponse { status: 500, body: fault.into_bytes(), ..CallResponse::default() })
            }
        }
    }
}
