//! What `run` and `dev` log, and how.

use clap::ValueEnum;

use super::out;

/// The flags of the log.
#[derive(Debug, clap::Args)]
pub(super) struct Logging {
    /// Format of log lines
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = LogFormat::Text,
        env = "OPERETTA_LOG_FORMAT",
        hide_env = true,
        help_heading = "Logging (run and dev)"
    )]
    log_format: LogFormat,

    /// Log level: error, warn, info, debug, or a filter such as operetta=debug [default: info; dev: warn]
    #[arg(
        long,
        global = true,
        env = "OPERETTA_LOG",
        hide_env = true,
        value_name = "FILTER",
        help_heading = "Logging (run and dev)"
    )]
    log: Option<String>,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

impl Logging {
    pub(super) fn is_json(&self) -> bool {
        self.log_format == LogFormat::Json
    }

    /// Starts to log.
    pub(super) fn start<W>(&self, default: &str, writer: W)
    where
        W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
    {
        use tracing_subscriber::EnvFilter;
        let filter = self.log.as_deref().unwrap_or(default);
        // A bare level applies to Operetta; libraries log warnings. Failed calls are logged with their meaning, so the
        // client's own log of them is off.
        let filter = if filter.contains(['=', ',']) {
            filter.to_owned()
        } else {
            format!("warn,kube_client=off,kube_runtime=error,operetta={filter}")
        };
        let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
            out::note(format!("warning: --log {filter}: {error}; logging at info"));
            EnvFilter::new("warn,kube_client=off,operetta=info")
        });
        // A closed log is no reason to panic.
        let builder =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => builder.with_target(false).with_ansi(out::colors()).init(),
            LogFormat::Json => builder.json().flatten_event(true).init(),
        }
    }
}
