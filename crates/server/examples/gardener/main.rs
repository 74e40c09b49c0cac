//! A Conch server with an agent of its own: `cargo run -p conch-server --example gardener`, then make a session with the agent `gardener`.

mod agent;

use std::error::Error;
use std::sync::Arc;

use agent::Gardener;
use conch_server::config::{Config, Flags};
use conch_server::serve;
use conch_server::turn::agents::{AgentLimits, Agents};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "whoever runs it wants to know where to look")]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::load(None, &|name| std::env::var(name).ok(), Flags::default())?;
    let name = "gardener".parse()?;
    let started = |started: serve::Started| println!("http://{}/", started.listen);
    let stop = async {
        // Without the signal's handler there is nothing to wait for but the end of the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let embed = |agents: Agents| agents.with(name, AgentLimits::default(), Arc::new(Gardener));
    serve::run_with(config, embed, started, stop).await?;
    Ok(())
}
