//! Requests: who may ask, and what.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use afterfit::checkpoint::Format;
use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;

use super::Desk;

/// The largest question: a number in JSON.
const MOST_BYTES: usize = 1024;
/// How long a client may take to say what it asks for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who may ask: whoever knows the token, from a page of this server, by one of its own names.
pub(super) struct Gate {
    token: String,
    hosts: [String; 2],
}

/// Why a request is refused.
type Refusal = (StatusCode, &'static str);

impl Gate {
    pub(super) fn new(port: u16) -> Result<Self> {
        let mut random = [0; 24];
        getrandom::fill(&mut random).context("the system gives no random numbers")?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")] })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/{}/", self.hosts[0], self.token)
    }

    /// The path behind the token, if the request may be answered.
    fn admit<'a>(&self, headers: &HeaderMap, path: &'a str) -> Result<&'a str, Refusal> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        // A stranger's name that points to this machine (DNS rebinding) is not this server's.
        let Some(host) = text(header::HOST).filter(|host| self.hosts.iter().any(|own| own == host)) else {
            return Err((StatusCode::MISDIRECTED_REQUEST, "this server has another name"));
        };
        let origin = text(header::ORIGIN);
        if origin.is_some_and(|origin| origin != format!("http://{host}")) {
            return Err((StatusCode::FORBIDDEN, "pages of other origins are not answered"));
        }
        let site = text(HeaderName::from_static("sec-fetch-site"));
        if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) {
            return Err((StatusCode::FORBIDDEN, "pages of other origins are not answered"));
        }
        let (token, rest) = path.strip_prefix('/').unwrap_or(path).split_once('/').unwrap_or((path, ""));
        if !same(token.as_bytes(), self.token.as_bytes()) {
            return Err((
                StatusCode::FORBIDDEN,
                "this address lacks its token: use the one that afterfit serve printed",
            ));
        }
        Ok(rest)
    }
}

/// Whether two texts are the same, in a time that does not tell where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    answer
}

fn plain(status: StatusCode, words: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{words}\n"))
}

fn known(desk: &Desk) -> Answer {
    answer(StatusCode::OK, "application/json", desk.known().to_string())
}

/// What comes behind `model?`: a strength, and what kind of file it is to be.
fn model_asked(query: Option<&str>) -> Option<(f64, Format)> {
    let of = |name: &str| query?.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let format = match of("format") {
        None | Some("safetensors") => Format::Safetensors,
        Some("npz") => Format::Npz,
        Some(_) => return None,
    };
    Some((of("l2")?.parse().ok()?, format))
}

async fn respond(gate: &Gate, desk: &Arc<Desk>, request: Request<Incoming>) -> Answer {
    let path = match gate.admit(request.headers(), request.uri().path()) {
        Ok(path) => path.to_owned(),
        Err((status, words)) => return plain(status, words),
    };
    match (path.as_str(), request.method()) {
        ("", &Method::GET) => match desk.html() {
            Ok(html) => answer(StatusCode::OK, "text/html; charset=utf-8", html),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        ("known", &Method::GET) => known(desk),
        ("evaluate", &Method::POST) => {
            // (A form of another page cannot send this type.)
            let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            if kind != Some("application/json") {
                return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a question is JSON");
            }
            let Ok(body) = Limited::new(request.into_body(), MOST_BYTES).collect().await else {
                return plain(StatusCode::PAYLOAD_TOO_LARGE, "a question is one number");
            };
            let asked: Option<Value> = serde_json::from_slice(&body.to_bytes()).ok();
            let Some(l2) = asked.and_then(|asked| asked["l2"].as_f64()) else {
                return plain(StatusCode::BAD_REQUEST, "a question is {\"l2\": number}");
            };
            match desk.ask(l2) {
                Ok(()) => known(desk),
                Err(reason) => plain(StatusCode::BAD_REQUEST, &reason),
            }
        }
        ("model", &Method::GET) => {
            let Some((l2, format)) = model_asked(request.uri().query()) else {
                return plain(StatusCode::BAD_REQUEST, "a model is model?l2=number, and format=npz for numpy");
            };
            let desk = desk.clone();
            match tokio::task::spawn_blocking(move || desk.model(l2, format)).await {
                Ok(Ok(file)) => answer(StatusCode::OK, "application/octet-stream", file),
                Ok(Err(reason)) => plain(StatusCode::BAD_REQUEST, &reason),
                Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        ("" | "known" | "evaluate" | "model", _) => plain(StatusCode::METHOD_NOT_ALLOWED, "not this way"),
        _ => plain(StatusCode::NOT_FOUND, "there is nothing here"),
    }
}

/// Answers until the process is stopped.
pub(super) fn serve(listener: TcpListener, gate: Gate, desk: Arc<Desk>) -> Result<()> {
    let gate = Arc::new(gate);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            // (A connection that failed before it was there is nobody's error.)
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (gate, desk) = (gate.clone(), desk.clone());
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let (gate, desk) = (gate.clone(), desk.clone());
                    async move { Ok::<_, Infallible>(respond(&gate, &desk, request).await) }
                });
                let mut server = http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
                // (Who leaves early misses the answer.)
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_asked_for_by_strength_and_format() {
        assert_eq!(model_asked(Some("l2=0.5")), Some((0.5, Format::Safetensors)));
        assert_eq!(model_asked(Some("format=npz&l2=1e-3")), Some((1e-3, Format::Npz)));
        for query in
            [None, Some(""), Some("l2="), Some("l2=x"), Some("l2=1&format=pt"), Some("format=npz"), Some("xl2=1")]
        {
            assert_eq!(model_asked(query), None, "{query:?}");
        }
    }

    #[test]
    fn only_who_knows_the_token_is_answered() {
        let gate = Gate::new(1234).unwrap_or_else(|error| panic!("{error}"));
        let asks = |headers: &[(&str, &str)], path: &str| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name = HeaderName::try_from(*name).unwrap_or(header::HOST);
                map.insert(name, header::HeaderValue::try_from(*value).unwrap_or(header::HeaderValue::from_static("")));
            }
            gate.admit(&map, path).map(str::to_owned).map_err(|(status, _)| status.as_u16())
        };
        let (own, page) = (("host", "127.0.0.1:1234"), format!("/{}/", gate.token));
        assert_eq!(asks(&[own], &page), Ok(String::new()));
        assert_eq!(asks(&[("host", "localhost:1234")], &format!("{page}known")), Ok("known".into()));
        assert_eq!(
            asks(&[own, ("origin", "http://127.0.0.1:1234"), ("sec-fetch-site", "same-origin")], &page),
            Ok("".into())
        );
        for path in ["/", "", "/known", "//", "/0/", &format!("/{}", gate.token), &page[..page.len() - 2]] {
            assert_eq!(asks(&[own], path), Err(403), "{path}");
        }
        for host in ["evil.example", "127.0.0.1", "127.0.0.1:99", "evil.example:1234", ""] {
            assert_eq!(asks(&[("host", host)], &page), Err(421), "{host}");
        }
        assert_eq!(asks(&[], &page), Err(421));
        for origin in ["http://evil.example", "null", "http://localhost:1234", "https://127.0.0.1:1234"] {
            assert_eq!(asks(&[own, ("origin", origin)], &page), Err(403), "{origin}");
        }
        assert_eq!(asks(&[own, ("sec-fetch-site", "cross-site")], &page), Err(403));
        assert_ne!(gate.token, Gate::new(1234).map(|gate| gate.token).unwrap_or_default());
        assert_eq!(gate.token.len(), 48);
    }
}
