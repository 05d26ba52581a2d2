//! The booking API that the package `operators/flight-ticket` needs, as a program to try it with.

#[allow(dead_code, unreachable_pub, reason = "tests use it as well")]
mod server;

use std::net::SocketAddr;

use clap::Parser;
use server::{Fault, Faults, Server};

/// A booking API over HTTP that forgets everything when it ends
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  cargo run --example bookings -- --listen 127.0.0.1:8080 --token s3cret
  curl -H 'Authorization: Bearer s3cret' localhost:8080/bookings
  curl -X POST localhost:8080/admin/cancel/B00001                       # the airline cancels
  curl -X PUT localhost:8080/admin/faults -d '{\"always\": \"error\"}'      # all requests fail
  curl -X PUT localhost:8080/admin/faults -d '{\"next\": [\"cut-after\"]}'  # one request is done, but not answered
  curl -X PUT localhost:8080/admin/faults -d '{}'                       # no failures
  curl localhost:8080/admin/log

Failures: error, error-after, throttle, cut-before, cut-after; `after` means that the request is done.")]
struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// The bearer token that requests to /bookings must carry
    #[arg(long)]
    token: Option<String>,

    /// How long each request takes, in milliseconds
    #[arg(long, default_value_t = 0)]
    latency: u64,

    /// Failures and how many of 1,000 requests have them: --rate error=100 --rate cut-after=50
    #[arg(long = "rate", value_name = "FAILURE=PER-MILLE", value_parser = rate)]
    rates: Vec<(String, u32)>,

    /// The seconds of `Retry-After` in answers with status 429
    #[arg(long, default_value_t = 1)]
    retry_after: u64,
}

fn rate(text: &str) -> Result<(String, u32), String> {
    let (name, rate) = text.split_once('=').ok_or("write FAILURE=PER-MILLE")?;
    serde_json::from_value::<Fault>(name.into()).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), rate.parse().map_err(|_| "the rate is a number up to 1000")?))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let rates = args.rates.into_iter().collect();
    let faults = Faults { latency: args.latency, retry_after: args.retry_after, rates, ..Faults::default() };
    let server = Server::start(args.listen, args.token, faults).await?;
    println!("bookings at {}", server.url());
    tokio::signal::ctrl_c().await?;
    println!("{} bookings are forgotten", server.bookings().len());
    Ok(())
}
