// The calls about keys, which the daemon passes on to the global store. Watching: key_watch.cc.

#include "base/status.h"
#include "client/named.h"
#include "client/session.h"
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
               .files_id = key.files_id(),
               .keep = key.keep()};
  for (const v1::KeyVersion& version : key.earlier()) {
    info.earlier.push_back({.artifact_id = version.artifact_id(),
                            .revision = version.revision(),
                            .bound = rpc::FromProto(version.bound())});
  }
  return info;
}

}  // namespace

absl::StatusOr<v1::BindKeyResponse> AdminClient::BindKey(const RequestContext& context, std::string_view key,
                                                         std::string_view artifact,
                                                         std::optional<uint64_t> expected_revision,
                                                         std::optional<uint32_t> keep) {
  v1::BindKeyRequest request;
  request.set_key(std::string(key));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  if (keep.has_value()) request.set_keep(*keep);
  return InSpan("Client/BindKey", context,
                [&](const RequestContext& operation) -> absl::StatusOr<v1::BindKeyResponse> {
                  // A key may be bound to what another key names. That key is resolved now; the
                  // binding does not follow it.
                  TC_ASSIGN_OR_RETURN(const v1::Key target, BindingOf(*link_, operation, artifact));
                  request.set_artifact_id(target.artifact_id());
                  request.set_files_id(target.files_id());
                  return rpc::CallUnary(link_->global_store(), &Stub::BindKey, operation, request,
                                        {.what = "bind a key"});
                });
}

absl::StatusOr<v1::ResolveKeyResponse> AdminClient::ResolveKey(const RequestContext& context,
                                                               std::string_view key, bool confirmed) {
  v1::ResolveKeyRequest request;
  request.set_key(std::string(key));
  request.set_confirmed(confirmed);
  return InSpan("Client/ResolveKey", context, [&](const RequestContext& operation) {
    return rpc::CallUnary(link_->global_store(), &Stub::ResolveKey, operation, request,
                          {.what = "resolve a key"});
  });
}

absl::Status AdminClient::DeleteKey(const RequestContext& context, std::string_view key,
                                    std::optional<uint64_t> expected_revision) {
  v1::DeleteKeyRequest request;
  request.set_key(std::string(key));
  if (expected_revision.has_value()) request.set_expected_revision(*expected_revision);
  return InSpan("Client/DeleteKey", context, [&](const RequestContext& operation) {
    return rpc::CallUnary(link_->global_store(), &Stub::DeleteKey, operation, request,
                          {.what = "delete a key"})
        .status();
  });
}

absl::StatusOr<v1::ListKeysResponse> AdminClient::ListKeys(const RequestContext& context,
                                                           std::string_view prefix) {
  v1::ListKeysRequest request;
  request.set_prefix(std::string(prefix));
  request.set_page_size(kKeysPerPage);
  return InSpan("Client/ListKeys", context, [&](const RequestContext& operation) {
    return AllPages(link_->global_store(), &Stub::ListKeys, operation, request, "list keys");
  });
}

absl::StatusOr<KeyInfo> Client::BindKey(const RequestContext& context, std::string_view key,
                                        std::string_view artifact, std::optional<uint64_t> expected_revision,
                                        std::optional<uint32_t> keep) {
  TC_ASSIGN_OR_RETURN(const v1::BindKeyResponse response,
                      session_->calls.BindKey(context, key, artifact, expected_revision, keep));
  return InfoOf(response.key());
}

absl::StatusOr<KeyInfo> Client::ResolveKey(const RequestContext& context, std::string_view key,
                                           bool confirmed) {
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse response,
                      session_->calls.ResolveKey(context, key, confirmed));
  KeyInfo info = InfoOf(response.key());
  info.unconfirmed = response.unconfirmed();
  return info;
}

absl::Status Client::DeleteKey(const RequestContext& context, std::string_view key,
                               std::optional<uint64_t> expected_revision) {
  return session_->calls.DeleteKey(context, key, expected_revision);
}

absl::StatusOr<std::vector<KeyInfo>> Client::ListKeys(const RequestContext& context,
                                                      std::string_view prefix) {
  TC_ASSIGN_OR_RETURN(const v1::ListKeysResponse listed, session_->calls.ListKeys(context, prefix));
  std::vector<KeyInfo> keys;
  for (const v1::Key& key : listed.keys()) keys.push_back(InfoOf(key));
  return keys;
}

absl::Status Client::WatchKeys(const RequestContext& context, std::string_view prefix,
                               const std::function<bool(const KeyInfo&)>& on_key) {
  return session_->calls.WatchKeys(context, prefix, [&](const v1::WatchKeysResponse& change) {
    KeyInfo info = InfoOf(change.key());
    info.deleted = change.deleted();
    return on_key(info);
  });
}

}  // namespace tensorcast::client
