#include <openssl/sha.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/service/convert.h"
#include "global_store/service/handlers.h"

namespace tensorcast::global_store {
// The digest of the content is a part of the key: a request id that a client uses again for something else
// makes another request, not a repetition with a wrong answer.
std::string Handlers::RequestKey(std::string_view request_id, std::string_view method,
                                 std::string_view content) {
  if (request_id.empty()) return "";
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(content.data()), content.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return absl::StrCat(method, "/", absl::BytesToHexString(digest), "/", request_id);
}

absl::StatusOr<v1::BindKeyResponse> Handlers::BindKey(const RequestContext& context,
                                                      const v1::BindKeyRequest& request) {
  BindRequest binding{.key = request.key(), .artifact_id = request.artifact_id()};
  if (request.has_expected_revision()) binding.expected = request.expected_revision();
  if (request.has_keep()) binding.keep = request.keep();
  binding.files_id = request.files_id();
  using Bind = Plan<v1::BindKeyResponse>;
  return Mutate<v1::BindKeyResponse>(
      context, "BindKey", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Bind> {
        TC_ASSIGN_OR_RETURN(KeyPlan plan, directory.catalog().PrepareBindKey(binding, now));
        Bind bind{.change = {.facts = std::move(plan.facts)}};
        *bind.response.mutable_key() = ToProto(plan.key, directory.catalog().KeepOf(plan.key));
        return bind;
      });
}

absl::StatusOr<v1::DeleteKeyResponse> Handlers::DeleteKey(const RequestContext& context,
                                                          const v1::DeleteKeyRequest& request) {
  std::optional<uint64_t> expected;
  if (request.has_expected_revision()) expected = request.expected_revision();
  return Mutate<v1::DeleteKeyResponse>(
      context, "DeleteKey", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Plan<v1::DeleteKeyResponse>> {
        TC_ASSIGN_OR_RETURN(KeyPlan plan, directory.catalog().PrepareDeleteKey(request.key(), expected, now));
        return Plan<v1::DeleteKeyResponse>{.change = {.facts = std::move(plan.facts)}};
      });
}

// The key and its rule are read in one visit, so that both are of one moment.
absl::StatusOr<v1::Key> Handlers::FindKey(const std::string& name) {
  return coordinator_.WithDirectory([&](Directory& directory, SteadyTime) -> absl::StatusOr<v1::Key> {
    TC_ASSIGN_OR_RETURN(const KeyRecord record, directory.catalog().ResolveKey(name));
    return ToProto(record, directory.catalog().KeepOf(record));
  });
}

absl::StatusOr<v1::ResolveKeyResponse> Handlers::ResolveKey(const RequestContext&,
                                                            const v1::ResolveKeyRequest& request) {
  v1::ResolveKeyResponse response;
  TC_ASSIGN_OR_RETURN(*response.mutable_key(), FindKey(request.key()));
  return response;
}

absl::StatusOr<v1::ListKeysResponse> Handlers::ListKeys(const RequestContext&,
                                                        const v1::ListKeysRequest& request) {
  TC_ASSIGN_OR_RETURN(const size_t page, PageSize(request.page_size()));
  return coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    const std::vector<KeyRecord> records =
        directory.catalog().ListKeys(request.prefix(), request.page_token(), page);
    v1::ListKeysResponse response;
    size_t bytes = 0;
    for (const KeyRecord& record : records) {
      v1::Key& key = *response.add_keys();
      key = ToProto(record, directory.catalog().KeepOf(record));
      bytes += key.ByteSizeLong();
      // A key may name a thousand versions, so few keys can be a large message.
      if (bytes >= kPageBytes) break;
    }
    const auto listed = static_cast<size_t>(response.keys_size());
    // A page that is full, or was cut for its size, may have others after it.
    if (listed == page || listed < records.size()) response.set_next_page_token(records[listed - 1].name);
    return response;
  });
}

void Handlers::WatchKeys(const RequestContext& context, const v1::WatchKeysRequest& request,
                         const std::shared_ptr<rpc::StreamWriter<v1::WatchKeysResponse>>& writer,
                         const rpc::Finisher& finisher) {
  // WriteLatest replaces a message about the same key that still waits: a slow client misses values in
  // between, never the last one.
  auto watcher = std::make_shared<KeyWatcher>();
  watcher->key = request.key();
  watcher->prefix = request.prefix();
  watcher->on_change = [writer](const KeyRecord& record) {
    v1::WatchKeysResponse message;
    *message.mutable_key() = ToProto(record, /*keep=*/0);
    message.set_deleted(record.deleted);
    writer->WriteLatest(std::move(message), record.name);
  };
  // Without a name to be replaced under, so it keeps its place: after all keys as they were.
  watcher->on_listed = [writer] {
    v1::WatchKeysResponse message;
    message.set_listed(true);
    writer->WriteLatest(std::move(message));
  };
  RunWatch(context, finisher, std::move(watcher), &Coordinator::Watch, &Coordinator::Unwatch);
}

}  // namespace tensorcast::global_store
