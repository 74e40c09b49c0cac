//! The one place where errors become what a client sees: HTTP problem documents and channel error replies.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use conch_core::body::InvalidBody;
use conch_core::ids::InvalidId;
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::problem::{self, ChannelError, Problem};
use conch_store::StoreError;
use http::{HeaderValue, StatusCode, header};

use crate::owner::store_refusal;

/// A refusal on its way to an HTTP client.
#[derive(Debug)]
pub struct HttpError(pub Refusal);

impl<E: IntoRefusal> From<E> for HttpError {
    fn from(error: E) -> Self {
        Self(error.into_refusal())
    }
}

/// The response keeps the code among its extensions, where the listener finds it and counts it.
impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let Self(refusal) = self;
        let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(Problem::from(&refusal).to_json()));
        *response.status_mut() = status;
        response.extensions_mut().insert(refusal.code);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(retry) = refusal.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(problem::retry_after_seconds(retry)));
        }
        if refusal.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The error response of a channel push.
#[must_use]
pub fn channel_error(refusal: &Refusal) -> String {
    ChannelError::from(refusal).to_json()
}

/// What can be refused.
pub trait IntoRefusal {
    /// The refusal that a client gets.
    fn into_refusal(self) -> Refusal;
}

impl IntoRefusal for Refusal {
    fn into_refusal(self) -> Refusal {
        self
    }
}

impl IntoRefusal for InvalidId {
    fn into_refusal(self) -> Refusal {
        Refusal::new(Code::UnprocessableRequest, self.to_string())
    }
}

impl IntoRefusal for InvalidBody {
    fn into_refusal(self) -> Refusal {
        let code = match self {
            Self::TooLarge { .. } => Code::TooLarge,
            Self::NotJson(_) | Self::TooDeep { .. } => Code::InvalidRequest,
            Self::NotAnObject | Self::NoText => Code::UnprocessableRequest,
        };
        Refusal::new(code, self.to_string())
    }
}

impl IntoRefusal for StoreError {
    fn into_refusal(self) -> Refusal {
        store_refusal(&self)
    }
}
