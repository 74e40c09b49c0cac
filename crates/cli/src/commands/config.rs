//! `conch config`: what is in effect, secrets hidden.

use std::collections::BTreeSet;

use conch_server::config::agents::Agents;
use conch_server::config::{Config, Flags, fields};

use crate::args::ServeArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::{Format, Output};

/// The variables that the command line itself reads, beside those of the settings.
const OTHER_VARIABLES: [&str; 3] = ["CONCH_CONFIG", "CONCH_TOKEN", "CONCH_URL"];

pub(crate) fn run(args: &ServeArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config(args.config.clone(), flags(args)).map_err(Failure::usage)?;
    warn_of_variables(&config, output);
    match output.format {
        Format::Human => output.write(&config.effective_toml()),
        Format::Json => output.json(&config),
    }
}

/// Names the variables that look like settings and are none. No refusal: orchestrators add variables of their own, such as
/// CONCH_SERVICE_HOST for a service of that name.
pub(super) fn warn_of_variables(config: &Config, output: &Output) {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let unknown = unknown_variables(names, &config.agents);
    if !unknown.is_empty() {
        output.warning(&format!("ignored, no setting has this variable: {}", unknown.join(", ")));
    }
}

/// Those that start with `CONCH_` and that nothing reads, neither a setting nor an agent that names it, in order. Their values are
/// never shown.
fn unknown_variables(names: impl Iterator<Item = String>, agents: &Agents) -> Vec<String> {
    let settings: BTreeSet<String> =
        fields().filter(|field| !field.is_pattern()).map(|field| field.variable()).collect();
    let named: BTreeSet<&str> = agents.variables().collect();
    let known = |name: &str| settings.contains(name) || named.contains(name) || OTHER_VARIABLES.contains(&name);
    let unknown: BTreeSet<String> = names.filter(|name| name.starts_with("CONCH_") && !known(name)).collect();
    unknown.into_iter().collect()
}

/// The flags of `serve` and `config`, as the configuration takes them.
pub(super) fn flags(args: &ServeArgs) -> Flags {
    Flags {
        node: args.node.clone(),
        region: args.region.clone(),
        listen: args.listen.clone(),
        ops_listen: args.ops_listen.clone(),
        link_listen: args.link_listen.clone(),
        link_advertise: args.link_advertise.clone(),
        store: args.store.clone(),
        leases: args.leases.clone(),
        log_format: args.log_format.clone(),
        log_level: args.log_level.clone(),
        set: args.set.clone(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn variables_that_nothing_reads_are_found() {
        let names = ["CONCH_STORE", "CONCH_LISTNE", "CONCH_AUTH_SECRET", "HOME", "CONCH_", "CONCH_LISTNE", "CONCH_URL"];
        let unknown = unknown_variables(names.iter().map(|name| (*name).to_owned()), &Agents::default());
        assert_eq!(unknown, ["CONCH_", "CONCH_LISTNE"]);
    }

    #[test]
    fn what_an_agent_names_is_read() {
        let names = ["CONCH_WORKER_SECRET", "CONCH_TEAM_KEY", "CONCH_TOOLS", "CONCH_LISTNE"];
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let agents = r#"
            [agents.trip]
            kind = "http"
            url = "http://127.0.0.1:9000/"
            secret_env = "CONCH_WORKER_SECRET"
            [agents.support]
            kind = "openai"
            base_url = "http://127.0.0.1:8080/v1"
            model = "m"
            api_key_env = "CONCH_TEAM_KEY"
            [[agents.support.tools]]
            name = "look"
            description = "Looks."
            url = "http://127.0.0.1:9001/"
            headers_env = { authorization = "CONCH_TOOLS" }
        "#;
        std::fs::write(file.path(), agents).expect("written");
        let secret = |_: &str| Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let env = |name: &str| secret(name).filter(|_| names.contains(&name) && name != "CONCH_LISTNE");
        let config = Config::load(Some(file.path()), &env, Flags::default()).expect("a valid configuration");
        let unknown = unknown_variables(names.iter().map(|name| (*name).to_owned()), &config.agents);
        assert_eq!(unknown, ["CONCH_LISTNE"]);
    }

    #[test]
    fn every_variable_of_the_command_line_is_known() {
        fn variables(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(|argument| argument.get_env());
            let own = own.map(|name| name.to_string_lossy().into_owned());
            own.chain(command.get_subcommands().flat_map(variables)).collect()
        }
        let read = variables(&Arguments::command());
        assert!(read.iter().any(|name| name == "CONCH_CONFIG"), "{read:?}");
        assert_eq!(unknown_variables(read.into_iter(), &Agents::default()), [""; 0]);
    }
}
