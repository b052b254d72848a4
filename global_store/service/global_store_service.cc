#include "global_store/service/global_store_service.h"

#include <string_view>
#include <type_traits>

#include "base/status.h"
#include "global_store/service/handlers.h"
#include "global_store/service/speaker.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/admission_queue.h"
#include "rpc/call_contexts.h"
#include "rpc/handlers.h"

namespace tensorcast::global_store {
namespace {

class GlobalStoreService final : public v1::GlobalStore::CallbackService {
 public:
  GlobalStoreService(Coordinator* coordinator, rpc::AdmissionQueue* admission, const ServiceOptions& options)
      : coordinator_(*coordinator),
        handlers_(coordinator, options),
        key_rules_(options.key_rules),
        admission_(*admission) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

// Calls that need their message alone: Run checks the caller, queues the call and answers with the handler's
// result.
#define TC_UNARY(method)                                                                                   \
  Unary* method(Call* call, const v1::method##Request* request, v1::method##Response* response) override { \
    return Run(call, request, response, &Handlers::method);                                                \
  }
  TC_UNARY(Heartbeat)
  TC_UNARY(UpdateReplicas)
  TC_UNARY(RequestEviction)
  TC_UNARY(DrainNode)
  TC_UNARY(ForgetNode)
  TC_UNARY(ListArtifacts)
  TC_UNARY(DeleteArtifact)
  TC_UNARY(BindKey)
  TC_UNARY(ResolveKey)
  TC_UNARY(ListKeys)
  TC_UNARY(DeleteKey)
  TC_UNARY(RequestReplicaTransport)
  TC_UNARY(CompleteReplicaTransport)
  TC_UNARY(ExplainRollout)
  TC_UNARY(ListReplicationTasks)
  TC_UNARY(CancelReplicationTasks)
  TC_UNARY(JoinBroadcast)
  TC_UNARY(GetClusterStatus)
#undef TC_UNARY

  // Those that keep something of their caller.
  Unary* RegisterNode(Call* call, const v1::RegisterNodeRequest* request,
                      v1::RegisterNodeResponse* response) override {
    return rpc::HandleUnary(
        call, LineOf<v1::RegisterNodeRequest>(),
        [this, request, response, peer = rpc::CallerOf(*call).peer](const RequestContext&) -> absl::Status {
          return AnswerWith(response, handlers_.RegisterNode(peer, *request));
        });
  }

  Unary* ReplicateArtifact(Call* call, const v1::ReplicateArtifactRequest* request,
                           v1::ReplicateArtifactResponse* response) override {
    return rpc::HandleUnary(
        call, LineOf<v1::ReplicateArtifactRequest>(),
        [this, request, response, asking = rpc::CallerOf(*call).asking](const RequestContext& context) {
          return AnswerWith(response, handlers_.ReplicateArtifact(context, asking, *request));
        });
  }

  grpc::ServerReadReactor<v1::ReconcileInventoryRequest>* ReconcileInventory(
      Call* call, v1::ReconcileInventoryResponse* response) override {
    // Both functions share it: the messages fill it, and the end of the stream answers from it. gRPC may
    // still call one of them when this one has returned.
    auto inventory = std::make_shared<Handlers::Inventory>();
    return rpc::HandleReadStream<v1::ReconcileInventoryRequest>(
        call, LineOf<v1::ReconcileInventoryRequest>(),
        [this, inventory, peer = rpc::CallerOf(*call).peer](v1::ReconcileInventoryRequest&& message) {
          // The caller is checked with the first message, so that one which may not speak for the node, or
          // was replaced, does not send everything before it is refused.
          const bool first = !inventory->node.has_value();
          const absl::Status known = first ? CheckStream(peer, message.node()) : absl::OkStatus();
          return known.ok() ? inventory->Add(message) : known;
        },
        [this, inventory, response](const RequestContext&) {
          return AnswerWith(response, handlers_.ReconcileInventory(*inventory));
        });
  }

  grpc::ServerReadReactor<v1::PublishArtifactRequest>* PublishArtifact(
      Call* call, v1::PublishArtifactResponse* response) override {
    auto publication = std::make_shared<Handlers::Publication>();
    return rpc::HandleReadStream<v1::PublishArtifactRequest>(
        call, LineOf<v1::PublishArtifactRequest>(),
        [this, publication,
         caller = rpc::CallerOf(*call)](v1::PublishArtifactRequest&& message) -> absl::Status {
          if (!publication->first.has_value()) {
            TC_RETURN_IF_ERROR(CheckStream(caller.peer, message.node()));
            if (!message.key().empty()) TC_RETURN_IF_ERROR(CheckMayBind(caller, message.key()));
          }
          return publication->Add(std::move(message));
        },
        [this, publication, response](const RequestContext& context) {
          return AnswerWith(response, handlers_.PublishArtifact(context, *publication));
        });
  }

  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      Call* call, const v1::DescribeArtifactRequest* request) override {
    return rpc::HandleWriteStream<v1::DescribeArtifactResponse>(
        call, LineOf<v1::DescribeArtifactRequest>(),
        [this, request](const RequestContext&, rpc::StreamWriter<v1::DescribeArtifactResponse>& writer) {
          return handlers_.DescribeArtifact(*request, writer);
        });
  }

// A watch goes on after its handler returned, until the caller or the store ends it.
#define TC_WATCH(method)                                                                                 \
  grpc::ServerWriteReactor<v1::method##Response>* method(Call* call, const v1::method##Request* request) \
      override {                                                                                         \
    return Watch(call, request, &Handlers::method);                                                      \
  }
  TC_WATCH(WatchKeys)
  TC_WATCH(WatchReplicationTasks)
#undef TC_WATCH

 private:
  // Streams are checked here, message by message, since CheckCaller sees only whole requests.
  absl::Status CheckStream(std::string_view peer, const v1::NodeIdentity& node) {
    TC_RETURN_IF_ERROR(CheckSpeaksFor(coordinator_, peer, node.node_id()));
    return handlers_.CheckNode(node);
  }

  absl::Status CheckMayBind(const rpc::Caller& caller, std::string_view key) const {
    return key_rules_.Check(key, caller.peer, caller.asking);
  }

  // Only the node itself may say what a request says of it, and only allowed callers may bind a key. (To
  // delete a key is an operator's.)
  template <class Request>
  absl::Status CheckCaller(const rpc::Caller& caller, const Request& request) {
    const std::string_view peer = caller.peer;
    if constexpr (requires { request.node(); }) {
      return CheckSpeaksFor(coordinator_, peer, request.node().node_id());
    } else if constexpr (std::is_same_v<Request, v1::DrainNodeRequest>) {
      const absl::Status speaks = CheckSpeaksFor(coordinator_, peer, request.node_id());
      if (!absl::IsPermissionDenied(speaks) || caller.asking == peer) return speaks;
      // A daemon that passes on what an operator asked: its certificate does not give it that role.
      return absl::PermissionDeniedError(
          absl::StrCat("permission denied: ", peer,
                       " may drain only its own node; connect to the global store's address with an ",
                       "operator's certificate"));
    } else if constexpr (std::is_same_v<Request, v1::BindKeyRequest>) {
      return CheckMayBind(caller, request.key());
    } else {
      return absl::OkStatus();
    }
  }

  // What a node says of itself comes first, so that it stays alive; what it holds comes last, since a node
  // that is not registered holds nothing.
  template <class Request>
  rpc::TaskRunner& LineOf() {
    using Class = rpc::AdmissionQueue::Class;
    if constexpr (std::is_same_v<Request, v1::HeartbeatRequest>) return admission_.line(Class::kHeartbeat);
    if constexpr (std::is_same_v<Request, v1::RegisterNodeRequest>) {
      return admission_.line(Class::kRegistration);
    }
    if constexpr (std::is_same_v<Request, v1::ReconcileInventoryRequest>) {
      return admission_.line(Class::kInventory);
    }
    return admission_.line(Class::kCall);
  }

  template <class Request, class Response>
  Unary* Run(Call* call, const Request* request, Response* response,
             absl::StatusOr<Response> (Handlers::*method)(const RequestContext&, const Request&)) {
    return rpc::HandleUnary(call, LineOf<Request>(),
                            [this, request, response, method,
                             caller = rpc::CallerOf(*call)](const RequestContext& context) -> absl::Status {
                              TC_RETURN_IF_ERROR(CheckCaller(caller, *request));
                              return AnswerWith(response, (handlers_.*method)(context, *request));
                            });
  }

  template <class Request, class Response>
  grpc::ServerWriteReactor<Response>* Watch(
      Call* call, const Request* request,
      void (Handlers::*method)(const RequestContext&, const Request&,
                               const std::shared_ptr<rpc::StreamWriter<Response>>&, const rpc::Finisher&)) {
    return rpc::HandleWriteStreamAsync<Response>(
        call, LineOf<Request>(),
        [this, request, method](
            const RequestContext& context, const std::shared_ptr<rpc::StreamWriter<Response>>& writer,
            const rpc::Finisher& finisher) { (handlers_.*method)(context, *request, writer, finisher); });
  }

  template <class Response>
  static absl::Status AnswerWith(Response* response, absl::StatusOr<Response> answer) {
    TC_ASSIGN_OR_RETURN(*response, std::move(answer));
    return absl::OkStatus();
  }

  Coordinator& coordinator_;
  Handlers handlers_;
  const security::KeyRules key_rules_;
  rpc::AdmissionQueue& admission_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGlobalStoreService(Coordinator* coordinator,
                                                      rpc::AdmissionQueue* admission,
                                                      const ServiceOptions& options) {
  return std::make_unique<GlobalStoreService>(coordinator, admission, options);
}

}  // namespace tensorcast::global_store
