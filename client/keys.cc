#include "client/keys.h"

#include <utility>

#include "base/status.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

using Stub = v1::GlobalStore::Stub;

constexpr int kKeysPerPage = 1000;

KeyInfo InfoOf(const v1::Key& key) {
  return {.name = key.name(),
          .artifact_id = key.artifact_id(),
          .revision = key.revision(),
          .updated = rpc::FromProto(key.updated())};
}

}  // namespace

absl::StatusOr<KeyInfo> RunBindKey(DaemonLink& link, const RequestContext& context, std::string_view key,
                                   std::string_view artifact_id, std::optional<uint64_t> expected_revision) {
  v1::BindKeyRequest request;
  request.set_key(std::string(key));
  request.set_artifact_id(std::string(artifact_id));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  TC_ASSIGN_OR_RETURN(const v1::BindKeyResponse response,
                      rpc::CallUnary(link.global_store(), &Stub::BindKey, OperationContext(context), request,
                                     {.what = "binding a key"}));
  return InfoOf(response.key());
}

absl::StatusOr<KeyInfo> RunResolveKey(DaemonLink& link, const RequestContext& context, std::string_view key) {
  v1::ResolveKeyRequest request;
  request.set_key(std::string(key));
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse response,
                      rpc::CallUnary(link.global_store(), &Stub::ResolveKey, OperationContext(context),
                                     request, {.what = "resolving a key"}));
  KeyInfo info = InfoOf(response.key());
  info.unconfirmed = response.unconfirmed();
  return info;
}

absl::Status RunDeleteKey(DaemonLink& link, const RequestContext& context, std::string_view key,
                          std::optional<uint64_t> expected_revision) {
  v1::DeleteKeyRequest request;
  request.set_key(std::string(key));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return rpc::CallUnary(link.global_store(), &Stub::DeleteKey, OperationContext(context), request,
                        {.what = "deleting a key"})
      .status();
}

absl::StatusOr<std::vector<KeyInfo>> RunListKeys(DaemonLink& link, const RequestContext& context,
                                                 std::string_view prefix) {
  v1::ListKeysRequest request;
  request.set_prefix(std::string(prefix));
  request.set_page_size(kKeysPerPage);
  const RequestContext operation = OperationContext(context);
  std::vector<KeyInfo> keys;
  do {
    TC_ASSIGN_OR_RETURN(
        v1::ListKeysResponse response,
        rpc::CallUnary(link.global_store(), &Stub::ListKeys, operation, request, {.what = "listing keys"}));
    for (const v1::Key& key : response.keys()) keys.push_back(InfoOf(key));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return keys;
}

}  // namespace tensorcast::client
