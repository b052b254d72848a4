// Client::Get: the daemon materializes the replica and gives a ticket, the ticket is claimed on the handle
// socket, and what came by it is mapped or opened. GetAt runs one get for each location side by side, and
// StartGet one on a thread of its own.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/named.h"
#include "client/replica_state.h"
#include "client/session.h"
#include "core/artifact/tensor_selection.h"
#include "otel/api/span.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"
#include "rpc/pieces.h"
#include "tensorcast/client.h"

namespace tensorcast::client {
namespace {

// The daemon answers on the handle socket at once or not at all.
constexpr absl::Duration kClaimTimeout = absl::Seconds(10);
// Bounds how long a cancelled get waits to give its ticket back; that takes a millisecond.
constexpr absl::Duration kGiveBackTimeout = absl::Seconds(1);

absl::StatusOr<v1::MaterializeReplicaRequest> MakeRequest(std::string_view artifact,
                                                          const GetOptions& options,
                                                          const DeviceRuntime* devices) {
  TC_RETURN_IF_ERROR(CheckNamed(artifact));
  TC_ASSIGN_OR_RETURN(const Location location, Location::Parse(options.location));
  v1::MaterializeReplicaRequest request;
  if (IsArtifactId(artifact)) {
    request.set_artifact_id(std::string(artifact));
  } else {
    request.set_key(std::string(artifact));
  }
  *request.mutable_location() = rpc::ToProto(location);
  request.set_lane(options.lane);
  request.set_wait_for_space(options.wait_for_space);
  request.set_confirmed(options.confirmed);
  request.set_pin(options.pin);
  request.set_advance(options.advance);
  TC_RETURN_IF_ERROR(CheckTensorPatterns(options.tensors));
  request.mutable_tensors()->Assign(options.tensors.begin(), options.tensors.end());
  // A packed file is not attached to: making it is all that is asked.
  request.set_attach(options.attach && location.kind != LocationKind::kDisk);
  if (request.attach() && location.kind == LocationKind::kGpu && devices == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("attach at ", options.location,
                     ": this client has no device runtime to open GPU memory; set ClientOptions::devices"));
  }
  return request;
}

// A ticket holds its lease until it is claimed or has expired, seconds after its caller gave up. One that was
// claimed already is nothing to the daemon.
void GiveBack(const std::string& handle_socket, const std::string& ticket) {
  ClaimedReplica::Claim(handle_socket, ticket, SteadyNow() + kGiveBackTimeout).IgnoreError();
}

// One stream carries the whole answer: the handle socket, progress while the replica is made, the manifest in
// pieces, and the result. The call itself is not retried, since Client::Get repeats all steps together.
absl::StatusOr<v1::MaterializeReplicaResult> Materialize(
    const DaemonLink& link, const RequestContext& context, const v1::MaterializeReplicaRequest& request,
    const GetOptions& options, std::string& handle_socket, rpc::PieceJoiner& manifest) {
  std::optional<v1::MaterializeReplicaResult> result;
  const auto on_response = [&](v1::MaterializeReplicaResponse&& response) {
    if (response.has_handle_socket()) {
      // Before anything is made: the daemon of another host is refused here, and no replica is fetched for
      // nothing.
      handle_socket = response.handle_socket();
      return link.CheckHandleSocket(handle_socket);
    }
    if (response.has_progress() && options.on_progress) {
      options.on_progress(rpc::FromProto(response.progress()));
    }
    if (response.has_result()) result = std::move(*response.mutable_result());
    return response.has_manifest_piece() ? manifest.Add(response.manifest_piece()) : absl::OkStatus();
  };
  absl::Status status =
      rpc::CallServerStream(link.daemon(), &v1::StoreDaemon::Stub::MaterializeReplica, context, request,
                            on_response, {.retry_for = absl::ZeroDuration(), .what = "make the replica"});
  if (!status.ok()) {
    // The call can fail after its result, when the caller cancels or the deadline passes between the two.
    if (result.has_value() && !result->ticket().empty()) GiveBack(handle_socket, result->ticket());
    return status;
  }
  if (!result.has_value()) {
    return absl::InternalError(
        "the daemon ended the call without a result; report this defect of the daemon");
  }
  return *std::move(result);
}

// Of those that were known, or the one that came.
absl::StatusOr<std::shared_ptr<const Manifest>> ManifestOf(const std::string& artifact_id,
                                                           const Manifests& known, const std::string& bytes) {
  for (const std::shared_ptr<const Manifest>& manifest : known) {
    if (manifest->id() == artifact_id) return manifest;
  }
  auto manifest = Manifest::Decode(bytes);
  // The id is the hash of what the manifest says, so this proves it, from any sender.
  if (manifest.ok() && (*manifest)->id() == artifact_id) return manifest;
  return absl::DataLossError(
      absl::StrCat("decode the manifest of ", artifact_id, ": the daemon sent ",
                   manifest.ok() ? absl::StrCat("the manifest of ", (*manifest)->id())
                                 : absl::StrCat("a malformed manifest (", manifest.status().message(), ")"),
                   "; report this defect of the daemon"));
}

absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const RequestContext& context,
                                                      const std::string& handle_socket,
                                                      const v1::MaterializeReplicaResult& result) {
  auto claimed =
      ClaimedReplica::Claim(handle_socket, result.ticket(),
                            std::min(context.deadline, SteadyNow() + kClaimTimeout), context.cancellation);
  if (claimed.ok()) return claimed;
  // The daemon may not have seen a claim that ended early here. One that it refused leaves no ticket behind.
  if (!context.Check("claim").ok()) GiveBack(handle_socket, result.ticket());
  return Annotate(claimed.status(),
                  absl::StrCat("claim replica ", result.replica().replica_id(), " on ", handle_socket));
}

constexpr std::string_view kAllGpus = "gpu:all";

// Of this daemon's pools, in their order.
std::vector<std::string> GpusOf(const NodeStatus& status) {
  std::vector<std::string> gpus;
  for (const NodeStatus::Pool& pool : status.pools) {
    if (pool.location.kind == LocationKind::kGpu) gpus.push_back(pool.location.ToString());
  }
  return gpus;
}

absl::StatusOr<std::vector<std::string>> Expand(Client& client, const RequestContext& context,
                                                std::span<const std::string> locations) {
  std::vector<std::string> expanded;
  for (const std::string& location : locations) {
    if (location != kAllGpus) {
      expanded.push_back(location);
      continue;
    }
    TC_ASSIGN_OR_RETURN(const NodeStatus status, client.GetStatus(context));
    const std::vector<std::string> gpus = GpusOf(status);
    if (gpus.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("get at ", kAllGpus, ": daemon ", status.name, " has no GPU; name another location"));
    }
    expanded.insert(expanded.end(), gpus.begin(), gpus.end());
  }
  return expanded;
}

}  // namespace

// One attempt: materialize, claim, find the manifest, attach, make the views. An error after the claim ends
// the lease with `claimed`.
absl::StatusOr<std::unique_ptr<Replica>> Client::GetOnce(const RequestContext& context,
                                                         std::string_view artifact,
                                                         const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(v1::MaterializeReplicaRequest request,
                      MakeRequest(artifact, options, session_->devices));
  // Manifests can be large: the request names those that the session has, and the daemon sends only another.
  const Manifests known = session_->manifests.All();
  request.set_manifest(true);
  for (const std::shared_ptr<const Manifest>& manifest : known) request.add_known_manifests(manifest->id());
  std::string handle_socket;
  rpc::PieceJoiner bytes;
  TC_ASSIGN_OR_RETURN(v1::MaterializeReplicaResult result,
                      Materialize(*session_->link, context, request, options, handle_socket, bytes));
  TC_ASSIGN_OR_RETURN(auto state, Replica::State::Of(std::move(result)));
  // The ticket is good for seconds only, so it goes first.
  std::unique_ptr<ClaimedReplica> claimed;
  if (request.attach()) {
    TC_ASSIGN_OR_RETURN(claimed, Claim(context, handle_socket, state->result));
    state->result.clear_ticket();  // it was good for once
  }
  TC_ASSIGN_OR_RETURN(state->manifest, ManifestOf(state->artifact_id(), known, bytes.bytes()));
  session_->manifests.Keep(state->manifest);
  TC_ASSIGN_OR_RETURN(state->chosen, SelectTensors(*state->manifest, options.tensors));
  if (claimed != nullptr) {
    TC_RETURN_IF_ERROR(state->Attach(std::move(claimed), session_->devices, options.copy_on_write));
  }
  // A mapping of host memory outlives the daemon, so its lease is taken again from the next one. GPU memory
  // and packed files have nothing to take again.
  if (!state->image.empty()) session_->leases.Watch(state->claimed);
  state->MakeViews();
  return std::unique_ptr<Replica>(new Replica(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Replica>> Client::Get(const RequestContext& context, std::string_view artifact,
                                                     const GetOptions& options) {
  return GetNamed(context, artifact, options, absl::StrCat("get ", artifact));
}

absl::StatusOr<std::unique_ptr<Replica>> Client::GetNamed(const RequestContext& context,
                                                          std::string_view artifact,
                                                          const GetOptions& options, std::string_view what) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Get", operation,
                  {{otel::attr::kOperationType, "get"},
                   {otel::attr::kLocation, options.location.substr(0, options.location.find(':'))}});
  if (!IsArtifactId(artifact)) span.SetAttribute(otel::attr::kKey, artifact);
  span.AttachTo(&operation);
  std::unique_ptr<Replica> replica;
  absl::Status status =
      // The get as a whole is tried again, never one step of it: a ticket or a replica id means nothing to a
      // daemon that was restarted between the steps.
      rpc::RetryUnavailable(operation, {.what = kAsking}, [&](const rpc::Attempt& attempt) {
        rpc::NoteRetry(span, attempt);
        auto got = GetOnce(operation, artifact, options);
        if (got.ok()) replica = *std::move(got);
        return got.status();
      });
  if (!status.ok()) return span.Record(Annotate(status, what));
  span.SetAttribute(otel::attr::kArtifactId, replica->artifact_id());
  span.SetAttribute(otel::attr::kReplicaId, replica->replica_id());
  return replica;
}

absl::StatusOr<std::unique_ptr<Replica>> Client::GetFiles(const RequestContext& context, std::string_view key,
                                                          const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(const KeyInfo info, ResolveKey(context, key, options.confirmed));
  if (info.files_id.empty()) {
    return absl::NotFoundError(absl::StrCat("get the files of ", key,
                                            ": the key binds no files; put the model's folder, with its "
                                            "config.json, under this key"));
  }
  return Get(context, info.files_id, options);
}

absl::StatusOr<std::vector<std::unique_ptr<Replica>>> Client::GetAt(const RequestContext& context,
                                                                    std::string_view artifact,
                                                                    std::span<const std::string> locations,
                                                                    const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(const std::vector<std::string> places, Expand(*this, context, locations));
  if (places.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("get ", artifact, ": no location is given; name a location"));
  }
  RequestContext all = context;
  all.request_id.clear();  // each get is an operation of its own, in one trace
  if (!all.trace.IsValid()) all.trace = TraceContext::NewRoot();
  // One cancellation ends all gets: by the caller's, or by the first error. The caller's own is not cancelled
  // for an error here.
  all.cancellation = Cancellation();
  const Cancellation::Registration with_caller =
      context.cancellation.OnCancel([cancellation = all.cancellation] { cancellation.Cancel(); });
  absl::Mutex mutex;
  absl::Status first_error;  // guarded by `mutex` while the threads run
  const auto fail = [&](const absl::Status& error) {
    {
      absl::MutexLock lock(&mutex);
      first_error.Update(error);
    }
    all.cancellation.Cancel();
  };
  std::vector<std::unique_ptr<Replica>> replicas(places.size());
  const auto get = [&](size_t i) {
    GetOptions here = options;
    here.location = places[i];
    absl::StatusOr<std::unique_ptr<Replica>> replica =
        GetNamed(all, artifact, here, absl::StrCat("get ", artifact, " at ", places[i]));
    if (replica.ok()) {
      replicas[i] = *std::move(replica);
    } else {
      fail(replica.status());
    }
  };
  {
    // All or none: the first error cancels the others. One of the gets runs on the caller's thread.
    std::vector<std::jthread> threads;
    try {
      for (size_t i = 1; i < places.size(); ++i) threads.emplace_back(get, i);
    } catch (const std::system_error& error) {
      fail(absl::ResourceExhaustedError(
          absl::StrCat("get ", artifact, ": this process cannot start a thread for each of ", places.size(),
                       " locations: ", error.what(),
                       "; name fewer locations, or raise the limit of threads (`ulimit -u`)")));
    }
    get(0);
  }
  TC_RETURN_IF_ERROR(first_error);
  return replicas;
}

// `cancel_with_caller` passes the caller's cancellation on; the thread sees only its own.
struct PendingGet::State {
  explicit State(const RequestContext& context)
      : cancel_with_caller(
            context.cancellation.OnCancel([cancellation = cancellation] { cancellation.Cancel(); })) {}

  // Running, then done (`result` is set), then spent (Wait handed it out; `result` is set still).
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return result.has_value(); }

  const Cancellation cancellation;
  const Cancellation::Registration cancel_with_caller;
  absl::Mutex mutex;
  std::optional<absl::StatusOr<std::unique_ptr<Replica>>> result ABSL_GUARDED_BY(mutex);
  bool spent ABSL_GUARDED_BY(mutex) = false;
  std::thread thread;  // ends before all that it uses; none when it could not be started
};

PendingGet::PendingGet(std::unique_ptr<State> state) : state_(std::move(state)) {}

PendingGet::~PendingGet() {
  Cancel();
  // The thread uses the state until its get has ended, which the cancellation makes soon.
  if (state_->thread.joinable()) state_->thread.join();
}

absl::StatusOr<std::unique_ptr<Replica>> PendingGet::Wait(SteadyTime deadline) {
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::IsDone), TimeLeft(deadline));
  if (!state_->IsDone()) {
    return absl::DeadlineExceededError("wait for a get: the get still runs; wait again, or cancel the get");
  }
  if (state_->spent) {
    return absl::FailedPreconditionError("wait for a get: the result was taken already; start another get");
  }
  state_->spent = true;
  return *std::exchange(state_->result, absl::CancelledError("spent"));
}

void PendingGet::Cancel() { state_->cancellation.Cancel(); }

std::unique_ptr<PendingGet> Client::StartGet(const RequestContext& context, std::string_view artifact,
                                             const GetOptions& options) {
  auto state = std::make_unique<PendingGet::State>(context);
  RequestContext own = context;
  // Its own, so that PendingGet::Cancel does not cancel all else that runs under the caller's; the caller's
  // is passed on to it.
  own.cancellation = state->cancellation;
  // A client of its own, since the caller may destroy this one first.
  auto client = std::shared_ptr<Client>(new Client(session_));
  try {
    state->thread = std::thread([state = state.get(), client = std::move(client), own = std::move(own),
                                 artifact = std::string(artifact), options] {
      auto result = client->Get(own, artifact, options);
      absl::MutexLock lock(&state->mutex);
      state->result = std::move(result);
    });
  } catch (const std::system_error& error) {
    absl::MutexLock lock(&state->mutex);
    state->result = absl::ResourceExhaustedError(
        absl::StrCat("start the get of ", artifact, ": this process cannot start a thread: ", error.what(),
                     "; call Get, which starts no thread, or raise the limit of threads (`ulimit -u`)"));
  }
  return std::unique_ptr<PendingGet>(new PendingGet(std::move(state)));
}

}  // namespace tensorcast::client
