#include "daemon/service/global_store_proxy.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "rpc/call.h"
#include "rpc/call_contexts.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

using Stub = GlobalStoreChannel::Stub;

// A client retries what is UNAVAILABLE; twice retried would be retried too long.
// The global store is told which client asked: a node's own certificate does not give it a client's rights.
rpc::CallOptions OnceFor(const grpc::CallbackServerContext& call, rpc::EpochFence& fence) {
  return {.retry_for = absl::ZeroDuration(),
          .what = "call the global store",
          .on_behalf_of = rpc::CallerOf(call).asking,
          .fence = &fence};
}

class GlobalStoreProxy final : public v1::GlobalStore::CallbackService {
 public:
  GlobalStoreProxy(std::shared_ptr<GlobalStoreChannel> channel, GlobalStoreClient* client,
                   KnownKeys* known_keys, rpc::Executor* quick, rpc::Executor* waiting)
      : channel_(std::move(channel)),
        client_(*client),
        known_keys_(*known_keys),
        quick_(*quick),
        waiting_(*waiting) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

// A call that is passed on as it is.
#define TC_FORWARD(method)                                                                                 \
  Unary* method(Call* call, const v1::method##Request* request, v1::method##Response* response) override { \
    return Forward(call, &Stub::method, request, response, [](SteadyTime) {});                             \
  }
  TC_FORWARD(ListArtifacts)
  TC_FORWARD(DeleteArtifact)
  TC_FORWARD(GetClusterStatus)
  TC_FORWARD(DrainNode)
  TC_FORWARD(ExplainRollout)
  TC_FORWARD(ReplicateArtifact)
  TC_FORWARD(ListReplicationTasks)
  TC_FORWARD(CancelReplicationTasks)
#undef TC_FORWARD

  // This node remembers what clients change through it, for the time when the global store is away.
  Unary* BindKey(Call* call, const v1::BindKeyRequest* request, v1::BindKeyResponse* response) override {
    return Forward(call, &Stub::BindKey, request, response,
                   [this, response](SteadyTime asked) { known_keys_.Note(response->key(), asked); });
  }
  Unary* DeleteKey(Call* call, const v1::DeleteKeyRequest* request,
                   v1::DeleteKeyResponse* response) override {
    return Forward(call, &Stub::DeleteKey, request, response,
                   [this, request](SteadyTime asked) { known_keys_.NoteDeleted(request->key(), asked); });
  }
  // As the global store has them, also where it was restored and is behind: that is what a person wants to
  // see then.
  Unary* ListKeys(Call* call, const v1::ListKeysRequest* request, v1::ListKeysResponse* response) override {
    return Forward(call, &Stub::ListKeys, request, response,
                   [this, response](SteadyTime asked) { known_keys_.NoteListed(response->keys(), asked); });
  }
  Unary* ResolveKey(Call* call, const v1::ResolveKeyRequest* request,
                    v1::ResolveKeyResponse* response) override {
    // The call is not forwarded as it is: while the global store is away, this node answers with what it
    // knows.
    return rpc::HandleUnary(
        call, quick_, [this, request, response](const RequestContext& context) -> absl::Status {
          TC_ASSIGN_OR_RETURN(*response, known_keys_.Resolve(context, request->key(), request->confirmed()));
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      Call* call, const v1::DescribeArtifactRequest* request) override {
    using Response = v1::DescribeArtifactResponse;
    return ForwardStream<Response>(call, quick_, &Stub::DescribeArtifact, request,
                                   [](Response&& response, rpc::StreamWriter<Response>& writer) {
                                     return writer.Write(std::move(response));
                                   });
  }
  grpc::ServerWriteReactor<v1::WatchKeysResponse>* WatchKeys(Call* call,
                                                             const v1::WatchKeysRequest* request) override {
    using Response = v1::WatchKeysResponse;
    return ForwardStream<Response>(
        call, waiting_, &Stub::WatchKeys, request,
        [this, began = SteadyNow()](Response&& response, rpc::StreamWriter<Response>& writer) {
          const std::string key = response.key().name();
          if (response.has_key()) {
            const KnownKeys::Order order = response.deleted()
                                               ? known_keys_.NoteDeletion(response.key())
                                               : known_keys_.NoteWatched(response.key(), began);
            // A watcher that was told a revision is not told an older one by a global store that lost it. It
            // must hear of the key, since one that is not listed to it was deleted.
            if (order == KnownKeys::Order::kOlder) {
              std::optional<v1::Key> known = known_keys_.Find(key);
              if (!known.has_value()) return absl::OkStatus();
              *response.mutable_key() = *std::move(known);
              response.set_deleted(false);
            }
          }
          // One waiting message a key: a slow watcher misses revisions in between, never the latest.
          writer.WriteLatest(std::move(response), key);
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<v1::WatchReplicationTasksResponse>* WatchReplicationTasks(
      Call* call, const v1::WatchReplicationTasksRequest* request) override {
    using Response = v1::WatchReplicationTasksResponse;
    return ForwardStream<Response>(call, waiting_, &Stub::WatchReplicationTasks, request,
                                   [](Response&& response, rpc::StreamWriter<Response>& writer) {
                                     const v1::ReplicationTask& task = response.task();
                                     // A slow watcher misses steps of one task, never the last one. The
                                     // message that ends the list has no slot, so it stays in its place.
                                     const std::string place =
                                         response.listed()
                                             ? ""
                                             : absl::StrCat(task.artifact_id(), " ", task.node_id(), " ",
                                                            task.location().SerializeAsString());
                                     writer.WriteLatest(std::move(response), place);
                                     return absl::OkStatus();
                                   });
  }

 private:
  // `on_answer` is told when it was asked, once the answer is there.
  template <class Request, class Response, class OnAnswer>
  Unary* Forward(Call* call, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request* request, Response* response, OnAnswer on_answer) {
    return rpc::HandleUnary(
        call, quick_,
        [this, method, request, response, on_answer,
         options = OnceFor(*call, client_.fence())](const RequestContext& context) -> absl::Status {
          // The time is taken before the call: KnownKeys orders answers by when they were asked for.
          const SteadyTime asked = SteadyNow();
          absl::StatusOr<Response> answer =
              rpc::CallUnary(*channel_->stub(), method, context, *request, options);
          TC_RETURN_IF_ERROR(client_.Noted(answer.status(), asked, Timeout::kMeansSilence));
          *response = *std::move(answer);
          on_answer(asked);
          return absl::OkStatus();
        });
  }

  template <class Response, class Request, class PassOn>
  grpc::ServerWriteReactor<Response>* ForwardStream(
      Call* call, rpc::Executor& executor,
      std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(grpc::ClientContext*, const Request&),
      const Request* request, PassOn pass_on) {
    return rpc::HandleWriteStream<Response>(
        call, executor,
        [this, method, request, pass_on, options = OnceFor(*call, client_.fence())](
            const RequestContext& context, rpc::StreamWriter<Response>& writer) {
          const SteadyTime asked = SteadyNow();
          Timeout timeout =
              Timeout::kMeansSilence;  // until it says something: a watch lasts as long as wanted
          const absl::Status ended = rpc::CallServerStream(
              *channel_->stub(), method, context, *request,
              [&](Response&& response) {
                timeout = Timeout::kMeansNothing;
                return pass_on(std::move(response), writer);
              },
              options);
          return client_.Noted(ended, asked, timeout);
        });
  }

  const std::shared_ptr<GlobalStoreChannel> channel_;
  GlobalStoreClient& client_;
  KnownKeys& known_keys_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGlobalStoreProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                    GlobalStoreClient* client, KnownKeys* known_keys,
                                                    rpc::Executor* quick, rpc::Executor* waiting) {
  return std::make_unique<GlobalStoreProxy>(std::move(channel), client, known_keys, quick, waiting);
}

}  // namespace tensorcast::daemon
