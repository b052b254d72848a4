#include "client/versions.h"

#include <grpcpp/channel.h>

#include <algorithm>

#include "base/status.h"
#include "client/daemon_link.h"
#include "proto/versions.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"

namespace tensorcast::client {
namespace {

using Stub = v1::Versions::Stub;

// Of one call, as the contract has it.
constexpr size_t kMaxTargets = 1000;
constexpr int kPageSize = 1000;

template <class Request>
void AddTargets(const VersionsClient::Targets& targets, size_t first, Request& request) {
  for (size_t i = first; i < std::min(targets.size(), first + kMaxTargets); ++i) {
    v1::FollowKeyRequest::Target& target = *request.add_targets();
    target.set_node_id(targets[i].first);
    *target.mutable_location() = rpc::ToProto(targets[i].second);
  }
}

}  // namespace

struct VersionsClient::Stubs {
  std::unique_ptr<Stub> versions;
};

VersionsClient::VersionsClient(std::unique_ptr<DaemonLink> link)
    : link_(std::move(link)), stubs_(new Stubs{v1::Versions::NewStub(link_->channel())}) {}
VersionsClient::~VersionsClient() = default;

absl::StatusOr<std::unique_ptr<VersionsClient>> VersionsClient::Connect(const ClientOptions& options) {
  TC_ASSIGN_OR_RETURN(auto link, DaemonLink::Connect(options));
  return std::unique_ptr<VersionsClient>(new VersionsClient(std::move(link)));
}

absl::StatusOr<v1::FollowKeyResponse> VersionsClient::FollowKey(const RequestContext& context,
                                                                std::string_view key,
                                                                const Targets& targets) {
  return InSpan("Client/FollowKey", context,
                [&](const RequestContext& operation) -> absl::StatusOr<v1::FollowKeyResponse> {
                  v1::FollowKeyResponse all;
                  for (size_t first = 0; first < targets.size(); first += kMaxTargets) {
                    v1::FollowKeyRequest request;
                    request.set_key(std::string(key));
                    AddTargets(targets, first, request);
                    // Targets before an error are followed already; the call can be repeated.
                    TC_ASSIGN_OR_RETURN(const v1::FollowKeyResponse some,
                                        rpc::CallUnary(*stubs_->versions, &Stub::FollowKey, operation,
                                                       request, {.what = "follow a key"}));
                    all.MergeFrom(some);
                  }
                  return all;
                });
}

absl::StatusOr<v1::ListFollowersResponse> VersionsClient::ListFollowers(const RequestContext& context,
                                                                        std::string_view key) {
  v1::ListFollowersRequest request;
  request.set_key(std::string(key));
  request.set_page_size(kPageSize);
  return InSpan("Client/ListFollowers", context, [&](const RequestContext& operation) {
    return AllPages(*stubs_->versions, &Stub::ListFollowers, operation, request, "list followers");
  });
}

absl::StatusOr<v1::UnfollowKeyResponse> VersionsClient::UnfollowKey(const RequestContext& context,
                                                                    std::string_view key,
                                                                    const Targets& targets) {
  return InSpan("Client/UnfollowKey", context,
                [&](const RequestContext& operation) -> absl::StatusOr<v1::UnfollowKeyResponse> {
                  v1::UnfollowKeyResponse all;
                  size_t first = 0;
                  do {  // once without any, too, which means all
                    v1::UnfollowKeyRequest request;
                    request.set_key(std::string(key));
                    AddTargets(targets, first, request);
                    TC_ASSIGN_OR_RETURN(const v1::UnfollowKeyResponse some,
                                        rpc::CallUnary(*stubs_->versions, &Stub::UnfollowKey, operation,
                                                       request, {.what = "stop following a key"}));
                    all.MergeFrom(some);
                    first += kMaxTargets;
                  } while (first < targets.size());
                  return all;
                });
}

absl::StatusOr<v1::AgreeOnVersionResponse> VersionsClient::AgreeOnVersion(
    const RequestContext& context, const v1::AgreeOnVersionRequest& request) {
  // Not in a span of its own: a member calls all the time. The next poll says the same again, so that it may
  // be tried for as long as the caller waits, through failovers of the global store.
  const RequestContext operation = OperationContext(context);
  rpc::Backoff backoff;
  while (true) {
    absl::StatusOr<v1::AgreeOnVersionResponse> response =
        rpc::CallUnary(*stubs_->versions, &Stub::AgreeOnVersion, operation, request,
                       {.retry_for = absl::ZeroDuration(), .what = "agree on a version"});
    if (response.ok() || !absl::IsUnavailable(response.status())) return response;
    const absl::Status slept =
        rpc::SleepFor(operation, rpc::WaitAfter(response.status(), backoff), "agree on a version");
    if (!slept.ok()) return response;
  }
}

}  // namespace tensorcast::client
