//! The sources, their order, and what is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;

fn load(file: Option<&str>, env: &[(&str, &str)], flags: Flags) -> Result<Config, ConfigError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("conch.toml");
    let env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    if let Some(text) = file {
        std::fs::write(&path, text).expect("written");
    }
    Config::load(file.map(|_| path.as_path()), &|name| env.get(name).cloned(), flags)
}

fn refused(file: &str) -> String {
    let error = load(Some(file), &[], Flags::default()).expect_err(file).to_string();
    // The directory is different every time.
    error.find("conch.toml").map_or(error.clone(), |at| error[at..].to_owned())
}

fn set(pairs: &[&str]) -> Flags {
    Flags { set: pairs.iter().map(|pair| (*pair).to_owned()).collect(), ..Flags::default() }
}

#[test]
fn without_any_source_the_defaults_hold() {
    let config = load(None, &[], Flags::default()).expect("defaults are valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.listen.to_string(), "127.0.0.1:4000");
    assert_eq!(config.lease.timing(), conch_core::lease::LeaseTiming::default());
    assert_eq!(config.limits.body().bytes, 65_536);
    assert!(config.agents.0.keys().any(|name| name.as_str() == "demo"));
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = "node = 'f'\nregion = 'f'\nlisten = '127.0.0.1:1'\n[rate]\nburst = 1_000\n[agents.demo]\npace_ms = 21\n[agents.other]\n";
    let env =
        [("CONCH_REGION", "e"), ("CONCH_LISTEN", "127.0.0.1:2"), ("CONCH_RATE_PER_SECOND", "7"), ("CONCH_NODE", "")];
    let flags = Flags {
        listen: Some("127.0.0.1:3".to_owned()),
        ..set(&["hibernation.memory_ms=500", "agents.demo.pace_ms=22"])
    };
    let config = load(Some(file), &env, flags).expect("valid");
    assert_eq!((config.node.as_str(), config.region.as_str()), ("f", "e"));
    assert_eq!(config.listen.port(), 3);
    assert_eq!((config.rate.burst, config.rate.per_second), (1_000, 7));
    assert_eq!(config.hibernation.memory_ms, 500);
    let paces: Vec<_> = config.agents.0.iter().map(|(name, agent)| (name.as_str(), agent.pace_ms)).collect();
    assert_eq!(paces, [("demo", 22), ("other", 120)]);
}

#[test]
fn what_the_file_gets_wrong_is_named_with_its_line() {
    let cases = [
        ("node = 'a'\nlistn = 'x'\n", "conch.toml:2: unknown setting \"listn\""),
        (
            "[limits]\n\nmesage_bytes = 1\n",
            "conch.toml:3: unknown setting \"limits.mesage_bytes\"; [limits] knows message_bytes, ",
        ),
        ("[rate]\nblock = 1\n", "conch.toml:2: unknown setting \"rate.block\"; did you mean sequencer.block?"),
        ("[limit]\nmessage_bytes = 5000\n", "conch.toml:1: unknown setting \"limit\"; did you mean [limits]?"),
        (
            "[agent.x]\nkind = 'demo'\n",
            "conch.toml:1: unknown setting \"agent\"; did you mean [agents.NAME] or ai.agent?",
        ),
        (
            "[agents.demo]\nspeed = 1\n",
            "conch.toml:2: unknown setting \"agents.demo.speed\"; [agents.demo] knows kind, turn_time_s, turn_tokens, pace_ms, ",
        ),
        (
            "[limits]\nmessage_bytes = 'big'\n",
            "conch.toml:2: limits.message_bytes: invalid type: string \"big\", expected usize (allowed: 1024 to 1048576)",
        ),
        ("[limits]\nmessage_bytes = 1023\n", "conch.toml:2: limits.message_bytes: is 1023 (allowed: 1024 to 1048576)"),
        ("[lease]\nttl_ms = -1\n", "conch.toml:2: lease.ttl_ms: is -1 (allowed: 500 to 600000)"),
        ("[lease]\nttl_ms = 1.5\n", "conch.toml:2: lease.ttl_ms: invalid type: floating point"),
        ("[lease]\nttl_ms = 99999999999999999999\n", "conch.toml:2: lease.ttl_ms: invalid type: string"),
        ("lease = 3\n", "conch.toml:1: unknown setting \"lease\""),
        ("[node]\nname = 'a'\n", "conch.toml:1: node: invalid type: map"),
        ("node = 'a/b'\n", "conch.toml:1: node: node: may hold only A-Z a-z 0-9 . _ -"),
        ("listen = 'localhost'\n", "conch.toml:1: listen: invalid socket address syntax (allowed: ADDRESS:PORT)"),
        ("store = 'postgres:u:hush@h/d'\n", "conch.toml:1: store: must be postgres://USER@HOST/DATABASE"),
        ("leases = 'consul'\n", "conch.toml:1: leases: must be postgres, or etcd://HOST:PORT"),
        ("leases = 'etcd://a:0'\n", "conch.toml:1: leases: the leases' URL: port: \"0\" of \"a\""),
        ("leases = 'etcd://u:hush@a'\n", "conch.toml:1: leases: the leases' URL: user: names and passwords"),
        ("[agents.demo]\nkind = 'model'\n", "conch.toml:2: agents.demo.kind: unknown variant `model`"),
        ("[agents.\"a b\"]\nkind = 'demo'\n", "agent: may hold only"),
        ("[log]\nlevel = 'loud'\n", "conch.toml:2: log.level: unknown variant `loud`"),
        (
            "[auth]\nallowed_origins = ['app.example.com']\n",
            "conch.toml:2: auth.allowed_origins: must be SCHEME://HOST",
        ),
        ("[auth]\nallowed_origins = '*'\n", "conch.toml:2: auth.allowed_origins: invalid type: string"),
        ("node = 'a'\nnode = 'b'\n", "conch.toml:2: is not valid TOML: duplicate key"),
        ("node = \n", "conch.toml:1: is not valid TOML"),
    ];
    for (file, expected) in cases {
        let error = refused(file);
        assert!(error.starts_with(expected), "{file}: {error}");
        assert!(!error.contains("hush"), "{error}");
    }
    let missing = Config::load(Some(Path::new("/nowhere/conch.toml")), &|_| None, Flags::default());
    assert!(missing.expect_err("not there").to_string().starts_with("/nowhere/conch.toml: cannot be read"));
}

#[test]
fn everything_that_is_wrong_is_named_at_once() {
    let file = "nod = 'a'\n[rate]\nburst = 0\n[limit]\nx = 1\n[log]\nlevel = 'loud'\n";
    let flags = Flags { listen: Some("x".to_owned()), ..set(&["nonsense", "rate.blast=1"]) };
    let error = load(Some(file), &[("CONCH_LEASE_TTL_MS", "1")], flags).expect_err("wrong").to_string();
    let lines: Vec<&str> = error.lines().collect();
    let expected = [
        "8 settings are wrong:",
        "conch.toml:4: unknown setting \"limit\"",
        "conch.toml:7: log.level: unknown variant `loud`",
        "conch.toml:1: unknown setting \"nod\"",
        "conch.toml:3: rate.burst: is 0 (allowed: ",
        "CONCH_LEASE_TTL_MS: lease.ttl_ms: is 1 (allowed: ",
        "--listen: listen: invalid socket address",
        "--set: set: has no =",
        "--set: unknown setting \"rate.blast\"",
    ];
    assert_eq!(lines.len(), expected.len(), "{error}");
    for wanted in expected {
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {error}");
    }
    let many: String = (0..30).map(|number| format!("x{number} = 1\n")).collect();
    let error = load(Some(&many), &[], Flags::default()).expect_err("wrong").to_string();
    assert!(error.starts_with("30 settings are wrong:\n") && error.ends_with("\n  and 10 more"), "{error}");
    assert_eq!(error.lines().count(), 22);
}

#[test]
fn a_file_is_read_up_to_its_limit_and_only_a_file() {
    let comment = |bytes: u64| format!("#{}", "ü".repeat(usize::try_from(bytes / 2).expect("it fits")));
    let too_long = refused(&comment(FILE_MAX_BYTES));
    assert!(too_long.ends_with("conch.toml: cannot be read: it is longer than 1048576 bytes"), "{too_long}");
    assert!(load(Some(&comment(FILE_MAX_BYTES - 2)), &[], Flags::default()).is_ok());
    for path in ["/dev/zero", "/"] {
        let refused = Config::load(Some(Path::new(path)), &|_| None, Flags::default()).expect_err(path).to_string();
        assert_eq!(refused, format!("{path}: cannot be read: it is not a regular file"));
    }
}

#[test]
fn what_the_environment_and_the_flags_get_wrong_is_named() {
    let env = |name: &str, value: &str| load(None, &[(name, value)], Flags::default()).expect_err(name).to_string();
    assert_eq!(
        env("CONCH_LIMITS_MESSAGE_BYTES", "12"),
        "CONCH_LIMITS_MESSAGE_BYTES: limits.message_bytes: is 12 (allowed: 1024 to 1048576)"
    );
    assert!(
        env("CONCH_LEASE_TTL_MS", "15s").starts_with("CONCH_LEASE_TTL_MS: lease.ttl_ms: invalid type: string \"15s\"")
    );
    assert!(
        env("CONCH_AUTH_ALLOWED_ORIGINS", "*, nonsense")
            .starts_with("CONCH_AUTH_ALLOWED_ORIGINS: auth.allowed_origins")
    );
    let flag = |flags: Flags| load(None, &[], flags).expect_err("refused").to_string();
    let listen = Flags { ops_listen: Some("x".to_owned()), ..Flags::default() };
    assert!(flag(listen).starts_with("--ops-listen: ops_listen: invalid socket address"));
    assert_eq!(flag(set(&["nonsense"])), "--set: set: has no = (allowed: KEY=VALUE)");
    assert!(flag(set(&["agents.demo=1"])).starts_with("--set: unknown setting \"agents.demo\""));
    assert!(flag(set(&["rate.burst=0"])).starts_with("--set: rate.burst: is 0"));
}

#[test]
fn ratios_are_checked() {
    let cases: &[(&[&str], &str)] = &[
        (&["lease.beat_ms=7000"], "lease.ttl_ms (15000) must be at least 2 × lease.beat_ms (7000)"),
        (
            &["limits.message_bytes=1048576"],
            "limits.frame_bytes (1048576) must be at least 2 × limits.message_bytes (2097152)",
        ),
        (&["limits.outbox_bytes=100000"], "limits.outbox_bytes (100000) must be at least"),
        (&["limits.owner_queue_bytes=5000"], "limits.owner_queue_bytes"),
        (&["limits.append_bytes=5000"], "limits.append_bytes"),
        (&["limits.commit_queue=10"], "limits.commit_queue (10) must be at least limits.commit_batches (512)"),
        (&["limits.history_limit=10"], "limits.history_limit (10) must be at least limits.history_default (50)"),
        (
            &["hibernation.release_ms=1000"],
            "hibernation.release_ms (1000) must be at least hibernation.memory_ms (60000)",
        ),
        (&["sequencer.gap=10"], "sequencer.gap (10) must be at least sequencer.block (1000)"),
        (&["limits.route_ms=20000"], "limits.request_timeout_ms (10000) must be at least limits.route_ms (20000)"),
        (
            &["limits.request_timeout_ms=5500"],
            "limits.request_timeout_ms (5500) must be at least limits.join_wait_ms (6000)",
        ),
        (&["ops_listen=127.0.0.1:4000"], "listen and ops_listen must differ"),
        (
            &["limits.frame_bytes=4194304"],
            "link.frame_bytes (4194304) must be at least 2 × limits.frame_bytes (8388608)",
        ),
        (&["link_listen=127.0.0.1:4001"], "ops_listen and link_listen must differ; both are 127.0.0.1:4001"),
        (&["link_advertise=h:1"], "link_advertise is set without link_listen"),
        (
            &["link_listen=127.0.0.1:4002", "link_advertise=0.0.0.0:4002"],
            "link_advertise is 0.0.0.0:4002, at which other nodes would dial themselves",
        ),
        (
            &["link_listen=127.0.0.1:4002", "link_advertise=[::]:4002"],
            "link_advertise is [::]:4002, at which other nodes would dial themselves",
        ),
        (&["leases=etcd://a:1"], "leases is an etcd:// URL, which needs a postgres:// store"),
        (
            &["link_listen=0.0.0.0:4002"],
            "link_listen is 0.0.0.0:4002, which other nodes cannot dial: set link_advertise",
        ),
        (&["link.secret=short"], "link.secret is 5 bytes long; at least 32 are needed"),
        (&["link.tls_cert=a", "link.tls_ca=b"], "link.tls_cert, link.tls_key and link.tls_ca must be set together"),
        (&["auth.secret=short"], "auth.secret is 5 bytes long; at least 32 are needed"),
        (
            &["auth.secret=0123456789abcdef0123456789abcdef", "auth.secret_file=x"],
            "auth.secret and auth.secret_file are both set",
        ),
    ];
    for (pairs, expected) in cases {
        let error = load(None, &[], set(pairs)).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    load(None, &[], set(&["lease.ttl_ms=1500", "lease.beat_ms=500", "lease.margin_ms=300"])).expect("as tests run");
    load(None, &[], set(&["listen=127.0.0.1:0", "ops_listen=127.0.0.1:0"])).expect("two free ports");
    load(None, &[], set(&["link_listen=0.0.0.0:4002", "link_advertise=node-1:4002"])).expect("as clusters run");
}

#[test]
fn a_config_made_in_code_is_checked_as_well() {
    let mut config = Config::default();
    config.rate.burst = 0;
    assert!(config.check().expect_err("out of range").to_string().contains("rate.burst: is 0"));
    let mut config = Config::default();
    config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 9_999);
    assert!(config.check().expect_err("out of range").to_string().contains("agents.demo.pace_ms: is 9999"));
}

#[test]
fn the_effective_configuration_is_whole_and_hides_secrets() {
    let secret = "0123456789abcdef0123456789abcdef";
    let origins = [("CONCH_AUTH_SECRET", secret), ("CONCH_AUTH_ALLOWED_ORIGINS", "https://a.example, *")];
    let config = load(None, &origins, Flags::default()).expect("valid");
    assert_eq!(config.auth.secret.as_ref().expect("set").expose(), secret.as_bytes());
    let shown = config.effective_toml();
    assert!(shown.contains("secret = \"<hidden>\"") && !shown.contains(secret), "{shown}");
    assert!(!format!("{config:?}").contains(secret));
    let without = Config { auth: Auth { secret: None, ..config.auth.clone() }, ..config };
    let again = load(Some(&without.effective_toml()), &[], Flags::default()).expect("its own output is valid");
    assert_eq!(again, without);
    let hidden = refused(&shown);
    assert!(hidden.contains("auth.secret is 8 bytes long"), "the placeholder is no key: {hidden}");
}

#[test]
fn secrets_are_not_in_errors() {
    for file in ["[auth]\nsecret = 8675309\n", "[auth]\nsecret = ['8675309']\n", "[auth]\nsecret = '8675309'\n"] {
        let error = refused(file);
        assert!(error.contains("auth.secret") && !error.contains("8675309"), "{error}");
    }
}

/// Every key of the effective configuration has a field, every field a value, and no two fields one variable.
#[test]
fn the_fields_are_exactly_the_configuration() {
    fn leaves(table: &toml::Table, prefix: &str, found: &mut BTreeSet<String>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => leaves(inner, &format!("{prefix}{name}."), found),
                _ => drop(found.insert(format!("{prefix}{name}"))),
            }
        }
    }
    let mut found = BTreeSet::new();
    let mut config = Config::default();
    config.auth.secret = Some(Secret::new([1; 32]));
    config.auth.secret_file = Some("x".into());
    config.link_listen = Some("127.0.0.1:4002".parse().expect("an address"));
    config.link_advertise = Some("node-1:4002".parse().expect("an address"));
    config.advertise_url = Some("https://conch.example".parse().expect("a URL"));
    config.ai.agent = Some("demo".parse().expect("a name"));
    let variable = || Some(agents::FromEnv::with_value("X", Secret::new([1; 32])));
    config.agents.0.values_mut().for_each(|agent| {
        for text in [&mut agent.base_url, &mut agent.model, &mut agent.system, &mut agent.url] {
            *text = Some("x".to_owned());
        }
        (agent.api_key_env, agent.secret_env) = (variable(), variable());
        (agent.temperature, agent.max_tokens) = (Some(agents::Temperature(0.5)), Some(1));
        agent.silence_ms = Some(1_000);
    });
    config.link.secret = Some(Secret::new([1; 32]));
    for file in [&mut config.link.tls_cert, &mut config.link.tls_key, &mut config.link.tls_ca] {
        *file = Some("x".into());
    }
    leaves(&toml::Table::try_from(config).expect("serialises"), "", &mut found);
    let declared: BTreeSet<String> = fields().map(|field| field.key.replace("NAME", "demo")).collect();
    assert_eq!(found, declared);
    let variables: BTreeSet<String> = fields().map(field::Field::variable).collect();
    assert_eq!(variables.len(), fields().count());
    for field in fields() {
        assert!(field.doc.trim().ends_with('.'), "{}: its meaning is a sentence", field.key);
    }
}

/// docs/CONFIG.md is generated. `CONCH_BLESS=1 cargo test -p conch-server reference` writes it.
#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIG.md");
    if std::env::var_os("CONCH_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("it is in docs")).expect("made");
        std::fs::write(&path, reference()).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference(),
        "docs/CONFIG.md is out of date; run CONCH_BLESS=1 cargo test -p conch-server reference"
    );
}

/// The environment of the agents that the tests declare: every variable holds a worker's secret, which is also a key.
fn with_secrets(file: &str) -> Result<Config, ConfigError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("conch.toml");
    std::fs::write(&path, file).expect("written");
    let env = |name: &str| {
        let is_secret = !name.starts_with("CONCH_") || name == "CONCH_WORKER_SECRET";
        (is_secret && !name.starts_with("OPENAI_")).then(|| "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned())
    };
    Config::load(Some(&path), &env, Flags::default())
}

#[test]
fn every_example_of_the_page_about_agents_is_a_configuration() {
    let page = include_str!("../../../../docs/AGENTS.md");
    let examples: Vec<&str> = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 2);
    for example in &examples {
        with_secrets(example).unwrap_or_else(|error| panic!("{error}: {example}"));
    }
    let config = with_secrets(&examples.concat()).expect("both together");
    let shown = config.effective_toml();
    assert!(shown.contains("SUPPORT_API_KEY") && !shown.contains("MfKQ"), "{shown}");
    assert_eq!(with_secrets(&shown).expect("its own output is valid"), config);
    let tools = &config.agents.0[&"support".parse().expect("a name")].tools.0;
    assert_eq!(tools[1].parameters.0["properties"]["ticket"]["type"], "string");
}

#[test]
fn the_assistant_exists_where_the_environment_says_how_to_reach_a_model() {
    let assistant = |env: &[(&str, &str)], file: Option<&str>| {
        let config = load(file, env, Flags::default()).expect("valid");
        config.agents.0.get(&"assistant".parse().expect("a name")).cloned()
    };
    assert_eq!(assistant(&[("OPENAI_MODEL", "x"), ("OPENAI_API_KEY", "")], None), None);
    let hosted = assistant(&[("OPENAI_API_KEY", "k")], None).expect("a key is enough");
    assert_eq!((hosted.base_url, hosted.model.as_deref()), (None, Some(agents::ASSISTANT_MODEL)));
    assert_eq!(hosted.api_key_env.and_then(|from| from.value().cloned()), Some(Secret::new("k")));
    let env = [("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), ("OPENAI_MODEL", "small")];
    let local = assistant(&env, None).expect("a server is enough");
    assert_eq!((local.api_key_env, local.model.as_deref()), (None, Some("small")));
    let own = assistant(&[("OPENAI_API_KEY", "k")], Some("[agents.assistant]\n")).expect("declared");
    assert_eq!(own.kind, AgentKind::Demo, "the file's own");
    let refused =
        |url| load(None, &[("OPENAI_BASE_URL", url)], Flags::default()).expect_err("not a good URL").to_string();
    let (no_url, secret) = (refused("localhost"), refused("http://u:hush@127.0.0.1/v1"));
    assert!(no_url.starts_with("agents.assistant.base_url: \"localhost\" is not an http(s) URL"), "{no_url}");
    assert!(secret.starts_with("agents.assistant.base_url: holds a user name or password"), "{secret}");
}

#[test]
fn an_agents_settings_are_checked_by_its_kind_and_named() {
    let model = "[agents.a]\nkind = 'openai'\nmodel = 'm'\n";
    let worker = "[agents.a]\nkind = 'http'\nurl = 'http://h/'\nsecret_env = 'S'\n";
    let tool =
        |more: &str| format!("{model}[[agents.a.tools]]\nname = 't'\ndescription = 'd'\nurl = 'http://h/'\n{more}\n");
    let cases = [
        ("[agents.a]\nkind = 'openai'\n".to_owned(), "agents.a.model: must be set"),
        (
            format!("{model}pace_ms = 30\n"),
            "agents.a.pace_ms: belongs to agents of kind demo; this one is of kind openai",
        ),
        (
            "[agents.a]\nurl = 'http://h/'\n".to_owned(),
            "agents.a.url: belongs to agents of kind http; this one is of kind demo",
        ),
        (format!("{model}url = 'http://h/'\n"), "agents.a.url: belongs to agents of kind http"),
        (format!("{model}base_url = 'ftp://h'\n"), "agents.a.base_url: \"ftp://h\" is not an http(s) URL"),
        (
            format!("{model}base_url = 'http://u:hush@h/v1'\n"),
            "agents.a.base_url: holds a user name or password, which a URL must not; put what authorises a call into api_key_env",
        ),
        (format!("{model}base_url = 'ftp://u:hush@h'\n"), "agents.a.base_url: holds a user name or password"),
        (format!("{model}base_url = 'hush@h'\n"), "agents.a.base_url: \"h\" is not an http(s) URL"),
        (format!("{model}temperature = 3\n"), "agents.a.temperature: must be a number from 0 to 2"),
        (format!("{model}max_steps = 0\n"), "agents.a.max_steps: is 0 (allowed: 1 to 500)"),
        (
            format!("{model}api_key_env = 'sk-hush'\n"),
            "agents.a.api_key_env: must be the name of an environment variable",
        ),
        (
            format!("{model}api_key_env = 'OPENAI_X'\n"),
            "agents.a.api_key_env: the environment variable OPENAI_X is not set",
        ),
        (format!("{model}tools = 'x'\n"), "agents.a.tools: invalid type: string"),
        (tool("x = 1"), "agents.a.tools: \"t\": unknown field `x`"),
        (tool("timeout_ms = 1"), "agents.a.tools: \"t\": timeout_ms: is 1; must be 10 to 600000 milliseconds"),
        (tool("approval_s = 0"), "agents.a.tools: \"t\": approval_s: is 0; must be 1 to 2592000 seconds"),
        (tool("on_unknown = 'hope'"), "agents.a.tools: \"t\": unknown variant `hope`"),
        (tool("parameters = '{'"), "agents.a.tools: \"t\": parameters: is not JSON: "),
        (tool("parameters = 7"), "agents.a.tools: \"t\": parameters: must be a table, or JSON as text"),
        (tool("parameters = { type = 'thing' }"), "agents.a.tools: \"t\": parameters: schema/type: "),
        (
            tool("parameters = '{\"items\":{\"$ref\":\"#\"}}'"),
            "agents.a.tools: \"t\": parameters: schema: $ref \"#\" must not lead back to itself",
        ),
        (tool("headers = { conch-epoch = '1' }"), "agents.a.tools: \"t\": headers.conch-epoch: is set by Conch"),
        (tool("headers = { 'a b' = '1' }"), "agents.a.tools: \"t\": headers.a b: is not a header's name"),
        (
            tool("headers_env = { authorization = 'OPENAI_X' }"),
            "agents.a.tools: t: headers_env.authorization: the environment variable OPENAI_X",
        ),
        (tool("").replace("'http://h/'", "'h'"), "agents.a.tools: \"t\": url: \"h\" is not an http(s) URL"),
        (
            tool("").replace("http://h/", "http://u:hush@h/"),
            "agents.a.tools: \"t\": url: holds a user name or password, which a URL must not; put what authorises a call into headers_env",
        ),
        (
            tool("").replace("description = 'd'\n", ""),
            "agents.a.tools: \"t\": description: must be set: what the model is told of it",
        ),
        (tool("").replace("'t'", "'a b'"), "agents.a.tools: \"a b\": name: must be 1 to 64 of"),
        (format!("{}{}", tool(""), &tool("")[model.len()..]), "agents.a.tools: \"t\": is there twice"),
        ("[agents.a]\nkind = 'http'\n".to_owned(), "agents.a.url: must be set"),
        (worker.replace("'http://h/'", "'h'"), "agents.a.url: \"h\" is not an http(s) URL"),
        (
            worker.replace("http://h/", "https://hush@h/"),
            "agents.a.url: holds a user name or password, which a URL must not; put what authorises a call into secret_env",
        ),
        ("[agents.a]\nkind = 'http'\nurl = 'http://h/'\n".to_owned(), "agents.a.secret_env: must be set"),
        (
            format!("listen = '0.0.0.0:4000'\n{worker}"),
            "agents.a is of kind http, and listen is 0.0.0.0:4000, which workers cannot call",
        ),
        (format!("{worker}attempts = 21\n"), "agents.a.attempts: is 21 (allowed: 1 to 20)"),
    ];
    for (file, expected) in cases {
        let error = with_secrets(&file).expect_err(&file).to_string();
        assert!(error.contains(expected) && !error.contains("hush"), "{file}: {error}");
    }
    let env = [("S", "hush")];
    let error = load(Some(worker), &env, Flags::default()).expect_err("no secret").to_string();
    assert_eq!(error, "agents.a.secret_env: the secret must begin with whsec_");
    with_secrets(worker).expect("a worker");
    with_secrets(&format!("advertise_url = 'https://h'\nlisten = '0.0.0.0:4000'\n{worker}")).expect("reachable");
}
