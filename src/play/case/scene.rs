//! Tells what there is at the moment at which a case fails.

use super::Play;

/// How many of the last lines of a log are told.
const LINES: u32 = 10;

impl Play {
    /// The instance, its children, the runs, and the last lines of the logs of pods that are not ready.
    pub(super) async fn scene(&self) -> Vec<String> {
        let (mut lines, pods) = self.server.read(|api| self.watcher().scene(api));
        for pod in pods {
            let Ok(log) = self.cluster.log(&pod.namespace, &pod.name, LINES).await else { continue };
            if !log.trim().is_empty() {
                lines.push(format!("log of pod {}:", pod.name));
                lines.extend(log.lines().map(|line| format!("  {line}")));
            }
        }
        lines
    }
}
