// The client's calls about keys, which the daemon passes on to the global store. Watching: key_watch.cc.

#include "base/status.h"
#include "client/named.h"
#include "client/session.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

using Stub = v1::GlobalStore::Stub;

constexpr int kKeysPerPage = 1000;

KeyInfo InfoOf(const v1::Key& key) {
  KeyInfo info{.name = key.name(),
               .artifact_id = key.artifact_id(),
               .revision = key.revision(),
               .updated = rpc::FromProto(key.updated()),
               .keep = key.keep()};
  for (const v1::KeyVersion& version : key.earlier()) {
    info.earlier.push_back({.artifact_id = version.artifact_id(),
                            .revision = version.revision(),
                            .bound = rpc::FromProto(version.bound())});
  }
  return info;
}

// Pages are read one after another, so keys that are bound or deleted meanwhile may or may not be in the
// list.
absl::StatusOr<std::vector<KeyInfo>> ListAllPages(const DaemonLink& link, const RequestContext& operation,
                                                  std::string_view prefix) {
  v1::ListKeysRequest request;
  request.set_prefix(std::string(prefix));
  request.set_page_size(kKeysPerPage);
  std::vector<KeyInfo> keys;
  do {
    TC_ASSIGN_OR_RETURN(
        const v1::ListKeysResponse response,
        rpc::CallUnary(link.global_store(), &Stub::ListKeys, operation, request, {.what = "listing keys"}));
    for (const v1::Key& key : response.keys()) keys.push_back(InfoOf(key));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return keys;
}

}  // namespace

absl::StatusOr<KeyInfo> Client::BindKey(const RequestContext& context, std::string_view key,
                                        std::string_view artifact, std::optional<uint64_t> expected_revision,
                                        std::optional<uint32_t> keep) {
  v1::BindKeyRequest request;
  request.set_key(std::string(key));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  if (keep.has_value()) request.set_keep(*keep);
  TC_ASSIGN_OR_RETURN(const v1::BindKeyResponse response,
                      InSpan("Client/BindKey", context,
                             [&](const RequestContext& operation) -> absl::StatusOr<v1::BindKeyResponse> {
                               TC_ASSIGN_OR_RETURN(*request.mutable_artifact_id(),
                                                   ArtifactIdOf(*session_->link, operation, artifact));
                               return rpc::CallUnary(session_->link->global_store(), &Stub::BindKey,
                                                     operation, request, {.what = "binding a key"});
                             }));
  return InfoOf(response.key());
}

absl::StatusOr<KeyInfo> Client::ResolveKey(const RequestContext& context, std::string_view key,
                                           bool confirmed) {
  v1::ResolveKeyRequest request;
  request.set_key(std::string(key));
  request.set_confirmed(confirmed);
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse response,
                      InSpan("Client/ResolveKey", context, [&](const RequestContext& operation) {
                        return rpc::CallUnary(session_->link->global_store(), &Stub::ResolveKey, operation,
                                              request, {.what = "resolving a key"});
                      }));
  KeyInfo info = InfoOf(response.key());
  info.unconfirmed = response.unconfirmed();
  return info;
}

absl::Status Client::DeleteKey(const RequestContext& context, std::string_view key,
                               std::optional<uint64_t> expected_revision) {
  v1::DeleteKeyRequest request;
  request.set_key(std::string(key));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return InSpan("Client/DeleteKey", context, [&](const RequestContext& operation) {
    return rpc::CallUnary(session_->link->global_store(), &Stub::DeleteKey, operation, request,
                          {.what = "deleting a key"})
        .status();
  });
}

absl::StatusOr<std::vector<KeyInfo>> Client::ListKeys(const RequestContext& context,
                                                      std::string_view prefix) {
  return InSpan("Client/ListKeys", context, [&](const RequestContext& operation) {
    return ListAllPages(*session_->link, operation, prefix);
  });
}

}  // namespace tensorcast::client
