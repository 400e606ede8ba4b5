//! The client for the credentials of object stores, which is made for its first request.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};

/// Connects with [`ReqwestConnector`] when the first request is made. Making a client loads the system's certificates,
/// which takes tens of milliseconds, and most stores never need it, because their credentials are present without a
/// request.
#[derive(Debug)]
pub(crate) struct LateConnector;

impl HttpConnector for LateConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(LateClient { options: options.clone(), client: OnceLock::new() }))
    }
}

struct LateClient {
    options: ClientOptions,
    client: OnceLock<Result<HttpClient, Arc<object_store::Error>>>,
}

impl LateClient {
    fn client(&self) -> Result<&HttpClient, HttpError> {
        let made = || ReqwestConnector::default().connect(&self.options).map_err(Arc::new);
        let client = self.client.get_or_init(made).as_ref();
        client.map_err(|error| HttpError::new(HttpErrorKind::Unknown, Arc::clone(error)))
    }
}

impl HttpService for LateClient {
    fn call<'this, 'future>(
        &'this self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        Box::pin(async move { self.client()?.execute(request).await })
    }
}

impl fmt::Debug for LateClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LateClient")
    }
}
