//! The methods of `containerd.services.snapshots.v1.Snapshots`.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tokio::task::spawn_blocking;
use tonic::{Response, Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::{
    error::Result,
    filter::Filter,
    messages::{
        CommitRequest, Empty, InfoResponse, KeyRequest, ListRequest, ListResponse, Mount, MountsResponse,
        PrepareRequest, UpdateRequest, UsageResponse,
    },
    record::{Record, Usage},
    snapshotter::Snapshotter,
};

/// The path of all methods.
const SERVICE: &str = "/containerd.services.snapshots.v1.Snapshots/";
/// The number of snapshots in one part of a list.
const LIST_LEN_MAX: usize = 100;

type Pending<T, E> = Pin<Box<dyn Future<Output = std::result::Result<T, E>> + Send>>;

/// Answers requests of containerd.
#[derive(Clone)]
pub(crate) struct Methods {
    pub(crate) snapshotter: Arc<Snapshotter>,
}

impl Service<Request<Body>> for Methods {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pending<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let snapshotter = Arc::clone(&self.snapshotter);
        Box::pin(async move { Ok(answer(snapshotter, request).await) })
    }
}

async fn answer(snapshotter: Arc<Snapshotter>, request: Request<Body>) -> http::Response<Body> {
    let method = request.uri().path().strip_prefix(SERVICE).unwrap_or_default().to_owned();
    match method.as_str() {
        "Prepare" => {
            unary(request, move |PrepareRequest { key, parent, labels }| {
                snapshotter.prepare(&key, &parent, labels.into_iter().collect()).map(shown)
            })
            .await
        }
        "View" => {
            unary(request, move |PrepareRequest { key, parent, labels }| {
                snapshotter.view(&key, &parent, labels.into_iter().collect()).map(shown)
            })
            .await
        }
        "Mounts" => unary(request, move |KeyRequest { key }| snapshotter.mounts(&key).map(shown)).await,
        "Commit" => {
            unary(request, move |CommitRequest { name, key, labels, parent }| {
                snapshotter.commit(&name, &key, &parent, labels.into_iter().collect()).map(|()| Empty {})
            })
            .await
        }
        "Remove" => unary(request, move |KeyRequest { key }| snapshotter.remove(&key).map(|()| Empty {})).await,
        "Stat" => unary(request, move |KeyRequest { key }| snapshotter.stat(&key).map(described)).await,
        "Update" => {
            unary(request, move |UpdateRequest { info, update_mask }| {
                let (info, paths) = (info.unwrap_or_default(), update_mask.unwrap_or_default().paths);
                snapshotter.update(&info.name, &info.labels.into_iter().collect(), &paths).map(described)
            })
            .await
        }
        "Usage" => {
            unary(request, move |KeyRequest { key }| {
                let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                let usage = |Usage { bytes, inodes }| UsageResponse { size: signed(bytes), inodes: signed(inodes) };
                snapshotter.usage(&key).map(usage)
            })
            .await
        }
        "Cleanup" => unary(request, move |Empty {}| snapshotter.cleanup().map(|()| Empty {})).await,
        "List" => {
            let list = Call(move |ListRequest { filters }: ListRequest| {
                let filters: Vec<Filter> = filters.iter().map(|text| Filter::parse(text)).collect();
                Ok(tokio_stream::iter(parts(&snapshotter.list(&filters))))
            });
            Grpc::new(ProstCodec::<ListResponse, ListRequest>::default()).server_streaming(list, request).await
        }
        _ => Status::unimplemented(format!("no method {method:.64}")).into_http(),
    }
}

fn shown(mounts: Vec<Mount>) -> MountsResponse {
    MountsResponse { mounts }
}

fn described(record: Record) -> InfoResponse {
    InfoResponse { info: Some(record.info()) }
}

fn parts(records: &[Record]) -> Vec<std::result::Result<ListResponse, Status>> {
    let part = |records: &[Record]| Ok(ListResponse { info: records.iter().map(Record::info).collect() });
    records.chunks(LIST_LEN_MAX).map(part).collect()
}

/// Answers one request with one message. `work` may take long.
async fn unary<R, M>(
    request: Request<Body>,
    work: impl FnOnce(R) -> Result<M> + Send + 'static + Clone,
) -> http::Response<Body>
where
    R: prost::Message + Default + 'static,
    M: prost::Message + 'static,
{
    Grpc::new(ProstCodec::<M, R>::default()).unary(Call(work), request).await
}

/// A function that may take long, as a service.
struct Call<F>(F);

impl<R, M, F> Service<tonic::Request<R>> for Call<F>
where
    R: Send + 'static,
    M: Send + 'static,
    F: FnOnce(R) -> Result<M> + Send + Clone + 'static,
{
    type Response = Response<M>;
    type Error = Status;
    type Future = Pending<Response<M>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<R>) -> Self::Future {
        let work = self.0.clone();
        Box::pin(async move {
            let done = spawn_blocking(move || work(request.into_inner())).await;
            let done = done.map_err(|error| Status::internal(error.to_string()))?;
            Ok(Response::new(done?))
        })
    }
}
