//! The web console's files, embedded in the binary, and the OpenAPI document.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::refusal::{Code, Refusal};
use http::{HeaderValue, Method, Uri, header};
use rust_embed::RustEmbed;
use serde_json::json;

use super::Gateway;
use super::errors::HttpError;
use crate::auth::origin::Origin;
use crate::auth::secret::Mode;

#[derive(RustEmbed)]
#[folder = "../../console/"]
struct Assets;

/// The core that the console shares with the client package, under the path that the console's modules name it by: to a
/// browser, `../clients/` seen from the root is `/clients/`.
#[derive(RustEmbed)]
#[folder = "../../clients/typescript/core/"]
#[prefix = "clients/typescript/core/"]
struct SharedCore;

/// What the console of this cluster may talk to.
pub(super) struct Console {
    policy: HeaderValue,
    /// The answer to `/console.json`.
    settings: String,
}

impl Console {
    /// The nodes are reached at these addresses; who enters gives a name in development mode, elsewhere a token.
    pub(super) fn new(urls: &[Origin], mode: Mode) -> Self {
        // A socket's scheme is another one than its page's, and a policy names each.
        let sources = urls.iter().map(|url| format!(" {url} {}", url.to_string().replacen("http", "ws", 1)));
        let sources: String = sources.collect();
        // It runs its own scripts alone, and talks to its own cluster alone.
        let policy = format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{sources}; \
             form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        );
        let policy = HeaderValue::from_str(&policy).expect("an origin is a scheme, a host and a port in ASCII");
        let login = match mode {
            Mode::Development => "name",
            Mode::Configured => "token",
        };
        Self { policy, settings: json!({"urls": urls, "login": login}).to_string() }
    }

    fn asset(&self, path: &str) -> Option<Response> {
        let mut response = asset(path)?;
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        Some(response)
    }
}

pub(super) async fn index(State(gateway): State<Gateway>, uri: Uri) -> Response {
    gateway.shared.console.asset("index.html").unwrap_or_else(|| not_found(&uri))
}

/// `GET /console.json`: what the console needs to know before anybody has signed in.
pub(super) async fn settings(State(gateway): State<Gateway>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (headers, gateway.shared.console.settings.clone()).into_response()
}

/// Whatever no route takes: a file of the console, or nothing.
pub(super) async fn asset_or_not_found(State(gateway): State<Gateway>, method: Method, uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    let found = if matches!(method, Method::GET | Method::HEAD) { gateway.shared.console.asset(path) } else { None };
    found.unwrap_or_else(|| not_found(&uri))
}

fn not_found(uri: &Uri) -> Response {
    HttpError(Refusal::new(Code::NotFound, format!("there is nothing at {}", uri.path()))).into_response()
}

fn asset(path: &str) -> Option<Response> {
    let file = Assets::get(path).or_else(|| SharedCore::get(path))?;
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    let mut response = file.data.into_owned().into_response();
    let headers = response.headers_mut();
    let mime = if mime.type_() == "text" { format!("{mime}; charset=utf-8") } else { mime.to_string() };
    if let Ok(value) = HeaderValue::from_str(&mime) {
        headers.insert(header::CONTENT_TYPE, value);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Some(response)
}

/// `GET /v1/openapi.json`.
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

#[cfg(test)]
mod tests {
    use super::{Assets, Console, Mode, SharedCore};

    #[test]
    fn the_console_may_talk_to_the_nodes_of_its_cluster() {
        let urls = ["http://127.0.0.1:4101", "https://b.example.com"].map(|url| url.parse().expect("an origin"));
        let Console { policy, settings } = Console::new(&urls, Mode::Configured);
        let expected =
            "connect-src 'self' http://127.0.0.1:4101 ws://127.0.0.1:4101 https://b.example.com wss://b.example.com;";
        assert!(policy.to_str().expect("ASCII").contains(expected), "{policy:?}");
        assert_eq!(settings, r#"{"login":"token","urls":["http://127.0.0.1:4101","https://b.example.com"]}"#);
        assert_eq!(Console::new(&[], Mode::Development).settings, r#"{"login":"name","urls":[]}"#);
    }

    /// What a browser makes of a module's relative import. Above the root there is only the root.
    fn resolve(importer: &str, import: &str) -> String {
        let mut parts: Vec<&str> = importer.split('/').collect();
        parts.pop();
        for part in import.split('/') {
            match part {
                "." => {}
                ".." => {
                    parts.pop();
                }
                name => parts.push(name),
            }
        }
        parts.join("/")
    }

    fn imports(source: &str) -> impl Iterator<Item = &str> {
        source
            .lines()
            .filter(|line| line.starts_with("import ") || line.starts_with("export "))
            .filter_map(|line| line.split(" from '").nth(1)?.split('\'').next())
    }

    #[test]
    fn every_module_that_the_console_imports_is_in_the_binary() {
        let modules = Assets::iter().chain(SharedCore::iter()).filter(|path| path.ends_with(".js"));
        let mut shared = 0;
        for importer in modules {
            let file = Assets::get(&importer).or_else(|| SharedCore::get(&importer)).expect("it was listed");
            let source = std::str::from_utf8(&file.data).expect("modules are UTF-8");
            for import in imports(source) {
                let path = resolve(&importer, import);
                assert!(super::asset(&path).is_some(), "{importer} imports {import}, and there is nothing at {path}");
                shared += usize::from(SharedCore::get(&path).is_some());
            }
        }
        assert!(shared > 10, "only {shared} imports lead to the shared core");
    }

    #[test]
    fn an_import_above_the_root_is_one_of_the_root() {
        assert_eq!(
            resolve("core/flow.js", "../../clients/typescript/core/turns.js"),
            "clients/typescript/core/turns.js"
        );
        assert_eq!(resolve("app.js", "./core/api.js"), "core/api.js");
        assert_eq!(imports("import { a } from './b.js';\n// from 'c'").collect::<Vec<_>>(), ["./b.js"]);
    }
}
